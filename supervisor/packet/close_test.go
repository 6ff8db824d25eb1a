package packet

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingering returns a socket whose last close waits for as long as the socket says: its peer takes no more bytes.
func lingering(t *testing.T) int {
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
	at := l.Addr().(*net.TCPAddr)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	for err == nil {
		_, err = unix.SendmsgN(fd, make([]byte, 64<<10), nil, nil, unix.MSG_DONTWAIT)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 6}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// pairOf returns two connected ends.
func pairOf(t *testing.T) (ours, theirs *Conn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	open := func(fd int) *Conn {
		file := os.NewFile(uintptr(fd), "socket")
		defer file.Close()
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		return New(conn.(*net.UnixConn))
	}
	return open(pair[0]), open(pair[1])
}

// mostWait is less than the sockets of these tests linger.
const mostWait = 3 * time.Second

// Nobody may wait for a descriptor that a hostile peer has sent, and that lies unread in the connection.
func TestClosingDoesNotWaitForUnreadDescriptors(t *testing.T) {
	ours, theirs := pairOf(t)
	defer theirs.Close()
	fd := lingering(t)
	if err := theirs.SendMessage("x", fd); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	began := time.Now()
	ours.Close()
	if waited := time.Since(began); waited > mostWait {
		t.Errorf("closing waited for %s", waited)
	}
}

// A packet with several descriptors is refused, and none of them delays the receiver.
func TestReceivingDoesNotWaitForDescriptorsThatAreTooMany(t *testing.T) {
	ours, theirs := pairOf(t)
	defer ours.Close()
	defer theirs.Close()
	fds := []int{lingering(t), lingering(t), lingering(t), lingering(t)}
	raw, err := theirs.Socket().SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), []byte{Message}, unix.UnixRights(fds...), nil, 0)
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	began := time.Now()
	if _, _, _, err := ours.Receive(); err == nil {
		t.Error("a packet with several descriptors was received")
	}
	if waited := time.Since(began); waited > mostWait {
		t.Errorf("receiving waited for %s", waited)
	}
}
