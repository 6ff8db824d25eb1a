package supervise_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// Root in a container may connect to the link, and send a socket whose close waits: here for 6 s, elsewhere forever.
func TestLink_RefusingAStrangerDoesNotWaitForWhatItSent(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(sent, to); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = unix.SendmsgN(sent, make([]byte, 64<<10), nil, nil, unix.MSG_DONTWAIT)
	}
	if err := unix.SetsockoptLinger(sent, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 6}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	link, err := supervise.Listen(supervise.Config{ControlDir: dir, Run: openRun(t),
		Welcome: control.Welcome{Key: make([]byte, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, control.SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, _, err := stranger.WriteMsgUnix([]byte("x"), unix.UnixRights(sent), nil); err != nil {
		t.Fatal(err)
	}
	unix.Close(sent)
	began := time.Now()
	link.Expect(os.Getpid() + 1)
	link.Close()
	if waited := time.Since(began); waited > 3*time.Second {
		t.Errorf("the link waited for %s", waited)
	}
}
