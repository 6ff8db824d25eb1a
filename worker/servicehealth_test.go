package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// What a supervisor said last, before it was killed with its container, makes no service ready.
func TestAServiceIsReadyOnlyWhileItsSupervisorIsConnected(t *testing.T) {
	s := &sandbox{services: map[string]*service{}}
	a, connect := linked(t, s)
	v := &service{
		s: s, name: "db", wake: make(chan struct{}, 1), attached: a,
		proc: control.Primary{Running: true, Since: time.Now().Add(-2 * steadyFor)},
	}
	s.services[v.name] = v

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := v.untilHealthy(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a supervisor: %v, want that it waits", err)
	}

	connect()
	if err := v.untilHealthy(t.Context()); err != nil {
		t.Errorf("with one: %v, want that it is ready", err)
	}
}
