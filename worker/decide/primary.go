package decide

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	// SteadyFor is how long a command has to run before a create or a service counts it as started.
	SteadyFor = 500 * time.Millisecond
	// CheckPeriod is the pause between two checks of a command that may end soon.
	CheckPeriod = time.Second
)

// PrimaryRun is the newest report on the sandbox's own command.
type PrimaryRun struct {
	control.Primary
	Boot string // boot of the supervisor that made the report
}

// ended reports whether the command does not run because it has exited or could not be started.
func (r *PrimaryRun) ended() bool { return !r.Running && (r.LastExit != nil || r.Error != nil) }

// PrimaryEvents returns events for the starts and ends of the sandbox's own command that the log lacks.
func PrimaryEvents(b *protocol.Sandbox, run *PrimaryRun) []protocol.Event {
	if len(b.Spec.Command) == 0 {
		return nil
	}
	return run.events(b.Primary)
}

// events returns events for the starts and ends that the log lacks. The parameter known is the command's status in the
// log. A run that began and ended between two reports has no events, but is counted in the number of restarts.
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

// endOf returns the event that ends the run with this number. The event has the exit code and the error of the
// command's last end.
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

// Steady returns 0 if the command has run for SteadyFor. Otherwise it returns how long to wait before calling Steady
// again. It returns an error if the command cannot be started, or if a run of the command ended too early. A run that
// began before the time from does not count.
func (r *PrimaryRun) Steady(spec *protocol.SandboxSpec, from, now time.Time) (time.Duration, *protocol.Error) {
	switch {
	case r.Error != nil:
		return 0, r.Unstartable()
	case r.Running:
		return max(0, SteadyFor-now.Sub(r.Since)), nil
	case r.LastExit == nil || r.Began.Before(from): // the supervisor will start the command, or start it again
		return CheckPeriod, nil
	case !r.Began.IsZero() && r.Since.Sub(r.Began) >= SteadyFor:
		return 0, nil
	case OutOfMemory(&r.Primary):
		why := protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled,
			"the sandbox's command ran out of memory (%s) during its start", spec.Memory)
		why.Field = "spec.memory"
		return 0, why
	}
	why := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCommandExited,
		"the sandbox's command ended right after its start, with exit code %d; this command must run until the sandbox "+
			"ends: run a command that ends by itself as an exec, and leave spec.command out if the sandbox needs no "+
			"command of its own", *r.LastExit)
	why.Field = "spec.command"
	return 0, why
}

// Unstartable returns the error of a command that cannot be started.
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
