package worker

import (
	"context"

	"github.com/boxfleet/boxfleet/worker/decide"
)

// tellEnds appends that the service's command has ended, once for the ends that were heard of together.
// Their rate is bounded by the pauses of the supervisor, which starts it again. Of a service that has
// failed only an end with another exit code is told: such a one may end for weeks.
func (v *service) tellEnds(ctx context.Context) {
	a := v.s.attachedTo(v.name)
	p := v.process()
	if a == nil || decide.EndsOf(&p) == 0 {
		return
	}
	status := v.status()
	events := decide.ServiceEnded(v.name, a.boot, &status, &p)
	if len(events) == 0 {
		return
	}
	if err := v.append(ctx, events); err != nil {
		v.s.log.Debug("the end of a service's command is not appended", "service", v.name, "error", err)
	}
}
