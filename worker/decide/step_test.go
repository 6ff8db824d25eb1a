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
		"if the engine did not answer, nothing is done":       {mine(protocol.StateReady), Inspection{}, Nothing},
		"a sandbox that the log does not know is not touched": {&protocol.Sandbox{}, running, Nothing},
		"a pending sandbox is created":                        {mine(protocol.StatePending), absent, Create},
		"an interrupted create is continued":                  {mine(protocol.StatePending), made, Create},
		"a pending sandbox without a host waits": {mine(protocol.StatePending,
			func(b *protocol.Sandbox) { b.Assigned = false }), exited, Nothing},
		"a resuming sandbox is resumed": {mine(protocol.StatePending,
			func(b *protocol.Sandbox) { b.Resuming = true }), exited, Resume},
		"a ready and connected sandbox is settled":         {mine(protocol.StateReady), attached, Nothing},
		"a restart that the log does not have is appended": {mine(protocol.StateReady), restarted, Attach},
		"a ready sandbox that is not connected is attached": {
			mine(protocol.StateReady), running, Attach},
		"a ready sandbox whose container ended is revived":   {mine(protocol.StateReady), exited, Revive},
		"a ready sandbox whose container is gone is revived": {mine(protocol.StateReady), absent, Revive},
		"a ready sandbox that should stop is stopped": {mine(protocol.StateReady, desired(protocol.StateStopped)),
			attached, Stop},
		"a stopped sandbox is settled": {mine(protocol.StateStopped, desired(protocol.StateStopped)),
			exited, Nothing},
		"a stopped sandbox whose container runs is halted": {mine(protocol.StateStopped, desired(protocol.StateStopped)),
			running, Halt},
		"a failed create is discarded":                 {mine(protocol.StateFailed), made, Discard},
		"a failed create that left nothing is settled": {mine(protocol.StateFailed), absent, Nothing},
		"a sandbox that failed after it was ready is halted": {
			mine(protocol.StateFailed, wasReady), running, Halt},
		"a halted sandbox that failed after it was ready is settled": {
			mine(protocol.StateFailed, wasReady), exited, Nothing},
		"a deleting sandbox is deleted": {mine(protocol.StateDeleting, desired(protocol.StateDeleted)),
			attached, Delete},
		"a deleting sandbox that is gone from the host is deleted": {
			mine(protocol.StateDeleting, desired(protocol.StateDeleted)), absent, Delete},
		"the directory of a deleted sandbox is discarded":         {mine(protocol.StateDeleted), rest, Discard},
		"a deleted sandbox that is gone from the host is settled": {mine(protocol.StateDeleted), absent, Nothing},
		"another host's sandbox that is on this host is discarded": {mine(protocol.StateReady,
			func(b *protocol.Sandbox) { b.HostID = "h2" }), running, Discard},
		"another host's sandbox that is not on this host is settled": {mine(protocol.StateReady,
			func(b *protocol.Sandbox) { b.HostID = "h2" }), absent, Nothing},
		"a running service of a stopped sandbox is halted": {mine(protocol.StateStopped),
			Inspection{Container: ContainerExited, Generation: 1, Services: true}, Halt},
		"the container of another generation is discarded": {mine(protocol.StatePending), old, Discard},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Next(c.b, host, c.o); got != c.want {
				t.Errorf("Next(%s desired %s, %+v) = %q, want %q", c.b.State, c.b.Desired, c.o, got, c.want)
			}
		})
	}
}
