// Package attachtest makes attachments for tests, without containers.
//
// It imports supervisor/control and worker/attach.
package attachtest

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
)

// Listen returns an attachment, and a function that connects to it. The test's own process plays the supervisor.
func Listen(t *testing.T) (a *attach.Attachment, connect func() net.Conn) {
	t.Helper()
	dir := t.TempDir()
	a, err := attach.Listen(attach.Config{
		ControlDir: dir, RunDir: dir, Welcome: control.Welcome{Key: make([]byte, 32)}, Events: NoEvents{},
		Fence: func() error { return nil },
		Lease: func() (time.Duration, error) { return control.Clock() + time.Minute, nil },
		Log:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		a.Run.Close()
	})
	a.Link.Expect(os.Getpid())
	return a, func() net.Conn {
		conn, err := net.Dial("unix", filepath.Join(dir, control.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		hello := control.Append(nil, &control.Notice{Hello: &control.Hello{Version: control.Version}})
		if _, err := conn.Write(hello); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Link.Connected(t.Context()); err != nil {
			t.Fatal(err)
		}
		return conn
	}
}

// NoEvents ignores what the supervisor reports.
type NoEvents struct{}

func (NoEvents) Connected(*attach.Attachment, control.Hello, bool) {}
func (NoEvents) Output(control.Output)                             {}
func (NoEvents) Ended(control.Result)                              {}
func (NoEvents) Primary(*attach.Attachment, control.Primary)       {}
