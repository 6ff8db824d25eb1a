package worker

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

const (
	testWindow = 5 * time.Minute
	testGuard  = 30 * time.Second
)

// ago is what a supervisor says of a command that has been so for a while, and exited before.
func ago(d time.Duration, running bool) control.Primary {
	return control.Primary{Running: running, Restarts: 1, LastExit: new(int), Since: time.Now().Add(-d)}
}

// linked is an attachment whose supervisor can be let connect.
func linked(t *testing.T, s *sandbox) (a *attachment, connect func() net.Conn) {
	t.Helper()
	dir := t.TempDir()
	run, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run.Close() })
	link, err := supervise.Listen(supervise.Config{ControlDir: dir, Run: run, Welcome: control.Welcome{Key: make([]byte, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	link.Expect(os.Getpid())
	a = &attachment{s: s, link: link, crash: decide.CrashLoop{Window: testWindow, Guard: testGuard}}
	return a, func() net.Conn {
		conn, err := net.Dial("unix", filepath.Join(dir, control.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write(control.Append(nil, &control.Notice{Hello: &control.Hello{Version: control.Version}})); err != nil {
			t.Fatal(err)
		}
		if _, err := link.Connected(t.Context()); err != nil {
			t.Fatal(err)
		}
		return conn
	}
}

// What is not heard of, because an engine took its container with it, may have come to rest; and a new
// start of the container begins anew.
func TestAPrimaryCommandIsJudgedByWhatIsHeardOfThisStartOfItsContainer(t *testing.T) {
	s := &sandbox{wake: make(chan struct{}, 1)}
	a, connect := linked(t, s)
	s.attached = a
	s.primary(a, ago(testWindow, false))
	if why := s.loops(0); why != nil {
		t.Errorf("without a supervisor: %v", why)
	}
	connect()
	if why := s.loops(0); why == nil || why.Reason != protocol.ReasonCrashLoop {
		t.Errorf("with one: %v", why)
	}
	// The worker ends it now. The finding stays until the log has it.
	a.link.Close()
	s.primary(a, ago(2*testGuard, true))
	if s.loops(0) == nil {
		t.Error("a finding that the log does not have yet is forgotten")
	}

	b, connect := linked(t, s)
	connect()
	s.attached = b
	s.primary(b, control.Primary{Running: true, Since: time.Now()})
	s.primary(a, ago(testWindow, false)) // a late word
	if s.crashing() || s.loops(0) != nil {
		t.Error("a new start of the container pays for the one before")
	}
	s.attached = nil
	if s.crashing() {
		t.Error("a sandbox without a container that runs may be looping")
	}
}

// A service whose container ended with the engine, or has not been heard of since, has not failed.
func TestAServiceIsNotJudgedByWhatAnEngineEnded(t *testing.T) {
	s := &sandbox{w: &worker{}, wake: make(chan struct{}, 1)}
	a, connect := linked(t, s)
	v := &service{s: s, wake: make(chan struct{}, 1), attached: a, crash: decide.CrashLoop{Window: testWindow, Guard: testGuard}}
	v.output = s.newCommandLog(protocol.ServiceLog(v.name), v.generation, v.directory)
	v.primary(a, ago(testWindow, false))
	if why := v.loops(); why != nil {
		t.Errorf("without a supervisor: %v", why)
	}
	connect()
	if v.loops() == nil {
		t.Error("with one it does not loop")
	}
	s.w.epoch.lost()
	if why := v.loops(); why != nil {
		t.Errorf("after the engine went away: %v", why)
	}
	v.stumbled(context.Canceled)
	if v.due() == 0 {
		t.Error("one that may be looping is not looked at again")
	}
}

// An engine that goes away several times soon after one another leaves no pause behind.
func TestAServiceIsStartedAtOnceByAnEngineThatIsBack(t *testing.T) {
	v := &service{s: &sandbox{w: &worker{}}}
	for range 6 {
		v.pause()
	}
	if v.again != againMost || time.Until(v.notBefore) < againMost-time.Second {
		t.Errorf("the pauses do not grow: %s is next, and nothing before %s", v.again, v.notBefore)
	}
	v.s.w.epoch.lost()
	v.forgetOldEngine()
	if v.again != againFirst || !v.notBefore.IsZero() {
		t.Errorf("after the engine went away: %s is next, and nothing before %s", v.again, v.notBefore)
	}
}
