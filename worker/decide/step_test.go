package decide

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
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
	absent := Inspection{Container: ContainerAbsent}
	made := Inspection{Container: ContainerMade, Generation: 1, Leftovers: true}
	running := Inspection{Container: ContainerRunning, Generation: 1, Leftovers: true}
	attached := Inspection{Container: ContainerRunning, Generation: 1, Leftovers: true, Connected: true}
	restarted := attached
	restarted.Boot = "another"
	exited := Inspection{Container: ContainerExited, Generation: 1, Leftovers: true}
	old := Inspection{Container: ContainerRunning, Generation: 7, Leftovers: true}
	rest := Inspection{Container: ContainerAbsent, Leftovers: true}

	for name, c := range map[string]struct {
		b    *protocol.Sandbox
		o    Inspection
		want Operation
	}{
		"an engine that did not answer says nothing":          {mine(protocol.StateReady), Inspection{}, Nothing},
		"a sandbox that the log does not know is not touched": {&protocol.Sandbox{}, running, Nothing},
		"pending is created":                                  {mine(protocol.StatePending), absent, Create},
		"pending resumes after a crash":                       {mine(protocol.StatePending), made, Create},
		"pending without a host waits": {mine(protocol.StatePending,
			func(b *protocol.Sandbox) { b.Assigned = false }), exited, Nothing},
		"resuming starts the container": {mine(protocol.StatePending,
			func(b *protocol.Sandbox) { b.Resuming = true }), exited, Resume},
		"ready and attached is settled":                    {mine(protocol.StateReady), attached, Nothing},
		"a restart that the log does not have is appended": {mine(protocol.StateReady), restarted, Attach},
		"ready after a restart of the worker is adopted":   {mine(protocol.StateReady), running, Attach},
		"ready whose container ended is revived":           {mine(protocol.StateReady), exited, Revive},
		"ready whose container is gone is revived":         {mine(protocol.StateReady), absent, Revive},
		"a stop request stops": {mine(protocol.StateReady, desired(protocol.StateStopped)),
			attached, Stop},
		"stopped is settled": {mine(protocol.StateStopped, desired(protocol.StateStopped)),
			exited, Nothing},
		"stopped but running is halted": {mine(protocol.StateStopped, desired(protocol.StateStopped)),
			running, Halt},
		"a failed create leaves nothing":               {mine(protocol.StateFailed), made, Discard},
		"a failed create that left nothing is settled": {mine(protocol.StateFailed), absent, Nothing},
		"failed later is halted and kept":              {mine(protocol.StateFailed, wasReady), running, Halt},
		"failed later and halted is settled":           {mine(protocol.StateFailed, wasReady), exited, Nothing},
		"deleting is deleted": {mine(protocol.StateDeleting, desired(protocol.StateDeleted)),
			attached, Delete},
		"deleting with nothing left still appends it": {mine(protocol.StateDeleting, desired(protocol.StateDeleted)),
			absent, Delete},
		"deleted leftovers are discarded": {mine(protocol.StateDeleted), rest, Discard},
		"deleted and gone is settled":     {mine(protocol.StateDeleted), absent, Nothing},
		"another host's sandbox is discarded here": {mine(protocol.StateReady,
			func(b *protocol.Sandbox) { b.HostID = "h2" }), running, Discard},
		"another host's sandbox that is not here is settled": {mine(protocol.StateReady,
			func(b *protocol.Sandbox) { b.HostID = "h2" }), absent, Nothing},
		"a stopped sandbox's service that runs is stopped": {mine(protocol.StateStopped),
			Inspection{Container: ContainerExited, Generation: 1, Services: true}, Halt},
		"an old generation's container is discarded": {mine(protocol.StatePending), old, Discard},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Next(c.b, host, c.o); got != c.want {
				t.Errorf("Next(%s desired %s, %+v) = %q, want %q", c.b.State, c.b.Desired, c.o, got, c.want)
			}
		})
	}
}
