package sdk_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// If the log has lost a part of the output, every way to read the output returns an error instead of waiting for ever.
func TestMissingOutputIsAnError(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	js := sdk.PlainClient(t, f.URL(), f.Unlimited("test").Creds)
	logs, err := js.Stream(ctx, protocol.StreamLogs)
	if err != nil {
		t.Fatal(err)
	}
	client, err := sdk.Connect(ctx, f.Options(sdk.Options{RequestTimeout: 500 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	spec := f.Spec()
	spec.Command = []string{"sh", "-c", "echo here; exec sleep 1000"}
	if _, err := client.Create(ctx, spec, sdk.WithID("s")); err != nil {
		t.Fatal(err)
	}
	// Each exec writes 2 MiB. One of the execs keeps running.
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
	found, err := client.Get(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	subject := func(name string) string {
		return protocol.OutputSubject(found.Info().HostID, protocol.DefaultTenant, "s", name)
	}
	f.Eventually(20*time.Second, "the output of the running exec is stored", func() error {
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
					within(t, 20*time.Second, name+" "+reader+", until its error,", func() { want(t, read(ctx, x)) })
				})
			}
		}
		all.Wait()
	}
	readAll(func(t *testing.T, err error) { wantError(t, err, protocol.OutOfRange, protocol.ReasonOutputNotKept) })

	if err := js.DeleteStream(ctx, protocol.StreamLogs); err != nil {
		t.Fatal(err)
	}
	delete(execs, "runs") // a follower may wait while the exec runs
	for _, err := range client.Sandbox("s").Logs(ctx) {
		wantUnreadable(t, err)
	}
	readAll(wantUnreadable)
}

// wantUnreadable checks the error of a reader after the log was deleted.
func wantUnreadable(t *testing.T, err error) {
	t.Helper()
	if code := protocol.CodeOf(err); code != protocol.Unavailable && code != protocol.DeadlineExceeded &&
		code != protocol.NotFound {
		t.Errorf("got %v, want an error that says that the log cannot be read", err)
	}
}

// A client with several waiting requests logs one warning for all of these requests.
func TestAWaitingClientLogsWhy(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	coordinator := f.Processes("coordinator")[0]
	coordinator.Pause()
	defer coordinator.Continue()
	logged := &lines{more: make(chan struct{}, 1)}
	client, err := sdk.Connect(ctx, f.Options(sdk.Options{Logger: slog.New(slog.NewTextHandler(logged, nil))}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	waiting, leave := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer leave()
	for range 10 {
		calls.Go(func() { _, _ = client.Create(waiting, f.Spec()) }) // returns when the test cancels this context
	}
	select {
	case <-logged.more:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was logged")
	}
	leave()
	calls.Wait()
	if text := logged.text(); strings.Count(text, "waiting for an answer") != 1 {
		t.Errorf("logged, want one warning:\n%s", text)
	}
}

// lines is a log output that the test can read.
type lines struct {
	mu   sync.Mutex
	all  bytes.Buffer
	more chan struct{} // has a value if something was logged; its capacity is 1
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.all.Write(data)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
