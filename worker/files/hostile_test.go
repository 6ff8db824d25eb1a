package files

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed())) }

// facing returns a session whose helper is a function of the test. This process is the container.
func facing(t *testing.T, helper func(c *packet.Conn)) *Session {
	t.Helper()
	container, err := os.OpenRoot("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Container: container, Start: func(context.Context) (*net.UnixConn, error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
			return nil, err
		}
		theirs := packet.New(connOf(t, pair[1]))
		go func() {
			defer theirs.Close()
			if _, _, _, err := theirs.Receive(); err == nil {
				helper(theirs)
			}
		}()
		return connOf(t, pair[0]), nil
	}})
	t.Cleanup(s.Close)
	return s
}

// passing replies with the descriptor of a file.
func passing(open func() (int, error)) func(c *packet.Conn) {
	return func(c *packet.Conn) {
		fd, err := open()
		if err != nil {
			return
		}
		defer unix.Close(fd)
		_ = c.SendMessage(&control.FileReply{File: &protocol.FileInfo{}}, fd) // the session notices a failure
		_, _, _, _ = c.Receive()                                              // until the session ends
	}
}

func TestDescriptorsOfAHostileHelperAreRefused(t *testing.T) {
	opens := func(path string, flags int) func() (int, error) {
		return func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) }
	}
	fifo := t.TempDir() + "/fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() (int, error){
		"a device":        opens("/dev/zero", unix.O_RDONLY),
		"a directory":     opens("/", unix.O_RDONLY),
		"a FIFO":          opens(fifo, unix.O_RDONLY),
		"a file of /proc": opens("/proc/self/stat", unix.O_RDONLY),
		"a socket":        func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := facing(t, passing(open)).Read(ctx, protocol.FileRead{Path: "/x"})
		if protocol.CodeOf(err) != protocol.Unavailable {
			t.Errorf("read from %s: got %v, want unavailable", name, err)
		}
		_, err = facing(t, passing(open)).Stat(ctx, protocol.FileStat{Paths: []string{"/x"}})
		if protocol.CodeOf(err) != protocol.Unavailable {
			t.Errorf("stat with %s: got %v, want unavailable", name, err)
		}
		if name != "a socket" {
			_, err = facing(t, passing(open)).Dial(ctx, "tcp", "localhost:1")
			if protocol.CodeOf(err) != protocol.Unavailable {
				t.Errorf("dial with %s: got %v, want unavailable", name, err)
			}
		}
		cancel()
	}
}

func TestAHelperThatSendsTooMuchIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	endless := func(c *packet.Conn) {
		part := append([]byte{packet.Part}, make([]byte, packet.MaxBody)...)
		for {
			if _, err := c.Socket().Write(part); err != nil {
				return
			}
		}
	}
	_, err := facing(t, endless).Stat(ctx, protocol.FileStat{Paths: []string{"/x"}})
	if protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("an endless reply: got %v, want unavailable", err)
	}
	long := func(c *packet.Conn) {
		// The session notices a failure.
		_ = c.SendMessage(&control.FileReply{Error: &protocol.Error{Code: "mine", Reason: strings.Repeat("r", 1000),
			Message: strings.Repeat("\xff", 100_000)}}, -1)
		_, _, _, _ = c.Receive() // until the session ends
	}
	_, err = facing(t, long).Stat(ctx, protocol.FileStat{Paths: []string{"/x"}})
	if e := protocol.AsError(err); e.Code != protocol.Internal || len(e.Reason) > maxReason ||
		len(e.Message) > 4*maxMessage {
		t.Errorf("a long error: got code %s and %d bytes", e.Code, len(e.Message))
	}
	silent := func(c *packet.Conn) { _, _, _, _ = c.Receive() } // until the session ends
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if _, err = facing(t, silent).Stat(short, protocol.FileStat{Paths: []string{"/x"}}); protocol.CodeOf(err) !=
		protocol.DeadlineExceeded {
		t.Errorf("a silent helper: got %v, want deadline_exceeded", err)
	}
}
