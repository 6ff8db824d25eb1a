package auth_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// open connects as a member with all rights.
func (s *trials) open(t *testing.T, m *member) *trialConn {
	t.Helper()
	c, err := s.connect(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// decide runs a coordinator with all rights until the test ends, and returns a connection without limits.
func (s *trials) decide(t *testing.T) (root *trialConn) {
	t.Helper()
	root = s.open(t, s.root)
	ready, ended := make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		ended <- coordinator.Run(ctx, coordinator.Config{Conn: root.Conn, Name: "c1", Build: "0.0.1",
			Logger: slog.New(slog.DiscardHandler), OnReady: func() { close(ready) },
			Timing: coordinator.Timing{Suspect: time.Hour}}) // no worker beats here
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	select {
	case <-ready:
		return root
	case err := <-ended:
		t.Fatalf("the coordinator ended: %v", err)
	}
	return nil
}

// append writes events of a writer to a history.
func (c *trialConn) append(ctx context.Context, writer, sandbox string, events ...protocol.Event) error {
	j := c.Journal(jetstream.JournalConfig{Tenant: "blue", Sandbox: sandbox, Writer: writer})
	_, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) { return events, nil })
	return err
}

// running makes a sandbox of tenant blue that runs a command of its own on a host.
func (c *trialConn) running(t *testing.T, sandbox, worker, host string) {
	t.Helper()
	err := c.assigned(t.Context(), sandbox, worker, host)
	if err == nil {
		err = c.append(t.Context(), worker, sandbox, isReady)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var isReady = protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}}

// assigned makes a sandbox of tenant blue that a worker has to create.
func (c *trialConn) assigned(ctx context.Context, sandbox, worker, host string) error {
	return c.append(ctx, "c1", sandbox,
		protocol.Event{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{
			Spec: &protocol.SandboxSpec{Image: "i", Command: []string{"true"}}}},
		protocol.Event{Kind: protocol.SandboxAssigned,
			Details: &protocol.SandboxDetails{Worker: worker, HostID: host, Generation: 1}},
	)
}

// prints stores output of a sandbox's own command.
func (c *trialConn) prints(host, sandbox, text string, offset int64) error {
	end := offset + int64(len(text))
	done, err := c.PublishOutput(host, "blue", sandbox, protocol.PrimaryLog,
		jetstream.Chunk{Stream: jetstream.Stdout, Data: []byte(text), Offset: offset, NextStdout: end})
	if err == nil {
		err = <-done
	}
	return err
}

// The function reads uses each right that all members of a tenant have. It returns the client that it used.
func reads(ctx context.Context, conn *trialConn) (*sdk.Client, error) {
	c, err := sdk.Connect(ctx, sdk.Options{Conn: conn.Conn, Tenant: "blue"})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, c.Close)
	b, err := c.Get(ctx, "shown")
	if err != nil {
		return nil, err
	}
	for chunk, err := range b.Logs(ctx, sdk.WithFollow(true)) {
		if err != nil || string(chunk.Data) != "hello" {
			return nil, fmt.Errorf("read %q: %w", chunk.Data, err)
		}
		break
	}
	for e, err := range b.Events(ctx, sdk.WithFollow(true)) {
		if err != nil || e.Kind != protocol.SandboxAccepted {
			return nil, fmt.Errorf("read %+v: %w", e, err)
		}
		break
	}
	return c, nil
}

// startReading starts trials of a role that reads. The sandbox "shown" of tenant blue has printed output. One member
// has all rights of the role, and each other member lacks a different right.
func startReading(t *testing.T, role rights.Role) (*trials, []*member) {
	t.Helper()
	members := eachRight(t, role, func(n int) rights.Identity { return someone(role, fmt.Sprint("r", n), "blue", "") })
	worker := newMember(t, someone(rights.Worker, "w1", "", "HOSTA"), right{})
	s := startTrials(t, append([]*member{worker}, members...)...)
	serveStreams(t, s.open(t, worker).Conn, "w1", nil)
	root := s.decide(t)
	root.running(t, "shown", "w1", "HOSTA")
	if err := root.prints("HOSTA", "shown", "hello", 0); err != nil {
		t.Fatal(err)
	}
	return s, members
}

func TestAViewerNeedsEachOfItsRights(t *testing.T) {
	t.Parallel()
	s, members := startReading(t, rights.Viewer)
	s.judgeAll(t, members, func(ctx context.Context, conn *trialConn) error { return second(reads(ctx, conn)) })
}

