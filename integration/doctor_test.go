package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// examined is what `boxfleet doctor -o json` prints.
type examined struct {
	Worst    string `json:"worst"`
	Findings []struct {
		Code, Severity, Subject, Problem, Do string
	} `json:"findings"`
}

// examine runs doctor with the given flags.
func (c *commandLine) examine(flags []string) (code int, r examined, text string) {
	c.t.Helper()
	code, stdout, stderr := c.runWith(flags, "", "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		c.t.Fatalf("doctor ended with %d: %v: %s%s", code, err, stdout, stderr)
	}
	return code, r, stdout
}

// finds waits until doctor has a finding about a subject, and ends with at least the exit code for its severity.
func (c *commandLine) finds(code int, finding, subject string) {
	c.t.Helper()
	c.f.Eventually(40*time.Second, "doctor finds "+finding, func() error {
		got, r, text := c.examine(c.f.OperatorFlags())
		for _, found := range r.Findings {
			if got >= code && found.Code == finding && found.Subject == subject {
				return nil
			}
		}
		return fmt.Errorf("doctor ended with %d: %s", got, text)
	})
}

// isWell waits until doctor has neither warnings nor errors, apart from those that depend on the machine.
func (c *commandLine) isWell() {
	c.t.Helper()
	c.f.Eventually(40*time.Second, "doctor finds nothing wrong", func() error {
		_, r, text := c.examine(c.f.OperatorFlags())
		for _, found := range r.Findings {
			if found.Severity != "note" && !slices.Contains([]string{"host.disk", "host.full", "host.seccomp"}, found.Code) {
				return fmt.Errorf("%s", text)
			}
		}
		return nil
	})
}

func TestDoctorFindsEachFaultAndItsEnd(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Servers: 1, Timing: coordinator.Timing{Overdue: 2 * time.Second}})
	c := &commandLine{t, buildCLI(t), f, t.TempDir()}
	ctx := f.Context(3 * time.Minute)
	w := f.Processes("worker")[0]
	c.isWell()
	c.f.Eventually(20*time.Second, "the worker reports its disk", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Hosts().List(f.Context(2 * time.Second)))
		if err != nil || len(hosts) != 1 || hosts[0].DiskSize <= 0 || hosts[0].DiskFree <= 0 {
			return fmt.Errorf("hosts %s, %w", protocol.Encode(hosts), err)
		}
		return nil
	})
	if code, r, text := c.examine(f.Flags()); code > 3 || r.Worst == "error" {
		t.Errorf("for a user, doctor ended with %d: %s", code, text)
	}
	if err := f.Operator.Hosts().Cordon(ctx, w.Name); err != nil {
		t.Fatal(err)
	}
	c.finds(0, "host.cordoned", w.Name)
	if err := f.Operator.Hosts().Drain(ctx, w.Name, 0); err != nil {
		t.Fatal(err)
	}
	c.finds(0, "host.draining", w.Name)
	if err := f.Operator.Hosts().Uncordon(ctx, w.Name); err != nil {
		t.Fatal(err)
	}

	deleted, runs := f.Create("deleted"), f.Create("runs")
	w.Pause()
	if err := deleted.Delete(ctx, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	x, err := runs.Start(ctx, protocol.ExecSpec{Command: []string{"true"}}, sdk.WithID("x"))
	if err != nil {
		t.Fatal(err)
	}
	c.finds(4, "host.silent", w.Name)
	c.finds(4, "owed.exec", "runs/x")
	w.Continue()
	if _, err := x.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	c.isWell()

	w.Stop()
	w = f.Worker("w1", fleet.Role{Clock: 320 * time.Second, Firewall: protocol.FirewallOff})
	c.finds(3, "clock.host", w.Name)
	c.finds(3, "host.firewall_off", w.Name)
	k := f.Processes("coordinator")[0]
	k.Kill()
	c.finds(4, "coordinator.silent", "")
	k.Restart()
	c.finds(3, "clock.host", w.Name)
	w.Stop()
	f.Worker("w1", fleet.Role{})
	c.isWell()
}
