package sandbox

import (
	"net"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/attach/attachtest"
	"github.com/boxfleet/boxfleet/worker/decide"
)

const (
	testWindow = 5 * time.Minute
	testGuard  = 30 * time.Second
)

// report returns a supervisor's report that a command started or ended the given time ago. The command has exited once
// before.
func report(ago time.Duration, running bool) control.Primary {
	return control.Primary{Running: running, Restarts: 1, LastExit: new(int), Since: time.Now().Add(-ago)}
}

// listening returns a primary that listens for its supervisor, and a function that connects to it as the supervisor.
func listening(t *testing.T, s *Sandbox) (p *primary, connect func() net.Conn) {
	a, connect := attachtest.Listen(t)
	return &primary{Attachment: a, s: s, reported: wake.New(),
		crash: decide.CrashLoop{Window: testWindow, Guard: testGuard}}, connect
}

// Without a connection to the supervisor, the worker does not know whether the command has stopped crashing. The
// crashes of an earlier start of the container do not count.
func TestACrashLoopIsFoundByReportsOnOneStartOfTheContainer(t *testing.T) {
	s := &Sandbox{wake: wake.New()}
	first, connect := listening(t, s)
	first.report(report(testWindow, false))
	if why := first.crashLoop(0); why != nil {
		t.Errorf("while the supervisor is not connected: %v, want no error", why)
	}
	connect()
	if why := first.crashLoop(0); why == nil || why.Reason != protocol.ReasonCrashLoop {
		t.Errorf("while the supervisor is connected: %v, want reason crash_loop", why)
	}
	// The worker now ends the command. crashLoop must still return the error, until the worker has appended it.
	first.Link.Close()
	first.report(report(2*testGuard, true))
	if first.crashLoop(0) == nil {
		t.Error("a crash loop that was found is forgotten before it is in the log")
	}

	second, connect := listening(t, s)
	connect()
	second.report(control.Primary{Running: true, Since: time.Now()})
	first.report(report(testWindow, false)) // a late report
	if second.failing() || second.crashLoop(0) != nil {
		t.Error("crashes of an earlier start of the container count")
	}
}
