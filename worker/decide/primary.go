package decide

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	// SteadyFor is how long a command has to run before it counts as running.
	SteadyFor = 500 * time.Millisecond
	// CheckPeriod is the pause between two checks of a command that may not stay up.
	CheckPeriod = time.Second
)

// PrimaryRun is the newest report on the sandbox's own command.
type PrimaryRun struct {
	control.Primary
	Boot string // of the supervisor that reported it
}

// ended reports whether the command was started, or could not be, and does not run.
func (r *PrimaryRun) ended() bool { return !r.Running && (r.LastExit != nil || r.Error != nil) }

// PrimaryEvents are the starts and ends of the sandbox's own command that the log does not have.
func PrimaryEvents(b *protocol.Sandbox, run *PrimaryRun) []protocol.Event {
	if len(b.Spec.Command) == 0 {
		return nil
	}
	return run.events(b.Primary)
}

// events are the starts and ends that known lacks. A run that began and ended while the worker was away has no
// events; the number of restarts shows it.
func (r *PrimaryRun) events(known *protocol.PrimaryStatus) []protocol.Event {
	if known == nil || known.Boot != r.Boot {
		known = &protocol.PrimaryStatus{State: protocol.PrimaryHasEnded, Restarts: -1}
	}
	started := protocol.Event{Kind: protocol.PrimaryStarted,
		Primary: &protocol.PrimaryDetails{Boot: r.Boot, Restarts: r.Restarts}}
	open := known.State == protocol.PrimaryRunning
	switch {
	case known.Restarts > r.Restarts: // an outdated report
	case r.Running && known.Restarts == r.Restarts:
	case r.Running:
		if before := r.Restarts - 1; open || known.Restarts < before {
			return []protocol.Event{r.endOf(before), started}
		}
		return []protocol.Event{started}
	case !r.ended() || known.Restarts == r.Restarts && !open:
	case r.Error != nil || known.Restarts == r.Restarts:
		return []protocol.Event{r.endOf(r.Restarts)}
	default:
		return []protocol.Event{started, r.endOf(r.Restarts)}
	}
	return nil
}

// endOf is the event of the last reported end, as that of the run with this number.
func (r *PrimaryRun) endOf(run int) protocol.Event {
	e := protocol.Event{Kind: protocol.PrimaryEnded, Error: r.Error,
		Primary: &protocol.PrimaryDetails{Boot: r.Boot, Restarts: run, ExitCode: r.LastExit, OOMKills: r.OOMKills}}
	switch {
	case r.Error != nil:
		e.Reason = r.Error.Reason
	case OutOfMemory(&r.Primary):
		e.Reason = protocol.ReasonOOMKilled
	}
	return e
}

// Steady returns how long to wait before asking again whether the command stays up, 0 if it has run for SteadyFor.
// The error says why it cannot be started, or how a run that began at from or later ended too early.
func (r *PrimaryRun) Steady(spec *protocol.SandboxSpec, from, now time.Time) (time.Duration, *protocol.Error) {
	switch {
	case r.Error != nil:
		return 0, r.Unstartable()
	case r.Running:
		return max(0, SteadyFor-now.Sub(r.Since)), nil
	case r.LastExit == nil || r.Began.Before(from): // the supervisor is about to start or restart it
		return CheckPeriod, nil
	case !r.Began.IsZero() && r.Since.Sub(r.Began) >= SteadyFor:
		return 0, nil
	case OutOfMemory(&r.Primary):
		why := protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled,
			"the sandbox's command ran out of memory (%s) as it started", spec.Memory)
		why.Field = "spec.memory"
		return 0, why
	}
	why := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCommandExited,
		"the sandbox's command ended at once, with exit code %d; it is meant to run as long as the sandbox does: "+
			"leave it out for a sandbox that waits for execs, and run what ends by itself as an exec", *r.LastExit)
	why.Field = "spec.command"
	return 0, why
}

// Unstartable is the error of a command that cannot be started.
func (r *PrimaryRun) Unstartable() *protocol.Error {
	why := *r.Error
	why.Message = "the sandbox's command cannot be started: " + why.Message
	if r.LastExit != nil {
		why.Message += protocol.Errorf("", "", " (exit code %d)", *r.LastExit).Message
	}
	if why.Field == "" {
		why.Field = "spec.command"
	}
	return &why
}

// OutOfMemory reports whether a command's last run was killed because it ran out of memory.
func OutOfMemory(p *control.Primary) bool {
	return p.LastExit != nil && *p.LastExit == KilledExit && p.OOMKills > 0
}
