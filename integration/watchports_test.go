package integration

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// portLog collects the events of a watch.
type portLog struct {
	t      *testing.T
	events chan protocol.PortEvent
	ended  chan error
}

func watchPorts(ctx context.Context, t *testing.T, box *sdk.Sandbox, opts ...sdk.PortOption) *portLog {
	ctx, cancel := context.WithCancel(ctx)
	l := &portLog{t, make(chan protocol.PortEvent, 1000), make(chan error, 1)}
	go func() {
		defer close(l.events)
		for e, err := range box.WatchPorts(ctx, opts...) {
			if err != nil {
				l.ended <- err
				return
			}
			l.events <- e
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range l.events { // until it has ended
		}
	})
	return l
}

// wants receives the next events, and compares their kinds and ports.
func (l *portLog) wants(ctx context.Context, all ...string) {
	l.t.Helper()
	for _, want := range all {
		select {
		case e, open := <-l.events:
			got := string(e.Kind)
			if e.Port != 0 {
				got += " " + strconv.Itoa(e.Port)
			}
			if !open {
				l.t.Fatalf("the watch ended with %v, want the event %s", <-l.ended, want)
			}
			if got != want {
				l.t.Fatalf("got the event %s, want %s", got, want)
			}
			if (e.Kind == protocol.PortListening) != (len(e.Addresses) > 0) {
				l.t.Errorf("%s has the addresses %q", got, e.Addresses)
			}
		case <-ctx.Done():
			l.t.Fatalf("no event came, want %s", want)
		}
	}
}

// httpServer starts an HTTP server on a port, and returns a function that ends it.
func httpServer(ctx context.Context, t *testing.T, box *sdk.Sandbox, port int) (end func()) {
	t.Helper()
	e, err := box.Start(ctx, script("exec httpd -f -h /tmp -p "+strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := e.Cancel(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPortsThatStartToListenAreNoticed(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Killable: true})
	ctx := f.Context(3 * time.Minute)
	spec := withServices(f, services{"web": web("0")}, nil)
	box, err := f.Client.Create(ctx, spec, sdk.WithID("ports"))
	if err != nil {
		t.Fatal(err)
	}
	end := httpServer(ctx, t, box, 8080)
	if err := box.WaitForPort(ctx, 8080); err != nil {
		t.Fatal(err)
	}
	l := watchPorts(ctx, t, box)
	l.wants(ctx, "listening 8080", "watching")
	watchPorts(ctx, t, box, sdk.WithService("web")).wants(ctx, "listening 80", "watching")
	endOther := httpServer(ctx, t, box, 9090)
	l.wants(ctx, "listening 9090")
	endOther()
	l.wants(ctx, "closed 9090")

	// The watch continues, and tells what has changed meanwhile.
	f.RestartServer()
	httpServer(ctx, t, box, 9091)
	l.wants(ctx, "listening 9091")
	worker := f.Processes("worker")[0]
	worker.Kill()
	worker.Restart()
	end()
	l.wants(ctx, "closed 8080")
	listsPorts(ctx, t, f)

	if err := box.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-l.ended:
		wantRefusal(t, err, protocol.FailedPrecondition, protocol.ReasonSandboxStopped, protocol.ReasonSandboxNotReady)
	case <-ctx.Done():
		t.Error("the watch did not end with its sandbox")
	}
}

// listsPorts uses the command line.
func listsPorts(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	t.Helper()
	c := &commandLine{t, buildCLI(t), f, t.TempDir()}
	if got := c.expect(0, "PORT", "", "ports", "ports"); !strings.Contains(got, "9091") || strings.Contains(got, "8080") {
		t.Errorf("boxfleet ports printed %q", got)
	}
	var ports []struct {
		Port      int
		Addresses []string
	}
	got := c.expect(0, "", "", "ports", "ports", "--service", "web", "-o", "json")
	if err := json.Unmarshal([]byte(got), &ports); err != nil || len(ports) != 1 || ports[0].Port != 80 ||
		!slices.ContainsFunc(ports[0].Addresses, func(a string) bool { return a == "0.0.0.0" || a == "::" }) {
		t.Errorf("boxfleet ports printed %q, %v", got, err)
	}
	got = c.expect(1, "deadline_exceeded", "", "ports", "ports", "--follow", "--deadline", "3s")
	if !strings.HasPrefix(got, "listening 9091 ") || !strings.Contains(got, "\nwatching\n") {
		t.Errorf("boxfleet ports --follow printed %q", got)
	}
	c.expect(2, "no service", "", "ports", "ports", "--service", "none")
}
