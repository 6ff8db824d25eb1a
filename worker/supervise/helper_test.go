package supervise_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// Containers live while workers are upgraded, so a supervisor may not know helpers.
func TestFiles_AnOlderSupervisorIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link, err := supervise.Listen(supervise.Config{ControlDir: dir, Run: openRun(t),
		Welcome: control.Welcome{Key: make([]byte, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	link.Expect(os.Getpid())
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, control.SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hello := control.Notice{Hello: &control.Hello{Version: control.Version, Boot: "old", TakesFiles: true}}
	if _, err := conn.Write(control.Append(nil, &hello)); err != nil {
		t.Fatal(err)
	}
	_, err = link.Files(fileContext(t), "", "")
	refusedWith(t, "files", err, protocol.FailedPrecondition, protocol.ReasonUnsupported)
	_, err = link.Dial(fileContext(t), "tcp", "localhost:1")
	refusedWith(t, "dial", err, protocol.FailedPrecondition, protocol.ReasonUnsupported)
}
