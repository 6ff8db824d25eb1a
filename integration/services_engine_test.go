package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestServicesComeBackWithTheEngine stops the Docker Engine, and kills it.
func TestServicesComeBackWithTheEngine(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "services")
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host})
	ctx := f.Context(2 * time.Minute)
	s, err := f.Client.Create(ctx, withServices(f, services{"web": web("0.1")}, services{"opt": small("exec sleep 1000")}), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	stopped, err := f.Client.Create(ctx, withServices(f, services{"web": web("0.1")}, nil), sdk.WithID("stopped"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(){"stopped": e.Stop, "killed": e.Kill} {
		x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1000"}, Service: "web"})
		if err != nil {
			t.Fatal(err)
		}
		f.Eventually(5*time.Second, "it runs", func() error {
			if x, err := s.GetExec(ctx, x.ID()); err != nil || x.Info().State != protocol.ExecStateRunning {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
		end()
		e.Restart()
		restarted := time.Now()
		f.Eventually(2*adoptedWithin, "the service answers", func() error {
			r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"wget", "-q", "-O", "-", "http://web/"}, Timeout: protocol.Duration(5 * time.Second)})
			if r == nil || string(r.Stdout) != "hello\n" {
				time.Sleep(200 * time.Millisecond) // do not fill the history
				return fmt.Errorf("%+v, %v", r, err)
			}
			return nil
		})
		t.Logf("the engine was %s: the service answers after %s", name, time.Since(restarted).Round(time.Millisecond))
		if r, err := x.Wait(ctx); r == nil || r.State != protocol.ExecStateFailed || r.Reason != protocol.ReasonInterrupted {
			t.Errorf("the exec that was interrupted: %+v, %v", r, err)
		}
	}
	if running := docker(t, e.Host, "ps", "--format", "{{.Names}}"); strings.Contains(running, "stopped") || strings.Count(running, "\n") != 2 {
		t.Errorf("running in the end: %q", running)
	}
	for _, s := range []*sdk.Sandbox{s, stopped} {
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, f, w)
	f.Judge()
}
