package files

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// lingers makes the last close of a socket wait for 6 s, because its peer takes no more bytes.
func lingers(t *testing.T, fd int) {
	t.Helper()
	for {
		if _, err := unix.SendmsgN(fd, make([]byte, 64<<10), nil, nil, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 6}); err != nil {
		t.Error(err)
	}
}

// connected returns a socket that is connected to a peer that does not read.
func connected(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	return fd
}

// handing returns a connection whose socket the helper passed, and still has as theirs.
func handing(t *testing.T, fd int) (conn net.Conn, theirs int) {
	t.Helper()
	theirs, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	passed := make(chan struct{})
	s := facing(t, func(c *packet.Conn) {
		_ = c.SendMessage(&control.FileReply{}, fd) // the session notices a failure
		unix.Close(fd)
		close(passed)
		_, _, _, _ = c.Receive() // until the session ends
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err = s.Dial(ctx, "tcp", "localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	<-passed
	return conn, theirs
}

const mostWait = 3 * time.Second // less than the sockets linger

// A process in the container still has the socket, so it can make its close wait at any time. A worker that waits
// cannot end the stream, and cannot stop.
func TestClosingAConnectionDoesNotWaitForItsServer(t *testing.T) {
	conn, theirs := handing(t, connected(t))
	lingers(t, theirs)
	unix.Close(theirs)
	began := time.Now()
	conn.Close()
	if waited := time.Since(began); waited > mostWait {
		t.Errorf("closing waited for %s", waited)
	}
}

// A server at a unix socket may send descriptors with its bytes. They are dropped, and their close does not wait.
func TestDescriptorsFromAServerAreDropped(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	conn, theirs := handing(t, pair[0])
	unix.Close(theirs)
	for _, read := range []bool{true, false} {
		fd := connected(t)
		lingers(t, fd)
		if err := unix.Sendmsg(pair[1], []byte("x"), unix.UnixRights(fd), nil, 0); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		began := time.Now()
		if read {
			if n, err := conn.Read(make([]byte, 10)); n != 1 || err != nil {
				t.Errorf("read %d bytes, %v", n, err)
			}
		} else {
			conn.Close()
		}
		if waited := time.Since(began); waited > mostWait {
			t.Errorf("read %v: waited for %s", read, waited)
		}
	}
}
