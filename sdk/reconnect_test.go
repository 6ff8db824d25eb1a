package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// wire is a TCP proxy between a client and NATS. The test can cut its connections.
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
			// The ends of the connection notice a copy that fails.
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

func anExecThatEndsDuringAnOutageIsNoticed(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("away")
	w := newWire(t, f.URL())
	far, err := sdk.Connect(ctx, f.Options(sdk.Options{URL: "nats://" + w.listener.Addr().String()}))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	box := far.Sandbox(s.ID())
	// A new feed reads the history once by itself; wait until it has done so.
	if _, err := box.Exec(ctx, command("sleep", "0.8")); err != nil {
		t.Fatal(err)
	}
	type end struct {
		r   *sdk.Result
		err error
	}
	var out output
	ends := map[string]chan end{"plain": make(chan end, 1), "streamed": make(chan end, 1)}
	start := func(id, script string, opts ...sdk.ExecOption) {
		go func() {
			r, err := box.Exec(ctx, shell(script), append(opts, sdk.WithID(id))...)
			ends[id] <- end{r, err}
		}()
	}
	await := func(file string) string { return "while ! test -e /tmp/" + file + "; do sleep 0.02; done; " }
	start("plain", await("one")+"exit 6")
	start("streamed", "echo begin; "+await("one")+"echo middle; "+await("two")+"echo end; exit 7", sdk.WithStdout(&out))
	expectEnd := func(id string, code int) {
		t.Helper()
		select {
		case e := <-ends[id]:
			if e.err != nil || *e.r.ExitCode != code {
				t.Errorf("%s: %+v, %v", id, e.r, e.err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("the end of exec %s is not noticed", id)
		}
	}
	touch := func(file string) {
		t.Helper()
		if _, err := s.Exec(ctx, command("touch", "/tmp/"+file)); err != nil {
			t.Fatal(err)
		}
	}
	f.Eventually(10*time.Second, "output arrives", out.is("begin\n"))
	f.Eventually(10*time.Second, "the execs run", func() error {
		return stateIs(ctx, s, "plain", protocol.ExecStateRunning)
	})
	w.setCut(true)
	touch("one")
	f.Eventually(10*time.Second, "the plain exec ends",
		func() error { return stateIs(ctx, s, "plain", protocol.ExecStateFinished) })
	f.Eventually(10*time.Second, "the streamed exec prints", func() error {
		for k, err := range streamedLogs(ctx, s) {
			if err != nil || strings.Contains(string(k.Data), "middle") {
				return err
			}
		}
		return errors.New("not yet")
	})
	w.setCut(false)
	expectEnd("plain", 6)
	f.Eventually(10*time.Second, "the missed output is read", out.is("begin\nmiddle\n"))
	touch("two")
	expectEnd("streamed", 7)
	if err := out.is("begin\nmiddle\nend\n")(); err != nil {
		t.Error(err)
	}
}

func stateIs(ctx context.Context, s *sdk.Sandbox, exec string, want protocol.ExecState) error {
	x, err := s.GetExec(ctx, exec)
	if err == nil && x.Info().State != want {
		err = fmt.Errorf("exec %s is %s", exec, x.Info().State)
	}
	return err
}

// streamedLogs reads the output that the exec with id "streamed" has printed so far.
func streamedLogs(ctx context.Context, s *sdk.Sandbox) iter.Seq2[sdk.Chunk, error] {
	x, err := s.GetExec(ctx, "streamed")
	if err != nil {
		return func(yield func(sdk.Chunk, error) bool) { yield(sdk.Chunk{}, err) }
	}
	return x.Output(ctx)
}

// output is what a reader has written.
type output struct{ eventually.Buffer }

func (o *output) is(want string) func() error {
	return func() error {
		if got := o.String(); got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	}
}

func TestFollowedServiceLogsAreComplete(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Grace = protocol.Duration(30 * time.Second) // leaves the exec time to print while it is being stopped
	spec.RequiredServices = map[string]protocol.Service{"db": {Image: fleet.Image, Memory: 32 << 20,
		Command: []string{"sh", "-c",
			"trap 'echo bye; exit' TERM; echo first; until test -e /tmp/go; do sleep 0.02; done; echo second; while :; do " +
				"sleep 0.1; done"}}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("talks"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, f.URL())
	far, err := sdk.Connect(ctx, f.Options(sdk.Options{URL: "nats://" + w.listener.Addr().String()}))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	var out output
	ended := make(chan error, 1)
	go func() {
		for k, err := range far.Sandbox(s.ID()).Logs(ctx, sdk.WithService("db"), sdk.WithFollow(true)) {
			if err != nil {
				ended <- err
				return
			}
			if k.Stream == sdk.Stdout { // on stderr the shell prints messages of its own
				if _, err := out.Write(k.Data); err != nil {
					ended <- err
					return
				}
			}
		}
		ended <- nil
	}()
	f.Eventually(10*time.Second, "output arrives", out.is("first\n"))
	w.setCut(true)
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/go"}, Service: "db"}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("the sequence ended during the outage: %v", err)
	case <-time.After(7 * time.Second): // long enough for several retries
	}
	w.setCut(false)
	f.Eventually(10*time.Second, "output continues", out.is("first\nsecond\n"))
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("at the deletion the sequence ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the sequence did not end with the deletion")
	}
	if err := out.is("first\nsecond\nbye\n")(); err != nil {
		t.Error(err)
	}
}
