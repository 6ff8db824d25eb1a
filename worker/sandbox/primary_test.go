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

// report is a supervisor's report on a command that has exited before, and has been as it is for a while.
func report(ago time.Duration, running bool) control.Primary {
	return control.Primary{Running: running, Restarts: 1, LastExit: new(int), Since: time.Now().Add(-ago)}
}

// listening is the connection to a primary container's supervisor that is yet to connect.
func listening(t *testing.T, s *Sandbox) (p *primary, connect func() net.Conn) {
	a, connect := attachtest.Listen(t)
	return &primary{Attachment: a, s: s, reported: wake.New(),
		crash: decide.CrashLoop{Window: testWindow, Guard: testGuard}}, connect
}

// A command whose supervisor does not report may stay up by now, and a new start of the container begins from nothing.
func TestACrashLoopIsFoundByReportsOfOneStartOfTheContainer(t *testing.T) {
	s := &Sandbox{wake: wake.New()}
	first, connect := listening(t, s)
	first.report(report(testWindow, false))
	if why := first.crashLoop(0); why != nil {
		t.Errorf("without a supervisor: %v", why)
	}
	connect()
	if why := first.crashLoop(0); why == nil || why.Reason != protocol.ReasonCrashLoop {
		t.Errorf("with a supervisor: %v", why)
	}
	// The worker ends the command now. The finding stays until the log has it.
	first.Link.Close()
	first.report(report(2*testGuard, true))
	if first.crashLoop(0) == nil {
		t.Error("a crash loop that the log does not have yet is forgotten")
	}

	second, connect := listening(t, s)
	connect()
	second.report(control.Primary{Running: true, Since: time.Now()})
	first.report(report(testWindow, false)) // a late report
	if second.failing() || second.crashLoop(0) != nil {
		t.Error("crashes of an earlier start of the container count")
	}
}
