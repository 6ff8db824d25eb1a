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

// emptyLog is the history of a sandbox about which nothing was appended.
type emptyLog struct{}

func (emptyLog) View(read func(*protocol.State)) { read(&protocol.State{}) }
func (emptyLog) Append(context.Context, uint64, decide.Decision) error {
	return decide.ErrSuperseded
}

// newService returns a service without a container, and a has its supervisor.
func newService(a *attach.Attachment) *Service {
	host := &Host{Epoch: &epoch.Epoch{}, CrashWindow: testWindow, CrashGuard: testGuard}
	v := New(Config{
		Host: host, Name: "db", Log: emptyLog{}, Logger: slog.New(slog.DiscardHandler),
		Output: output.New(output.Config{}).NewCommandLog(output.CommandLogConfig{}),
	})
	v.attached = a
	return v
}

// exited is a supervisor's report on a command that exited, and has been as it is for a while.
func exited(ago time.Duration) control.Primary {
	return control.Primary{Restarts: 1, LastExit: new(int), Since: time.Now().Add(-ago)}
}

// The last report of a supervisor that was killed with its container makes no service ready.
func TestAServiceIsReadyOnlyWhileItsSupervisorIsConnected(t *testing.T) {
	a, connect := attachtest.Listen(t)
	v := newService(a)
	v.proc = control.Primary{Running: true, Since: time.Now().Add(-2 * decide.SteadyFor)}

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := v.health.await(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a supervisor: %v, want that it waits", err)
	}

	connect()
	if err := v.health.await(t.Context()); err != nil {
		t.Errorf("with a supervisor: %v, want that it is ready", err)
	}
}

// Failed tests of an earlier run of the command say nothing about the present one.
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

// A service whose container ended with the engine, or whose supervisor has not reported since, has not failed.
func TestAnEndOfTheEngineIsNoCrashLoopOfTheService(t *testing.T) {
	a, connect := attachtest.Listen(t)
	v := newService(a)
	v.report(exited(testWindow))
	if why := v.restarts.crashLoop(); why != nil {
		t.Errorf("without a supervisor: %v", why)
	}
	connect()
	if v.restarts.crashLoop() == nil {
		t.Error("with a supervisor, no crash loop is found")
	}
	v.cfg.Host.Epoch.Lost()
	if why := v.restarts.crashLoop(); why != nil {
		t.Errorf("after the engine went away: %v", why)
	}
	v.restarts.countEnd(context.Canceled)
	if v.health.due() == 0 {
		t.Error("a service that may loop is not assessed again")
	}
}

// An engine that goes away several times in quick succession leaves no pause behind.
func TestAServiceStartsAtOnceWhenTheEngineIsBack(t *testing.T) {
	v := newService(nil)
	for range 6 {
		v.restarts.nextPause()
	}
	if v.restarts.pause != pauseMost || time.Until(v.restarts.notBefore) < pauseMost-time.Second {
		t.Errorf("the pauses do not grow: the next is %s, and nothing starts before %s", v.restarts.pause,
			v.restarts.notBefore)
	}
	v.cfg.Host.Epoch.Lost()
	v.restarts.resetAfterEngine()
	if v.restarts.pause != pauseFirst || !v.restarts.notBefore.IsZero() {
		t.Errorf("after the engine went away: the next pause is %s, and nothing starts before %s", v.restarts.pause,
			v.restarts.notBefore)
	}
}
