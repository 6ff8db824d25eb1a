package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// small is a service from the small image, which runs a line of shell.
func small(script string) protocol.Service {
	return protocol.Service{Image: fleet.Image, Command: []string{"sh", "-c", script}, Memory: 32 << 20}
}

// withCheck gives a service a quick health check.
func withCheck(v protocol.Service, test string) protocol.Service {
	v.Healthcheck = &protocol.Healthcheck{Test: []string{"CMD-SHELL", test}, Interval: protocol.Duration(200 * time.Millisecond),
		Timeout: protocol.Duration(2 * time.Second), Retries: 5, StartInterval: protocol.Duration(100 * time.Millisecond)}
	return v
}

// web is a service that is ready after a while, and answers on port 80.
func web(after string) protocol.Service {
	return withCheck(small("echo starting; sleep "+after+"; mkdir -p /tmp/w; echo hello >/tmp/w/index.html; exec httpd -f -h /tmp/w -p 80"), "wget -q -O /dev/null http://127.0.0.1/")
}

func hook(script string) protocol.Hook {
	return protocol.Hook{Command: []string{"sh", "-c", script}, Timeout: protocol.Duration(10 * time.Second)}
}

// withServices is a small spec with these services.
func withServices(f *fleet.Fleet, required, optional map[string]protocol.Service) protocol.SandboxSpec {
	spec := f.Spec()
	spec.RequiredServices, spec.OptionalServices = required, optional
	return spec
}

type services = map[string]protocol.Service

// printedBy runs a command and returns what it printed; it must end with exit code 0.
func printedBy(t *testing.T, ctx context.Context, s *sdk.Sandbox, service string, command ...string) string {
	t.Helper()
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: command, Service: service})
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%q ended with %v: %s%s", command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// serviceEvents lists the events of a service, as "kind" or "kind reason".
func serviceEvents(h *fleet.History, name string) []string {
	var found []string
	for _, e := range h.Events {
		if e.Service != nil && e.Service.Name == name {
			found = append(found, strings.TrimSpace(string(e.Kind)+" "+e.Reason))
		}
	}
	return found
}

func TestRequiredServicesGateReadyAndAreReachedByName(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	begun := time.Now()
	s, err := f.Client.Create(ctx, withServices(f, services{"web": web("1"), "other": web("1"), "third": small("exec sleep 1000")}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	t.Logf("ready after %s", took.Round(time.Millisecond))
	if took < time.Second {
		t.Errorf("ready after %s, before its services can be", took)
	}
	h := f.History("s")
	kinds := h.Kinds()
	if n := slices.Index(kinds, protocol.SandboxReady); n < 0 || slices.Index(kinds[n:], protocol.ServiceReady) >= 0 || slices.Index(kinds, protocol.ServiceReady) < 0 {
		t.Errorf("the services are not ready before the sandbox: %v", kinds)
	}
	for _, name := range []string{"web", "other", "third"} {
		if status := h.State.Sandbox.Services[name]; status.State != protocol.ServiceStateReady || !status.Required {
			t.Errorf("%s is %+v", name, status)
		}
	}
	if got := printedBy(t, ctx, s, "", "wget", "-q", "-O", "-", "http://web/"); got != "hello" {
		t.Errorf("the primary reads %q from the service", got)
	}
	if got := printedBy(t, ctx, s, "web", "wget", "-q", "-O", "-", "http://other/"); got != "hello" {
		t.Errorf("a service reads %q from another", got)
	}
	if got := printedBy(t, ctx, s, "web", "hostname"); got != "web" {
		t.Errorf("the service's host name is %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, f.Processes("worker")[0])
	f.Judge()
}

func TestARequiredServiceThatFailsFailsTheCreateWithItsOutput(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	withHook := func(v protocol.Service, hooks ...protocol.Hook) protocol.Service {
		v.PostStart = hooks
		return v
	}
	missing := protocol.Service{Image: "127.0.0.1:9/none:1"}
	for name, k := range map[string]struct {
		service protocol.Service
		reason  string
		says    []string
	}{
		"ends":      {small("echo cannot open the database >&2; exit 3"), protocol.ReasonContainerExited, []string{"cannot open the database", "exit code 3"}},
		"not-there": {protocol.Service{Image: fleet.Image, Command: []string{"/no/such"}}, protocol.ReasonStartFailed, []string{"/no/such"}},
		"unhealthy": {withCheck(small("echo waiting for godot; exec sleep 1000"), "echo not yet; false"), protocol.ReasonUnhealthy, []string{"not yet", "waiting for godot"}},
		"hook":      {withHook(small("exec sleep 1000"), hook("echo migration failed; exit 4")), protocol.ReasonHookFailed, []string{"migration failed", "exit code 4"}},
		"image":     {missing, "", []string{"127.0.0.1:9/none:1"}},
		"memory":    {protocol.Service{Image: fleet.Image, Memory: 16 << 20, Command: []string{"sh", "-c", "echo growing; exec tail /dev/zero"}}, protocol.ReasonOOMKilled, []string{"out of memory", "16MiB"}},
	} {
		f.Run(t, name, func(t *testing.T) {
			_, err := f.Client.Create(ctx, withServices(f, services{"db": k.service}, services{"opt": small("exec sleep 1000")}), sdk.WithID(name))
			e := protocol.AsError(err)
			if e == nil || k.reason != "" && e.Reason != k.reason || !strings.HasPrefix(e.Field, "spec.required_services.db") {
				t.Fatalf("got %v, want the reason %s", err, k.reason)
			}
			for _, want := range k.says {
				if !strings.Contains(e.Message, want) {
					t.Errorf("the error does not say %q: %v", want, e)
				}
			}
			if events := serviceEvents(f.History(name), "db"); len(events) == 0 || !strings.HasPrefix(events[len(events)-1], "service.failed") {
				t.Errorf("the history has %q", events)
			}
			f.Eventually(10*time.Second, "nothing is left", func() error {
				if left := append(f.Objects(""), f.Directories(f.Processes("worker")[0])...); len(left) > 0 {
					return fmt.Errorf("%q", left)
				}
				return nil
			})
		})
	}
	f.Judge()
}
