package files

import (
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed())) }

// served is a helper in this process, and the worker's end of its connection.
func served(t testing.TB, cwd string) *packet.Conn {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := socketOf(t, pair[0]), socketOf(t, pair[1])
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serve(theirs, cwd, func() {}) // the error says how the connection ended
	}()
	t.Cleanup(func() {
		ours.Close()
		<-ended
	})
	return packet.New(ours)
}

func socketOf(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// ask sends a call and returns the reply.
func ask(t testing.TB, c *packet.Conn, call control.FileCall) *control.FileReply {
	t.Helper()
	if err := c.SendMessage(&call, -1); err != nil {
		t.Fatal(err)
	}
	parts := packet.Collector{Limit: control.MaxReply}
	for {
		kind, body, file, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		packet.Discard(file)
		reply := &control.FileReply{}
		if complete, err := parts.Add(kind, body, reply); err != nil {
			t.Fatal(err)
		} else if complete {
			return reply
		}
	}
}

// A worker may send the next call before the helper has stopped to watch the connection. That is not the end of the
// connection.
func TestTheNextCallIsNoEndOfTheConnection(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := packet.New(socketOf(t, pair[0]))
	closed, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = serve(socketOf(t, pair[1]), "/", func() { // the error says how the connection ended
			select {
			case closed <- struct{}{}:
			default:
			}
		})
	}()
	const calls = 200
	go func() {
		for range calls {
			// The test counts the answers.
			_ = c.SendMessage(&control.FileCall{Stat: &protocol.FileStat{Paths: []string{"/"}}}, -1)
		}
	}()
	for range calls {
		if _, _, _, err := c.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-closed:
		t.Error("the helper took the next call for the end of the connection")
	default:
	}
	c.Close()
	<-ended
}
