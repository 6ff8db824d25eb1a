package service

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/attach/attachtest"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/epoch"
	"github.com/boxfleet/boxfleet/worker/output"
)

const (
	testWindow = 5 * time.Minute
	testGuard  = 30 * time.Second
)

// emptyLog is a history without events.
type emptyLog struct{}

func (emptyLog) View(read func(*protocol.State)) { read(&protocol.State{}) }
func (emptyLog) Append(context.Context, uint64, decide.Decision) error {
	return decide.ErrSuperseded
}

// newService returns a service without a container. a is the connection to the service's supervisor.
func newService(a *attach.Attachment) *Service {
	host := &Host{Epoch: &epoch.Epoch{}, CrashWindow: testWindow, CrashGuard: testGuard}
	v := New(Config{
		Host: host, Name: "db", Log: emptyLog{}, Logger: slog.New(slog.DiscardHandler),
		Output: output.New(output.Config{}).NewCommandLog(output.CommandLogConfig{}),
	})
	v.attached = a
	return v
}

// exited returns a supervisor's report on a command that exited the given time ago.
func exited(ago time.Duration) control.Primary {
	return control.Primary{Restarts: 1, LastExit: new(int), Since: time.Now().Add(-ago)}
}

// If the supervisor was killed with its container, its last report must not make the service ready.
func TestAServiceIsReadyOnlyWhileItsSupervisorIsConnected(t *testing.T) {
	a, connect := attachtest.Listen(t)
	v := newService(a)
	v.proc = control.Primary{Running: true, Since: time.Now().Add(-2 * decide.SteadyFor)}

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := v.health.await(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the supervisor is not connected, await returned %v, want that it waits until ctx ends", err)
	}

	connect()
	if err := v.health.await(t.Context()); err != nil {
		t.Errorf("while the supervisor is connected, await returned %v, want that the service is ready", err)
	}
}

// Failed tests during an earlier run of the command say nothing about the present run.
func TestHealthTestsOfAnEarlierRunDoNotCount(t *testing.T) {
	h, a := &health{}, time.Now()
	h.countFor(a)
	h.failures = 2
	if h.countFor(a); h.failures != 2 {
		t.Error("failures of the present run are forgotten")
	}
	if h.countFor(a.Add(time.Second)); h.failures != 0 {
		t.Error("failures of an earlier run count")
	}
}

// Exits count as a crash loop only while the supervisor is connected, and only if the engine did not end the container.
func TestAnEndOfTheEngineIsNotACrashLoopOfTheService(t *testing.T) {
	a, connect := attachtest.Listen(t)
	v := newService(a)
	v.report(exited(testWindow))
	if why := v.restarts.crashLoop(); why != nil {
		t.Errorf("while the supervisor is not connected: %v, want no crash loop", why)
	}
	connect()
	if v.restarts.crashLoop() == nil {
		t.Error("while the supervisor is connected, no crash loop is found")
	}
	v.cfg.Host.Epoch.Lost()
	if why := v.restarts.crashLoop(); why != nil {
		t.Errorf("after the engine ended: %v, want no crash loop", why)
	}
	v.restarts.countEnd(context.Canceled)
	if v.health.due() == 0 {
		t.Error("a service that may be in a crash loop is not assessed again")
	}
}

// Pauses that grew while the engine was ending must not delay the service's start once the engine is back.
func TestAServiceStartsAtOnceWhenTheEngineIsBack(t *testing.T) {
	v := newService(nil)
	for range 6 {
		v.restarts.nextPause()
	}
	if v.restarts.pause != pauseMost || time.Until(v.restarts.notBefore) < pauseMost-time.Second {
		t.Errorf("the pause does not grow to %s: it is %s, and the container does not start before %s", pauseMost,
			v.restarts.pause, v.restarts.notBefore)
	}
	v.cfg.Host.Epoch.Lost()
	v.restarts.resetAfterEngine()
	if v.restarts.pause != pauseFirst || !v.restarts.notBefore.IsZero() {
		t.Errorf("after the engine ended, the pause is %s, and the container does not start before %s", v.restarts.pause,
			v.restarts.notBefore)
	}
}
