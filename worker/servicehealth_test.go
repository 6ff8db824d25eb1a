package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// What a supervisor said last, before it was killed with its container, makes no service ready.
func TestAServiceIsReadyOnlyWhileItsSupervisorIsConnected(t *testing.T) {
	s := &sandbox{services: map[string]*service{}}
	a, connect := linked(t, s)
	v := &service{
		s: s, name: "db", wake: make(chan struct{}, 1), attached: a,
		proc: control.Primary{Running: true, Since: time.Now().Add(-2 * decide.SteadyFor)},
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

// A service whose container ends during a health test is not stuck in it: it has to look at the container.
func TestAHealthTestEndsWithTheConnection(t *testing.T) {
	a, connect := linked(t, &sandbox{})
	conn := connect()
	ctx, cancel := a.whileConnected(t.Context())
	defer cancel()
	select {
	case <-ctx.Done():
		t.Fatal("it ends while the supervisor is connected")
	case <-time.After(decide.CheckPeriod + decide.CheckPeriod/2):
	}
	conn.Close()
	select {
	case <-ctx.Done():
	case <-time.After(10 * decide.CheckPeriod):
		t.Fatal("it goes on without a supervisor")
	}
}
