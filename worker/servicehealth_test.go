package worker

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// What a supervisor said last, before it was killed with its container, makes no service ready.
func TestAServiceIsReadyOnlyWhileItsSupervisorIsConnected(t *testing.T) {
	dir := t.TempDir()
	link, err := supervise.Listen(supervise.Config{ControlDir: dir, Welcome: control.Welcome{Key: make([]byte, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	link.Expect(os.Getpid())
	s := &sandbox{services: map[string]*service{}}
	v := &service{
		s: s, name: "db", wake: make(chan struct{}, 1), attached: &attachment{s: s, link: link},
		proc: control.Primary{Running: true, Since: time.Now().Add(-2 * steadyFor)},
	}
	s.services[v.name] = v

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := v.untilHealthy(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a supervisor: %v, want that it waits", err)
	}

	conn, err := net.Dial("unix", filepath.Join(dir, control.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(control.Append(nil, &control.Notice{Hello: &control.Hello{Version: control.Version}})); err != nil {
		t.Fatal(err)
	}
	if _, err := link.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := v.untilHealthy(t.Context()); err != nil {
		t.Errorf("with one: %v, want that it is ready", err)
	}
}