func TestAUserNeedsEachOfItsRights(t *testing.T) {
	t.Parallel()
	s, members := startReading(t, rights.User)
	dir := t.TempDir()
	s.judgeAll(t, members, func(ctx context.Context, conn *trialConn) error {
		c, err := reads(ctx, conn)
		if err != nil {
			return err
		}
		source := filepath.Join(dir, conn.member.Name) // each member uploads content that nobody has uploaded yet
		if err := os.WriteFile(source, []byte(source), 0o600); err != nil {
			return err
		}
		copied, err := c.Upload(ctx, source, "/f")
		if err != nil {
			return err
		}
		if _, err = c.Create(ctx, sdk.SandboxSpec{Image: "i", Copies: []sdk.Copy{copied}}, sdk.WithWait(false)); err != nil {
			return err
		}
		if err := refusedWithoutKey(c.Secrets().Remove(ctx, "none")); err != nil {
			return err
		}
		if err := hears(ctx, conn.Conn, "w1", false); err != nil {
			return err
		}
		for _, verb := range protocol.Verbs {
			_, err := c.Raw().Submit(ctx, sdk.Request{Verb: verb, Sandbox: "none"})
			if code := protocol.CodeOf(err); code != protocol.InvalidArgument && code != protocol.NotFound {
				return fmt.Errorf("the answer to a %s without a payload is %w", verb, err)
			}
		}
		return nil
	})
}

// refusedWithoutKey returns nil if a coordinator refused a request for a secret because it has no key. The coordinators
// of trials have none, so this refusal shows that the request arrived.
func refusedWithoutKey(err error) error {
	if protocol.CodeOf(err) == protocol.FailedPrecondition {
		return nil
	}
	return fmt.Errorf("the answer to a request for a secret is %w", err)
}

func TestAFleetViewerNeedsEachOfItsRights(t *testing.T) {
	t.Parallel()
	s, members := startReading(t, rights.FleetViewer)
	s.judgeAll(t, members, func(ctx context.Context, conn *trialConn) error {
		for _, tenant := range []string{"blue", "green"} {
			c, err := sdk.Connect(ctx, sdk.Options{Conn: conn.Conn, Tenant: tenant})
			if err != nil {
				return err
			}
			context.AfterFunc(ctx, c.Close)
			if _, err := sdk.ReadAll(c.List(ctx)); err != nil {
				return err
			}
		}
		if _, err := conn.Live("*", "*", func(*protocol.Batch) {}); err != nil {
			return err
		}
		_, err := conn.Heartbeats(func(*protocol.Heartbeat) {})
		return err
	})
}

// compacted makes a history whose beginning is in a segment.
func (c *trialConn) compacted(t *testing.T, sandbox string) {
	t.Helper()
	ctx := t.Context()
	for i := range 6 {
		id := fmt.Sprint("x", i)
		for _, e := range []protocol.Event{
			{Kind: protocol.ExecAccepted,
				Exec: &protocol.ExecDetails{ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}}}},
			{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: id}},
		} {
			if err := c.append(ctx, "c1", sandbox, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	j := c.Journal(jetstream.JournalConfig{Tenant: "blue", Sandbox: sandbox, Writer: "c1"})
	if err := j.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteSnapshot(ctx, "blue", sandbox, j.Snapshot(), 0); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the beginning of the history is in a segment", func() bool {
		done, err := c.Compact(ctx, "blue", sandbox, jetstream.Compaction{Keep: 2, MinBatches: 1, MinBytes: 1 << 30})
		return err == nil && done.Purged > 0
	})
}

// read reads a file to its end.
func read(file interface {
	Read([]byte) (int, error)
	Close() error
}, err error) error {
	if err != nil {
		return err
	}
	defer file.Close()
	var got strings.Builder
	buffer := make([]byte, 1<<10)
	for {
		n, err := file.Read(buffer)
		got.Write(buffer[:n])
		if err != nil && got.String() == "content" {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %q: %w", got.String(), err)
		}
	}
}

