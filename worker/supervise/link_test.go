package supervise_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

func TestLink_AcceptsOnlyTheExpectedProcess(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	conn, err := net.Dial("unix", filepath.Join(s.dir, "ctl", control.SocketName)) // from this process, not the container's init
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write(control.Append(nil, &control.Notice{Hello: &control.Hello{Version: 1, Boot: "forged"}}))
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
		t.Errorf("a process other than the supervisor was answered: %d bytes, %v", n, err)
	}
	if r := s.sh("echo ok"); string(r.Stdout) != "ok\n" {
		t.Errorf("the supervisor afterwards: %+v", r)
	}
}

func openRun(t *testing.T) *os.Root {
	t.Helper()
	run, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run.Close() })
	return run
}

func TestLink_ListensBelowADeepDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one finds the socket of the first
		link, err := supervise.Listen(supervise.Config{ControlDir: dir, Run: openRun(t), Welcome: control.Welcome{Key: make([]byte, 32)}})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(filepath.Join(dir, control.SocketName))
		if err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("the socket: %v, %v", info, err)
		}
		link.Close()
	}
}

func TestLink_WithoutASupervisorSaysUnavailable(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	link, err := supervise.Listen(supervise.Config{ControlDir: t.TempDir(), Run: openRun(t), Welcome: control.Welcome{Key: make([]byte, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := link.Start(ctx, control.Start{ID: "e", Argv: []string{"true"}}); protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("start: %v", err)
	}
	waiting := make(chan error)
	go func() {
		_, err := link.Connected(context.Background())
		waiting <- err
	}()
	link.Close()
	if err := <-waiting; protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("connected: %v", err)
	}
}

func TestLink_RefusesACommandThatIsTooLarge(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	_, err := s.link.Start(t.Context(), control.Start{ID: "large", Argv: []string{"cat"}, Stdin: make([]byte, control.MaxCommand)})
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonTooLarge {
		t.Errorf("start: %v", err)
	}
	r := s.exec(control.Start{Argv: []string{"wc", "-c"}, Stdin: make([]byte, control.MaxCommand-10_000)})
	if got := strings.TrimSpace(string(r.Stdout)); got != "2087152" {
		t.Errorf("large stdin: %q bytes", got)
	}
}

func TestLink_ManyStrangersDoNotKeepTheSupervisorAway(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.link.Close()
	s.listen(control.Welcome{Key: s.key}, nil)
	defer s.link.Close()
	for range 40 { // before Expect: held, up to a limit
		if conn, err := net.Dial("unix", filepath.Join(s.dir, "ctl", control.SocketName)); err == nil {
			defer conn.Close()
		}
	}
	last, err := net.Dial("unix", filepath.Join(s.dir, "ctl", control.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	last.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := last.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one connection more than are held: %v, want EOF", err)
	}
	s.link.Expect(s.pid)
	s.connected()
}

// Root in a sandbox may dial the socket as fast as it can. That must cost the worker little, and the supervisor must
// get through.
func TestLink_EndlessDiallingIsThrottled(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.link.Close()
	s.listen(control.Welcome{Key: s.key}, nil)
	defer s.link.Close()
	s.link.Expect(s.pid)
	var refused atomic.Int64
	const busy = time.Second
	end := time.Now().Add(busy)
	var dialling sync.WaitGroup
	for range 4 {
		dialling.Go(func() {
			for time.Now().Before(end) {
				conn, err := net.Dial("unix", filepath.Join(s.dir, "ctl", control.SocketName))
				if err != nil { // the kernel's queue is full
					time.Sleep(time.Millisecond)
					continue
				}
				conn.SetReadDeadline(end)
				if _, err := conn.Read(make([]byte, 1)); err != nil && !os.IsTimeout(err) {
					refused.Add(1)
				}
				conn.Close()
			}
		})
	}
	s.connected()
	dialling.Wait()
	if n, most := refused.Load(), int64(8*(busy/(100*time.Millisecond)+2)); n > most {
		t.Errorf("%d were refused within %s, want at most %d", n, busy, most)
	}
}

// A command that waits for a socket which a stopped supervisor does not empty is not written after the lease has ended.
func TestLink_NoStartIsWrittenAfterTheLease(t *testing.T) {
	t.Parallel()
	var over atomic.Bool
	asked := make(chan struct{}, 16)
	link, conn := welcomed(t, func() (time.Duration, error) {
		asked <- struct{}{}
		if over.Load() {
			return control.Clock(), protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, "the lease is over")
		}
		return control.Clock() + time.Hour, nil
	})
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := func(s control.Start) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := link.Start(ctx, s)
			done <- err
		}()
		return done
	}
	first := start(control.Start{ID: "first", Stdin: make([]byte, 3<<19)}) // more than the socket's buffer takes
	<-asked
	over.Store(true)
	second := start(control.Start{ID: "second"})
	var c control.Command
	if _, err := control.Read(conn, control.MaxCommand, nil, &c); err != nil || c.Start == nil || c.Start.ID != "first" {
		t.Fatalf("the first: %v", err)
	}
	select {
	case err := <-second:
		if protocol.AsError(err).Reason != protocol.ReasonLeaseLost {
			t.Errorf("the second: %v, want lease_lost", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second is not refused")
	}
	go link.Forget(ctx, "mark") // written behind it, because a Forget needs no lease
	c = control.Command{}
	if _, err := control.Read(conn, control.MaxCommand, nil, &c); err != nil || c.Forget == nil {
		t.Errorf("on the socket: %+v, %v", c, err)
	}
	cancel()
	<-first
}

// welcomed returns a link with this lease, and the connection of a supervisor to it after the handshake.
func welcomed(t *testing.T, lease func() (time.Duration, error)) (*supervise.Link, net.Conn) {
	t.Helper()
	dir := t.TempDir()
	link, err := supervise.Listen(supervise.Config{
		ControlDir: dir, Run: openRun(t), Welcome: control.Welcome{Key: make([]byte, 32)}, Lease: lease,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	link.Expect(os.Getpid())
	conn, err := net.Dial("unix", filepath.Join(dir, control.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.Write(control.Append(nil, &control.Notice{Hello: &control.Hello{Version: control.Version, Boot: "b"}}))
	var c control.Command
	if _, err := control.Read(conn, control.MaxCommand, nil, &c); err != nil || c.Welcome == nil || c.Until < control.Clock() {
		t.Fatalf("the Welcome: %+v, %v", c, err)
	}
	return link, conn
}
