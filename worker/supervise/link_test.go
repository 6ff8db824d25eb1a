package supervise_test

import (
	"context"
	"errors"
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
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

func TestLink_AcceptsOnlyTheExpectedProcess(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	// This process is not the container's init.
	conn, err := net.Dial("unix", filepath.Join(s.dir, "ctl", control.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The link may have closed the connection already.
	_, _ = conn.Write(control.Append(nil, &control.Notice{Hello: &control.Hello{Version: 1, Boot: "forged"}}))
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
		t.Errorf("the connection of another process got %d bytes and error %v, want it closed", n, err)
	}
	if r := s.sh("echo ok"); string(r.Stdout) != "ok\n" {
		t.Errorf("an exec after the forged connection ended with %+v", r)
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
	for range 2 { // the second link replaces the socket of the first link
		link, err := supervise.Listen(supervise.Config{ControlDir: dir, Run: openRun(t),
			Welcome: control.Welcome{Key: make([]byte, 32)}})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(filepath.Join(dir, control.SocketName))
		if err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("the socket is %v, want mode 0600; error %v", info, err)
		}
		link.Close()
	}
}

func TestLink_WithoutASupervisorSaysUnavailable(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	link, err := supervise.Listen(supervise.Config{ControlDir: t.TempDir(), Run: openRun(t),
		Welcome: control.Welcome{Key: make([]byte, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = link.Start(ctx, control.Start{ID: "e", Argv: []string{"true"}})
	if protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("Start without a supervisor: got %v, want unavailable", err)
	}
	waiting := make(chan error)
	go func() {
		_, err := link.Connected(context.Background())
		waiting <- err
	}()
	link.Close()
	if err := <-waiting; protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("Connected after Close: got %v, want unavailable", err)
	}
}

func TestLink_RefusesACommandThatIsTooLarge(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	_, err := s.link.Start(t.Context(), control.Start{ID: "large", Argv: []string{"cat"},
		Stdin: make([]byte, control.MaxCommand)})
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonTooLarge {
		t.Errorf("a command that is too large: got %v, want too_large", err)
	}
	r := s.exec(control.Start{Argv: []string{"wc", "-c"}, Stdin: make([]byte, control.MaxCommand-10_000)})
	if got := strings.TrimSpace(string(r.Stdout)); got != "2087152" {
		t.Errorf("the command read %q bytes from a large stdin, want 2087152", got)
	}
}

func TestLink_ManyStrangersDoNotKeepTheSupervisorAway(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.link.Close()
	s.listen(control.Welcome{Key: s.key}, nil)
	defer s.link.Close()
	for range 40 { // before Expect is called, the link holds a limited number of connections
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
		t.Errorf("a connection beyond the limit: got %v, want EOF", err)
	}
	s.link.Expect(s.pid)
	s.connected()
}

// dial connects to a link's socket, and waits while the kernel's queue of connections is full. It reports whether the
// link closed the connection before the given time.
func dial(t *testing.T, socket string, end time.Time) (refused bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return false
	}
	defer unix.Close(fd)
	left := unix.NsecToTimeval(max(time.Until(end), time.Millisecond).Nanoseconds())
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &left),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left))
	if err != nil {
		t.Error(err)
		return false
	}
	if unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) != nil {
		return false
	}
	n, err := unix.Read(fd, make([]byte, 1))
	return n == 0 && err == nil || err == unix.ECONNRESET
}

// Root in a sandbox may dial the socket as fast as it can. That must cost the worker little, and must not keep the
// supervisor from connecting.
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
				if dial(t, filepath.Join(s.dir, "ctl", control.SocketName), end) {
					refused.Add(1)
				}
			}
		})
	}
	s.connected()
	dialling.Wait()
	if n, most := refused.Load(), int64(8*(busy/(100*time.Millisecond)+2)); n > most {
		t.Errorf("the link refused %d connections within %s, want at most %d", n, busy, most)
	}
}

// A stopped supervisor does not read its socket, so a command may wait to be written until the lease has ended. The
// link must not write the command after that.
func TestLink_NoStartIsWrittenAfterTheLease(t *testing.T) {
	t.Parallel()
	var over atomic.Bool
	asked := make(chan struct{}, 16)
	link, conn := welcomed(t, func() (time.Duration, error) {
		asked <- struct{}{}
		if over.Load() {
			return control.Clock(), protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, "the lease ended")
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
	first := start(control.Start{ID: "first", Stdin: make([]byte, 3<<19)}) // larger than the socket's buffer
	<-asked
	over.Store(true)
	second := start(control.Start{ID: "second"})
	var c control.Command
	if _, err := control.Read(conn, control.MaxCommand, nil, &c); err != nil || c.Start == nil || c.Start.ID != "first" {
		t.Fatalf("the first command on the socket is %+v, want the first start; error %v", c, err)
	}
	select {
	case err := <-second:
		if protocol.AsError(err).Reason != protocol.ReasonLeaseLost {
			t.Errorf("the second start: got %v, want lease_lost", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second start was not refused within 10 s after the lease ended")
	}
	go link.Forget(ctx, "mark") // a Forget needs no lease, so it is written next
	c = control.Command{}
	if _, err := control.Read(conn, control.MaxCommand, nil, &c); err != nil || c.Forget == nil {
		t.Errorf("the next command on the socket is %+v, want the Forget; error %v", c, err)
	}
	cancel()
	<-first
}

// welcomed returns a link with this lease, and the supervisor's end of a connection to the link. The handshake is done.
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
	hello := control.Notice{Hello: &control.Hello{Version: control.Version, Boot: "b"}}
	if _, err := conn.Write(control.Append(nil, &hello)); err != nil {
		t.Fatal(err)
	}
	var c control.Command
	_, err = control.Read(conn, control.MaxCommand, nil, &c)
	if err != nil || c.Welcome == nil || c.Until < control.Clock() {
		t.Fatalf("the answer to the Hello is %+v, want a Welcome with a lease; error %v", c, err)
	}
	return link, conn
}
