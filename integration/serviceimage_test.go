package integration

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestAnImagesOwnHealthcheckAndStopSignalAreUsed uses an image that declares a health check and a stop signal. Services
// use both, and so does the sandbox's primary command.
func TestAnImagesOwnHealthcheckAndStopSignalAreUsed(t *testing.T) {
	t.Parallel()
	const ends = `trap 'echo asked >>/tmp/end; sleep 0.2; echo done >>/tmp/end; exit 0' USR1; trap 'echo term ` +
		`>>/tmp/end' TERM; `
	ref := imageWith(t, "health",
		`HEALTHCHECK --interval=200ms --timeout=2s --retries=5 --start-period=20s CMD id -u >>/tmp/tests; test -e /tmp/well`,
		`STOPSIGNAL SIGUSR1`, `USER box`,
		fmt.Sprintf(`CMD ["sh", "-c", "%ssleep 1; touch /tmp/well; while :; do sleep 0.05; done"]`, ends))
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	v := protocol.Service{Image: ref, Memory: 32 << 20}
	off, own := v, v
	off.Healthcheck = &protocol.Healthcheck{Test: []string{"NONE"}}
	own = withCheck(own, "touch /tmp/own")
	spec := withServices(f, services{"image": v, "off": off, "own": own}, nil)
	spec.Image, spec.Command, spec.Grace = ref, []string{"sh", "-c",
		ends + "while :; do sleep 0.05; done"}, protocol.Duration(10*time.Second)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	started, err := time.Parse(time.RFC3339Nano,
		docker(t, engines.Default(t).Host, "inspect", "-f", "{{.State.StartedAt}}", containerOf(f, "", "s.image")))
	check(t, err)
	var ready time.Time
	for _, e := range f.History("s").Events {
		if e.Kind == protocol.ServiceReady && e.Service.Name == "image" {
			ready = e.Time
		}
	}
	if took := ready.Sub(started); took < time.Second {
		t.Errorf("ready %s after its start, before the image's own test can pass", took)
	}
	for name, script := range map[string]string{
		"image": "sort -u /tmp/tests", // the health test runs as the service's user
		"own":   "ls /tmp/own; cat /tmp/tests 2>/dev/null || echo not the image\\'s",
		"off":   "cat /tmp/tests 2>/dev/null || echo none",
	} {
		want := map[string]string{"image": "1000", "own": "/tmp/own\nnot the image's", "off": "none"}[name]
		if got := printedBy(t, ctx, s, name, "sh", "-c", script); got != want {
			t.Errorf("the tests of %s: %q, want %q", name, got, want)
		}
	}
	// The Engine itself runs no health test. The only signal that it sends to the supervisor is TERM.
	running, err := dockerRunning(f)
	if err != nil || len(running) != 4 {
		t.Fatalf("running: %q, %v", running, err)
	}
	out, err := exec.Command("docker", append([]string{"inspect", "--format",
		"{{json .Config.Healthcheck.Test}} {{json .State.Health}} {{.Config.StopSignal}}"}, running...)...).Output()
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if err != nil || line != `["NONE"] null SIGTERM` {
			t.Errorf("the engine has %s, %v", line, err)
		}
	}
	// A restarted worker still has the image's settings.
	w := f.Processes("worker")[0]
	w.Kill()
	w = w.Restart()
	printedBy(t, ctx, s, "image", "rm", "/tmp/well")
	f.Eventually(10*time.Second, "the service has failed",
		func() error { return serviceIs(f, "s", "image", protocol.ServiceStateFailed) })
	if status := f.History("s").State.Sandbox.Services["image"]; status.Reason != protocol.ReasonUnhealthy {
		t.Errorf("the service failed with %+v", status)
	}
	printedBy(t, ctx, s, "image", "touch", "/tmp/well")
	f.Eventually(10*time.Second, "the service is ready again",
		func() error { return serviceIs(f, "s", "image", protocol.ServiceStateReady) })
	begun := time.Now()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 8*time.Second {
		t.Errorf("the stop took %s: it waited for the whole grace although the commands end on the image's signal", took)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "image", "off", "own"} {
		if got := printedBy(t, ctx, s, name, "cat", "/tmp/end"); got != "asked\ndone" {
			t.Errorf("the command of %q was ended with %q", name, got)
		}
	}
	if got := serviceEvents(f.History("s"), "off"); !slices.Equal(got, []string{"service.ready", "service.ready"}) {
		t.Errorf("the history of the one without a test has %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}
