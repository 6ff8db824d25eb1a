package sdk_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// Output that the log lacks is an error in every way of reading it, whatever is missing, and no reader
// waits for it for ever.
func TestMissingOutputIsTold(t *testing.T) {
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	nc, err := nats.Connect(f.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := js.Stream(ctx, protocol.StreamLogs)
	if err != nil {
		t.Fatal(err)
	}
	client, err := sdk.Connect(ctx, sdk.Options{URL: f.URL(), RequestTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	spec := f.Spec()
	spec.Command = []string{"sh", "-c", "echo here; exec sleep 1000"}
	if _, err := client.Create(ctx, spec, sdk.WithID("s")); err != nil {
		t.Fatal(err)
	}
	// Each writes 2 MiB; one of them runs on.
	s, execs := client.Sandbox("s"), map[string]*sdk.Exec{}
	for name, script := range map[string]string{"middle": "", "end": "", "runs": "; sleep 1000"} {
		x, err := s.Start(ctx, shell("head -c 2097152 /dev/zero"+script), sdk.WithID(name))
		if err != nil {
			t.Fatal(err)
		}
		if execs[name] = x; script != "" {
			continue
		}
		if r, err := x.Wait(ctx, sdk.WithCollect(4<<20)); err != nil || len(r.Stdout) != 2<<20 {
			t.Fatalf("%s: %d bytes, %v", name, len(r.Stdout), err)
		}
	}
	subject := func(name string) string { return protocol.LogSubject(protocol.DefaultTenant, "s", name) }
	f.Eventually(20*time.Second, "the output that goes on is kept", func() error {
		var size int
		for k, err := range execs["runs"].Output(ctx) {
			if err != nil {
				return err
			}
			size += len(k.Data)
		}
		if size != 2<<20 {
			return protocol.Errorf(protocol.NotFound, "", "%d bytes", size)
		}
		return nil
	})
	remove := func(name string, record func() (*natsjs.RawStreamMsg, error)) {
		m, err := record()
		if err == nil {
			err = logs.DeleteMsg(ctx, m.Sequence)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"middle", "runs"} {
		remove(name, func() (*natsjs.RawStreamMsg, error) {
			return logs.GetMsg(ctx, 1, natsjs.WithGetMsgSubject(subject(name)))
		})
	}
	remove("end", func() (*natsjs.RawStreamMsg, error) { return logs.GetLastMsgForSubject(ctx, subject("end")) })

	all := func(ctx context.Context, x *sdk.Exec, follow bool) (last error) {
		for _, err := range x.Output(ctx, sdk.WithFollow(follow)) {
			last = err
		}
		return last
	}
	readers := map[string]func(ctx context.Context, x *sdk.Exec) error{
		"wait": func(ctx context.Context, x *sdk.Exec) error {
			_, err := x.Wait(ctx, sdk.WithCollect(4<<20))
			return err
		},
		"logs":   func(ctx context.Context, x *sdk.Exec) error { return all(ctx, x, false) },
		"follow": func(ctx context.Context, x *sdk.Exec) error { return all(ctx, x, true) },
	}
	readAll := func(want func(t *testing.T, err error)) {
		var all sync.WaitGroup
		for name, x := range execs {
			for reader, read := range readers {
				if name == "runs" && reader == "wait" {
					continue
				}
				all.Go(func() {
					within(t, 20*time.Second, name+" "+reader+", until it is told,", func() { want(t, read(ctx, x)) })
				})
			}
		}
		all.Wait()
	}
	readAll(func(t *testing.T, err error) { wantError(t, err, protocol.OutOfRange, protocol.ReasonOutputNotKept) })

	if err := js.DeleteStream(ctx, protocol.StreamLogs); err != nil {
		t.Fatal(err)
	}
	delete(execs, "runs") // it may be followed for as long as it runs
	for _, err := range client.Sandbox("s").Logs(ctx) {
		wantUnread(t, err)
	}
	readAll(wantUnread)
}

// wantUnread checks the error of a reader whose log is gone.
func wantUnread(t *testing.T, err error) {
	t.Helper()
	if code := protocol.CodeOf(err); code != protocol.Unavailable && code != protocol.DeadlineExceeded && code != protocol.NotFound {
		t.Errorf("want an error that says that the log cannot be read, got %v", err)
	}
}

// A client that waits for the fleet says so, also where nobody watches a terminal, and once for all calls.
func TestAClientSaysThatItWaits(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	coordinator := f.Processes("coordinator")[0]
	coordinator.Pause()
	defer coordinator.Continue()
	said := &lines{more: make(chan struct{}, 1)}
	client, err := sdk.Connect(ctx, sdk.Options{URL: f.URL(), Logger: slog.New(slog.NewTextHandler(said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	waiting, leave := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer leave()
	for range 10 {
		calls.Go(func() { _, _ = client.Create(waiting, f.Spec()) }) // it ends with the test
	}
	select {
	case <-said.more:
	case <-time.After(20 * time.Second):
		t.Fatal("it says nothing")
	}
	leave()
	calls.Wait()
	if text := said.text(); strings.Count(text, "waiting for an answer") != 1 {
		t.Errorf("it says:\n%s", text)
	}
}

// lines are what a log has said.
type lines struct {
	mu   sync.Mutex
	said bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.said.Write(data)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.String()
}
