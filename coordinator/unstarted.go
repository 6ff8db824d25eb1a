package coordinator

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// unstarted counts since when the watchdog has seen execs accepted and not started, or not ended in time,
// by this process's clock: those of the coordinator that accepted an exec and of its worker may be set
// otherwise. A new leader counts from when it sees one first: where NATS was away, or everything, a worker
// comes back with the end of an exec as soon as the leader, and needs the time to say it.
type unstarted struct {
	before, now map[execKey]time.Time
}

type execKey struct {
	sandbox key
	exec    string
}

func newUnstarted() *unstarted { return &unstarted{now: map[execKey]time.Time{}} }

// begin begins a scan: what the last one did not see is forgotten.
func (u *unstarted) begin() { u.before, u.now = u.now, make(map[execKey]time.Time) }

func (u *unstarted) since(sandbox key, exec string, at time.Time) time.Duration {
	k := execKey{sandbox, exec}
	first, seen := u.before[k]
	if !seen {
		first = at
	}
	u.now[k] = first
	return at.Sub(first)
}

// execWaits says what an exec waits for that is accepted and not started, as far as a coordinator can
// see. host is nil where none is known.
func execWaits(b *protocol.Sandbox, host *protocol.Host) string {
	switch {
	case b.State == protocol.StatePending:
		return "the sandbox is made again on another host"
	case host == nil || host.State == protocol.HostLost:
		return "the host of worker " + b.Worker + " is lost"
	case host.State == protocol.HostSuspect:
		return "worker " + b.Worker + " does not answer"
	case host.State == protocol.HostUnhealthy:
		return "worker " + b.Worker + " cannot reach its engine: " + host.Problem
	case b.Error != nil:
		return "worker " + b.Worker + " starts the sandbox again: " + b.Error.Error()
	}
	return "the sandbox's supervisor is not connected to worker " + b.Worker + "; its container may be paused, or just be restarted"
}
