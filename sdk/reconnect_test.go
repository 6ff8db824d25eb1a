package sdk_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// wire is a TCP connection between a client and NATS that can be cut and joined.
type wire struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newWire(t *testing.T, serverURL string) *wire {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l, server: u.Host}
	go w.accept()
	t.Cleanup(func() { l.Close(); w.setCut(true) })
	return w
}

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.server)
		w.mu.Lock()
		if err != nil || w.cut {
			client.Close()
		} else {
			w.conns = append(w.conns, client, server)
			go func() { _, _ = io.Copy(server, client); server.Close() }()
			go func() { _, _ = io.Copy(client, server); client.Close() }()
		}
		w.mu.Unlock()
	}
}

func (w *wire) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for _, c := range w.conns {
			c.Close()
		}
		w.conns = nil
	}
}

func anExecThatEndsWhileNATSIsAwayIsHeardOf(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("away")
	w := newWire(t, f.URL())
	far, err := sdk.Connect(ctx, sdk.Options{URL: "nats://" + w.listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	var out bytes.Buffer
	type end struct {
		r   *sdk.Result
		err error
	}
	plain, streamed := make(chan end, 1), make(chan end, 1)
	box := far.Sandbox(s.ID())
	script := shell("echo begin; while ! test -e /tmp/go; do sleep 0.05; done; echo end; exit 6")
	go func() {
		r, err := box.Exec(ctx, script, sdk.WithID("plain"))
		plain <- end{r, err}
	}()
	go func() {
		r, err := box.Exec(ctx, script, sdk.WithID("streamed"), sdk.WithStdout(&out))
		streamed <- end{r, err}
	}()
	inState := func(want protocol.ExecState) func() error {
		return func() error {
			for _, id := range []string{"plain", "streamed"} {
				x, err := s.GetExec(ctx, id)
				if err != nil {
					return err
				}
				if x.Info().State != want {
					return fmt.Errorf("exec %s is %s", id, x.Info().State)
				}
			}
			return nil
		}
	}
	f.Eventually(10*time.Second, "the execs run", inState(protocol.ExecStateRunning))
	w.setCut(true)
	if _, err := s.Exec(ctx, command("touch", "/tmp/go")); err != nil {
		t.Fatal(err)
	}
	f.Eventually(10*time.Second, "the execs end", inState(protocol.ExecStateFinished))
	w.setCut(false)
	for name, ch := range map[string]chan end{"plain": plain, "streamed": streamed} {
		select {
		case e := <-ch:
			if e.err != nil || *e.r.ExitCode != 6 {
				t.Errorf("%s: %+v, %v", name, e.r, e.err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("the end of exec %s is not heard of", name)
		}
	}
	if out.String() != "begin\nend\n" {
		t.Errorf("streamed %q", out.String())
	}
}
