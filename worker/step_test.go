package worker

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestNextComparesTheLogWithTheHost(t *testing.T) {
	const host = "h1"
	mine := func(state protocol.SandboxState, change ...func(*protocol.Sandbox)) *protocol.Sandbox {
		b := &protocol.Sandbox{State: state, Desired: protocol.StateReady, HostID: host, Generation: 1, Assigned: true}
		for _, c := range change {
			c(b)
		}
		return b
	}
	desired := func(d protocol.SandboxState) func(*protocol.Sandbox) {
		return func(b *protocol.Sandbox) { b.Desired = d }
	}
	wasReady := func(b *protocol.Sandbox) { b.ReadyAt = time.Unix(1, 0) }
	absent := observed{container: containerAbsent}
	made := observed{container: containerMade, generation: 1, leftovers: true}
	running := observed{container: containerRunning, generation: 1, leftovers: true}
	attached := observed{container: containerRunning, generation: 1, leftovers: true, connected: true}
	restarted := attached
	restarted.boot = "another"
	exited := observed{container: containerExited, generation: 1, leftovers: true}
	old := observed{container: containerRunning, generation: 7, leftovers: true}
	rest := observed{container: containerAbsent, leftovers: true}

	for name, c := range map[string]struct {
		b    *protocol.Sandbox
		o    observed
		want operation
	}{
		"an engine that did not answer says nothing":       {mine(protocol.StateReady), observed{}, opNothing},
		"what the log does not know is not touched":        {&protocol.Sandbox{}, running, opNothing},
		"pending is created":                               {mine(protocol.StatePending), absent, opCreate},
		"pending goes on from what a crash left":           {mine(protocol.StatePending), made, opCreate},
		"pending without a host waits":                     {mine(protocol.StatePending, func(b *protocol.Sandbox) { b.Assigned = false }), exited, opNothing},
		"resuming starts the container":                    {mine(protocol.StatePending, func(b *protocol.Sandbox) { b.Resuming = true }), exited, opResume},
		"ready and attached is settled":                    {mine(protocol.StateReady), attached, opNothing},
		"a start that the log has not got yet is told":     {mine(protocol.StateReady), restarted, opAttach},
		"ready after a restart of the worker is adopted":   {mine(protocol.StateReady), running, opAttach},
		"ready whose container ended is revived":           {mine(protocol.StateReady), exited, opRevive},
		"ready whose container is gone is revived":         {mine(protocol.StateReady), absent, opRevive},
		"a stop request stops":                             {mine(protocol.StateReady, desired(protocol.StateStopped)), attached, opStop},
		"stopped is settled":                               {mine(protocol.StateStopped, desired(protocol.StateStopped)), exited, opNothing},
		"stopped but running is halted":                    {mine(protocol.StateStopped, desired(protocol.StateStopped)), running, opHalt},
		"a failed create leaves nothing":                   {mine(protocol.StateFailed), made, opDiscard},
		"a failed create that left nothing is settled":     {mine(protocol.StateFailed), absent, opNothing},
		"failed later is halted and kept":                  {mine(protocol.StateFailed, wasReady), running, opHalt},
		"failed later and halted is settled":               {mine(protocol.StateFailed, wasReady), exited, opNothing},
		"deleting is deleted":                              {mine(protocol.StateDeleting, desired(protocol.StateDeleted)), attached, opDelete},
		"deleting with nothing left still says so":         {mine(protocol.StateDeleting, desired(protocol.StateDeleted)), absent, opDelete},
		"deleted leftovers are discarded":                  {mine(protocol.StateDeleted), rest, opDiscard},
		"deleted and gone is settled":                      {mine(protocol.StateDeleted), absent, opNothing},
		"another host's sandbox is discarded here":         {mine(protocol.StateReady, func(b *protocol.Sandbox) { b.HostID = "h2" }), running, opDiscard},
		"another host's sandbox that is not here is fine":  {mine(protocol.StateReady, func(b *protocol.Sandbox) { b.HostID = "h2" }), absent, opNothing},
		"a stopped sandbox's service that runs is stopped": {mine(protocol.StateStopped), observed{container: containerExited, generation: 1, services: true}, opHalt},
		"an old generation's container is discarded":       {mine(protocol.StatePending), old, opDiscard},
	} {
		t.Run(name, func(t *testing.T) {
			if got := next(c.b, host, c.o); got != c.want {
				t.Errorf("next(%s desired %s, %+v) = %q, want %q", c.b.State, c.b.Desired, c.o, got, c.want)
			}
		})
	}
}

func TestS23_CrashLoopIsFoundWithinItsWindow(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	fresh := func() *crashLoop { return &crashLoop{window: 300 * time.Second, guard: 30 * time.Second} }

	c := fresh()
	says := func(s float64, running bool, exits int) { // the supervisor, of a command that changed then
		p := control.Primary{Running: running, Restarts: exits, Since: at(s)}
		if exits > 0 {
			p.LastExit = new(int)
		}
		c.heard(&p, at(s))
	}
	exits := 0
	for s := 0.0; s < 300; s += 10 { // starts and exits, again and again
		says(s, true, exits)
		exits++
		says(s+1, false, exits)
		if c.looping(at(s + 5)) {
			t.Fatalf("looping after %v s, the window is 300 s", s+5)
		}
	}
	if !c.looping(at(302)) {
		t.Error("not looping after the window")
	}

	c = fresh()
	says(0, true, 0)
	says(1, false, 1)
	says(290, true, 1)
	if c.failing(at(321)) || c.looping(at(321)) {
		t.Error("looping although it has run for the guard")
	}
	says(330, false, 2)
	if c.looping(at(340)) {
		t.Error("an exit after a long run begins a new window")
	}

	if fresh().looping(at(1e6)) {
		t.Error("looping although it never exited")
	}
}
