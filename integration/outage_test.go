package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestTheEndOfAnExecIsRecordedAfterAnOutage makes an exec end during an outage. The outage lasts until long after the
// exec's timeout. The sandbox kept running, so the exec ends with the exit code of its command.
func TestTheEndOfAnExecIsRecordedAfterAnOutage(t *testing.T) {
	t.Parallel()
	const timeout, grace, overdue = 2 * time.Second, time.Second, 5 * time.Second
	timing := coordinator.Timing{Overdue: overdue}
	for what, outage := range map[string]func(f *fleet.Fleet, w *fleet.Process, over func()){
		"nats": func(f *fleet.Fleet, _ *fleet.Process, over func()) {
			f.Server.Kill()
			over()
			f.Server = f.Server.Restart()
		},
		"everything but the sandbox": func(f *fleet.Fleet, w *fleet.Process, over func()) {
			killAll(f, "coordinator")
			w.Kill()
			over()
			f.Coordinator("c2", fleet.Role{Timing: timing})
			w.Restart()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := fleet.Start(t, fleet.Options{Workers: -1, Killable: true, Timing: timing})
			w := f.Worker("w1", fleet.Role{})
			s := f.Create("alone")
			ctx := f.Context(time.Minute)
			x, err := s.Start(ctx, protocol.ExecSpec{
				Command: []string{"sh", "-c", "touch /tmp/on; sleep 0.8; head -c 100000 /dev/zero; exit 3"},
				Timeout: protocol.Duration(timeout), Grace: protocol.Duration(grace),
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c",
				"until test -e /tmp/on; do sleep 0.02; done"}}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			outage(f, w, func() {
				f.Eventually(20*time.Second, "the exec is overdue", func() error {
					if time.Since(began) < timeout+grace+overdue {
						return errors.New("its timeout has not passed yet")
					}
					return nil
				})
			})
			result, err := x.Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Stdout) != 100_000 || result.Truncated {
				t.Errorf("%d bytes of output, truncated %v: %v", len(result.Stdout), result.Truncated, result.Error)
			}
			exitsWith(t, result, 3)
			f.Judge()
		})
	}
}