func TestAWorkerNeedsEachOfItsRights(t *testing.T) {
	t.Parallel()
	members := eachRight(t, rights.Worker, func(n int) rights.Identity {
		return someone(rights.Worker, fmt.Sprint("w", n), "", fmt.Sprint("HOST", n))
	})
	opens := newMember(t, someone(rights.User, "anna", "blue", ""), right{})
	s := startTrials(t, append([]*member{opens}, members...)...)
	user := s.open(t, opens)
	root := s.decide(t)
	root.running(t, "long", "w0", "HOST0")
	root.compacted(t, "long")
	if err := root.prints("HOST0", "long", "hello", 0); err != nil {
		t.Fatal(err)
	}
	const digest = "sha256-x"
	if err := root.PutImageFile(t.Context(), digest, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	if err := root.PutBlob(t.Context(), "blue", digest, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	s.judgeAll(t, members, func(ctx context.Context, conn *trialConn) error {
		m := conn.member
		if err := root.assigned(ctx, "on-"+m.Name, m.Name, m.Host); err != nil {
			return err
		}
		steps := append(trialWorkerSteps(ctx, conn, digest), step{"serve streams", func() error {
			return servesStreams(ctx, conn, user)
		}})
		for _, step := range steps {
			if err := step.do(); err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
		}
		return measures(ctx, root.Conn, conn, protocol.MeasureQuery{Coordinator: "c1", Tenant: "blue", Sandbox: "s"})
	})
}

// servesStreams serves streams as a worker, until a user has opened one and received its frames.
func servesStreams(ctx context.Context, worker, user *trialConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	serving, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- worker.ServeStreams(ctx, worker.member.Name, echoes(nil), jetstream.StreamLimits{},
			func() { close(serving) })
	}()
	select {
	case <-serving:
	case err := <-ended:
		return err
	}
	err := hears(ctx, user.Conn, worker.member.Name, false)
	cancel()
	<-ended
	return err
}

// measures lets a worker answer a question what a sandbox uses.
func measures(ctx context.Context, asks *jetstream.Conn, worker *trialConn, q protocol.MeasureQuery) error {
	m := worker.member
	stop, err := worker.ServeMeasures(ctx, m.Name, m.Host, usesNothing)
	if err != nil {
		return err
	}
	defer stop()
	if err := worker.Flush(ctx); err != nil {
		return err
	}
	_, err = asks.AskWorker(ctx, m.Name, m.Host, q)
	return err
}

// usesNothing is a worker's answer about any sandbox.
func usesNothing(context.Context, *protocol.MeasureQuery) (*protocol.MeasureReply, error) {
	return &protocol.MeasureReply{Usage: &protocol.SandboxUsage{}}, nil
}

// trialWorkerSteps are the steps of a worker that use NATS.
func trialWorkerSteps(ctx context.Context, c *trialConn, digest string) []step {
	m := c.member
	return []step{
		{"open", func() error { return c.Open(ctx) }},
		{"hear of losses", func() error { return second(c.OnLoss(func() {})) }},
		{"lock its host", func() error {
			lease, err := c.AcquireHost(ctx, m.Host, jetstream.Holder{Name: m.Name, Instance: "1"}, 0)
			if err != nil {
				return err
			}
			_, err = c.AcquireHost(ctx, m.Host, jetstream.Holder{Name: m.Name, Instance: "2"}, 0)
			if err == nil {
				return fmt.Errorf("two processes hold the lock")
			}
			return lease.Release(ctx)
		}},
		{"register", func() error { return c.RegisterHost(ctx, &protocol.Host{Worker: m.Name, HostID: m.Host}) }},
		{"beat", func() error { return c.Beat(&protocol.Heartbeat{Worker: m.Name}) }},
		{"hear of work", func() error { return second(c.Work(m.Name, func(string, string, *protocol.Batch) {})) }},
		{"read which images are wanted", func() error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			err := c.WantedImages(ctx, func([]*protocol.WantedImage) { cancel() })
			if ctx.Err() != nil {
				return nil // the images were read
			}
			return err
		}},
		{"report images", func() error { return c.PublishImages(ctx, &protocol.HostImages{Worker: m.Name}) }},
		{"ask which images sandboxes wait for", func() error {
			return second(c.Query(ctx, protocol.DefaultTenant, protocol.EndpointAwaited, &protocol.Query{}))
		}},
		{"append", func() error {
			return c.append(ctx, m.Name, "on-"+m.Name, isReady)
		}},
		{"read a long history", func() error { return second(c.History(ctx, "blue", "long", 0)) }},
		{"read a snapshot", func() error { return second(c.Snapshot(ctx, "blue", "long")) }},
		{"read the end of a history", func() error { return second(c.LastBatch(ctx, "blue", "long")) }},
		{"publish output", func() error { return c.prints(m.Host, "on-"+m.Name, "hello", 0) }},
		{"read the end of output", func() error {
			_, _, err := c.OutputEnd(ctx, jetstream.OutputOf{Tenant: "blue", Sandbox: "long", Log: protocol.PrimaryLog,
				Hosts: []protocol.OutputHost{{ID: "HOST0"}}})
			return err
		}},
		{"read the file of an image", func() error { return read(c.ImageFile(ctx, digest)) }},
		{"read an upload", func() error { return read(c.Blob(ctx, "blue", digest)) }},
	}
}

// TestAWorkerThatGetsNoAnswerAsksWhetherJetStreamWorks lets a worker send a query that nobody answers.
func TestAWorkerThatGetsNoAnswerAsksWhetherJetStreamWorks(t *testing.T) {
	t.Parallel()
	all := newMember(t, someone(rights.Worker, "w1", "", "HOSTA"), right{})
	lacks := newMember(t, someone(rights.Worker, "w2", "", "HOSTB"), asksForJetStream)
	s := startTrials(t, all, lacks)
	nc, _ := s.raw(t)
	if _, err := nc.SubscribeSync("boxfleet.v1.api.>"); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	s.judgeAll(t, []*member{all, lacks}, func(ctx context.Context, conn *trialConn) error {
		_, err := conn.Query(ctx, protocol.DefaultTenant, protocol.EndpointAwaited, &protocol.Query{})
		if protocol.CodeOf(err) == protocol.DeadlineExceeded {
			return nil // JetStream works, so only the answer is missing
		}
		return fmt.Errorf("the query ended with %w", err)
	})
}
