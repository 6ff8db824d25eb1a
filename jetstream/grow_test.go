package jetstream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// kept is a stored message, which must not change.
type kept struct {
	Sequence uint64
	Time     time.Time
	Subject  string
	Data     string
}

// everything reads all messages of a stream.
func everything(t *testing.T, d *deployment, name string) []kept {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(t.Context(), name)
	must(t, err)
	state := stream.CachedInfo().State
	var all []kept
	for s := state.FirstSeq; s <= state.LastSeq; s++ {
		m, err := stream.GetMsg(t.Context(), s)
		if err == nil {
			all = append(all, kept{m.Sequence, m.Time, m.Subject, string(m.Data)})
		}
	}
	return all
}

// publishUntilStored publishes one byte of output repeatedly, until the byte is stored or ctx ends.
func publishUntilStored(ctx context.Context, c *jetstream.Conn, tenant, exec string, n int) {
	k := jetstream.Chunk{Stream: jetstream.Stdout, Offset: int64(n), Data: []byte{byte(n)}, NextStdout: int64(n + 1)}
	for {
		done, err := c.PublishOutput(outputHost, tenant, "s1", exec, k)
		if err == nil {
			err = <-done
		}
		if err == nil || ctx.Err() != nil {
			return
		}
	}
}

// growWithInterruptions grows to three replicas, is interrupted at each step and continues. It returns the number of
// interruptions.
func growWithInterruptions(t *testing.T, d *deployment, c *jetstream.Conn) (ends int) {
	t.Helper()
	for done := map[string]bool{}; ; ends++ {
		ctx, kill := context.WithTimeout(t.Context(), 60*time.Second)
		err := c.Grow(ctx, 3, func(step string) {
			if !done[step] {
				done[step] = true
				kill()
			}
		})
		killed := ctx.Err() == context.Canceled
		kill()
		if !killed {
			must(t, err)
			return ends
		}
		// A coordinator that starts during the interruption must not make streams.
		must(t, d.conn(t).Provision(t.Context(), jetstream.Assets{}))
	}
}

// The move to three replicas is interrupted at each of its steps, as if the process were killed, and then continued.
// Meanwhile a worker keeps sending output.
func TestGrowingToThreeReplicasLosesNothingWhereverItIsInterrupted(t *testing.T) {
	t.Parallel()
	servers, err := embedded.StartCluster(t.TempDir(), 3)
	must(t, err)
	d := &deployment{servers: servers, assets: jetstream.Assets{LogMaxAge: 99 * time.Hour}, tenant: "t1"}
	t.Cleanup(func() {
		for _, s := range servers {
			s.Stop()
		}
	})
	d.provision(t)
	c := d.opened(t)
	readySandbox(t, c, d.tenant, "s1")
	publish := func(ctx context.Context, exec string, n int) { publishUntilStored(ctx, c, d.tenant, exec, n) }
	for n := range 200 {
		publish(t.Context(), "x1", n)
	}
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	logs, err := js.Stream(t.Context(), protocol.StreamLogs)
	must(t, err)
	must(t, logs.DeleteMsg(t.Context(), 7))
	before := everything(t, d, protocol.StreamLogs)

	sent := make(chan int, 1)
	sending, stop := context.WithCancel(t.Context())
	go func() {
		n := 0
		for ; sending.Err() == nil; n++ {
			publish(context.WithoutCancel(sending), "x2", n)
		}
		sent <- n
	}()
	asBefore(t, d) // the move begins before a new coordinator has changed the stream
	ends := growWithInterruptions(t, d, c)
	stop()
	n := receive(t, 30*time.Second, "the last chunk", sent)
	t.Logf("the move was interrupted %d times, and %d chunks were sent during the move", ends, n)

	after := everything(t, d, protocol.StreamLogs)
	same(t, "the messages that were stored before the move", after[:len(before)], before)
	got := 0
	_, err = c.ReadOutput(t.Context(), outputOf(d.tenant, "s1", "x2"), 0, func(k jetstream.Chunk) error {
		if int(k.Offset) == got {
			got++
		}
		return nil
	})
	must(t, err)
	if got != n {
		t.Fatalf("%d of %d acknowledged chunks are stored in their order", got, n)
	}
	for _, name := range someStreams {
		if cfg := configOf(t, d, name); cfg.Replicas != 3 {
			t.Errorf("%s has %d replicas, want 3", name, cfg.Replicas)
		}
	}
	cfg := configOf(t, d, protocol.StreamLogs)
	if len(cfg.Subjects) != 2 || cfg.MaxAge != 99*time.Hour || cfg.Mirror != nil ||
		cfg.PersistMode != natsjs.DefaultPersistMode {
		t.Errorf("the output's stream has the configuration %+v", cfg)
	}
	readHistory(t, c, d.tenant, "s1")
}

func TestStreamsThatLostReplicasAreReportedAndRepaired(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	for _, name := range []string{protocol.StreamRequests, protocol.StreamEvents} {
		cfg := configOf(t, d, name)
		cfg.Replicas = 1
		_, err = js.UpdateStream(t.Context(), cfg)
		must(t, err)
	}
	c := d.conn(t)
	must(t, c.Provision(t.Context(), jetstream.Assets{Replicas: 3, LockTTL: lockTTL}))
	report := c.Storage(t.Context())
	problems := fmt.Sprint(report.Problems)
	if !containsAll(problems, protocol.StreamRequests, protocol.StreamEvents, "boxfleet storage grow --replicas 3") {
		t.Fatalf("the problems do not name both streams and the remedy: %s", problems)
	}
	must(t, c.Grow(t.Context(), 3, nil))
	if report := d.opened(t).Storage(t.Context()); len(report.Problems) > 0 {
		t.Fatalf("problems after the repair: %v", report.Problems)
	}
	wantError(t, c.Grow(t.Context(), 1, nil), protocol.InvalidArgument, "")

	before := configLeader(t, d, protocol.StreamEvents)
	must(t, c.RecoverStore(t.Context(), nil)) // replaces the leader, as if its store refused writes
	eventually.Holds(t, 20*time.Second, "another server leads the event log", func() bool {
		s := d.conn(t).Storage(t.Context()).Streams
		i := slices.IndexFunc(s, func(s protocol.StreamStorage) bool { return s.Name == protocol.StreamEvents })
		return i >= 0 && s[i].Leader != "" && s[i].Leader != before
	})
}

func TestOneServerCannotGrow(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	wantError(t, d.opened(t).Grow(t.Context(), 3, nil), protocol.FailedPrecondition, protocol.ReasonServerSettings)
}

func containsAll(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}
