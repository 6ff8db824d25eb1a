package worker

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// endsOf is how often a command has ended since its container was started.
func endsOf(p *control.Primary) int {
	ends := p.Restarts
	if !p.Running && (p.LastExit != nil || p.Error != nil) {
		ends++
	}
	return ends
}

// tellEnds appends that the service's command has ended, once for the ends that were heard of together.
// Their rate is bounded by the pauses of the supervisor, which starts it again. Of a service that has
// failed only an end with another exit code is told: such a one may end for weeks.
func (v *service) tellEnds(ctx context.Context) {
	a := v.s.attachedTo(v.name)
	p := v.process()
	ends := endsOf(&p)
	if a == nil || ends == 0 {
		return
	}
	status := v.status()
	told := status.Boot == a.boot && status.Ends >= ends
	same := status.LastExit != nil && p.LastExit != nil && *status.LastExit == *p.LastExit
	if told || status.State == protocol.ServiceStateFailed && same {
		return
	}
	e := protocol.Event{Kind: protocol.ServiceEnded, Error: p.Error,
		Service: &protocol.ServiceDetails{Name: v.name, ExitCode: p.LastExit, Ends: ends, Boot: a.boot}}
	if outOfMemory(&p) {
		e.Reason = protocol.ReasonOOMKilled
	}
	if err := v.append(ctx, e); err != nil {
		v.s.log.Debug("the end of a service's command is not appended", "service", v.name, "error", err)
	}
}
