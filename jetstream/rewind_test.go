package jetstream_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// backup is a deployment whose store can be restored to an earlier state.
type backup struct {
	*deployment
	dir, copied string
}

func startBackup(t testing.TB) *backup {
	t.Helper()
	dir := t.TempDir()
	s, err := embedded.Start(embedded.Config{Dir: dir})
	must(t, err)
	d := &deployment{servers: []*embedded.Server{s}, tenant: "t1"}
	t.Cleanup(func() { d.servers[0].Stop() })
	d.provision(t)
	return &backup{d, dir, filepath.Join(t.TempDir(), "copy")}
}

// around stops the server, calls f and starts the server again.
func (b *backup) around(t testing.TB, f func()) {
	t.Helper()
	b.servers[0].Stop()
	f()
	s, err := b.servers[0].Restart()
	must(t, err)
	b.servers[0] = s
}

// take copies the server's store.
func (b *backup) take(t testing.TB) {
	t.Helper()
	b.around(t, func() { must(t, os.CopyFS(b.copied, os.DirFS(b.dir))) })
}

// restore replaces the server's store with the copy.
func (b *backup) restore(t testing.TB) {
	t.Helper()
	b.around(t, func() {
		must(t, os.RemoveAll(b.dir))
		must(t, os.CopyFS(b.dir, os.DirFS(b.copied)))
	})
}

func accept(t testing.TB, j *jetstream.Journal, ids ...string) {
	t.Helper()
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		events, err := j.Do(ctx, acceptExec(id))
		cancel()
		must(t, err)
		if len(events) != 1 {
			t.Fatalf("accepting exec %s appended %d events, want 1", id, len(events))
		}
	}
}

// A journal keeps running while the log is restored from a backup, as the journals of coordinators and workers do.
func TestAJournalAheadOfTheLogFoldsItAgain(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(t *testing.T, d *backup, lives *jetstream.Journal){
		"the journal is read": func(t *testing.T, _ *backup, lives *jetstream.Journal) {
			must(t, lives.Refresh(t.Context()))
		},
		"the journal decides": func(*testing.T, *backup, *jetstream.Journal) {},
		// Another history has other batches at the same records.
		"another writer appends first": func(t *testing.T, d *backup, _ *jetstream.Journal) {
			accept(t, journal(d.opened(t), d.tenant, "s1", "w1"), "y1", "y2")
		},
		"another writer appends more": func(t *testing.T, d *backup, _ *jetstream.Journal) {
			accept(t, journal(d.opened(t), d.tenant, "s1", "w1"), "y1", "y2", "y3", "y4")
		},
		// The next event has the number that the journal expects.
		"the journal receives another writer's batches": func(t *testing.T, d *backup, lives *jetstream.Journal) {
			c := d.opened(t)
			accept(t, journal(c, d.tenant, "s1", "w1"), "y1", "y2", "y3")
			_, batches := readHistory(t, c, d.tenant, "s1")
			for _, b := range batches {
				lives.Receive(b)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBackup(t)
			c := d.opened(t)
			readySandbox(t, c, d.tenant, "s1")
			resets := 0
			lives := c.Journal(
				jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "s1", Writer: "k1", OnReset: func() { resets++ }},
			)
			accept(t, lives, "x1")
			d.take(t)
			accept(t, lives, "x2", "x3")
			d.restore(t)
			then(t, d, lives)
			accept(t, lives, "z1")
			want, _ := readHistory(t, c, d.tenant, "s1")
			got, _ := lives.State()
			same(t, "the journal's fold and the log's", got, want)
			if resets != 1 || got.Execs["x1"] == nil || got.Execs["x2"] != nil {
				t.Errorf("the history was folded again %d times, want once; the state has x1: %t, x2: %t",
					resets, got.Execs["x1"] != nil, got.Execs["x2"] != nil)
			}
		})
	}
}

func TestAJournalOfALostHistoryIsEmpty(t *testing.T) {
	t.Parallel()
	d := startBackup(t)
	c := d.opened(t)
	d.take(t)
	readySandbox(t, c, d.tenant, "s1")
	lives := journal(c, d.tenant, "s1", "k1")
	accept(t, lives, "x1")
	d.restore(t)
	must(t, lives.Refresh(t.Context()))
	if s, record := lives.State(); s.Exists() || record != 0 {
		t.Fatalf("the lost sandbox is %s at record %d", s.Sandbox.State, record)
	}
	events, err := lives.Do(t.Context(), becomeReady)
	must(t, err)
	if len(events) != 3 {
		t.Fatalf("the first decision appended %d events, want 3", len(events))
	}
}

// A refresh without new batches costs one request, regardless of the history's length.
func TestASettledJournalIsNotFoldedAgain(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		readySandbox(t, c, d.tenant, "s1")
		j := c.Journal(
			jetstream.JournalConfig{
				Tenant:  d.tenant,
				Sandbox: "s1",
				Writer:  "k1",
				OnReset: func() { t.Error("the history was folded again") },
			},
		)
		other := journal(c, d.tenant, "s1", "k2")
		for _, id := range []string{"x1", "x2", "x3"} {
			accept(t, j, id+"a")
			accept(t, other, id+"b", id+"c")
			must(t, j.Refresh(t.Context()))
			must(t, j.Refresh(t.Context()))
		}
		got, _ := j.State()
		want, _ := readHistory(t, c, d.tenant, "s1")
		same(t, "the journal's fold and the log's", got, want)
		deleteSandbox(t, c, d.tenant, "s1")
		must(t, j.Refresh(t.Context()))
		must(t, c.PurgeHistory(t.Context(), d.tenant, "s1"))
		must(t, j.Refresh(t.Context()))
	})
}

func TestAFollowerReportsARewoundLog(t *testing.T) {
	t.Parallel()
	logs := map[string][]string{"the log is shorter": nil, "the log has grown again": {"y1", "y2", "y3", "y4"}}
	for name, more := range logs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBackup(t)
			c := d.opened(t)
			readySandbox(t, c, d.tenant, "s1")
			d.take(t)
			accept(t, journal(c, d.tenant, "s1", "k1"), "x1", "x2")
			through := throughProxy(t, d.deployment)
			follows := d.connTo(t, through.url())
			var last uint64
			caughtUp, done := make(chan struct{}), make(chan error, 1)
			go func() {
				handle := func(b *protocol.Batch) { last = b.Record }
				done <- follows.FollowEvents(t.Context(), 1, handle, func() { close(caughtUp) })
			}()
			receive(t, 5*time.Second, "the call of caughtUp", caughtUp)
			through.closed.Store(true)
			through.cut()
			d.restore(t)
			accept(t, journal(d.opened(t), d.tenant, "s1", "k1"), more...)
			through.closed.Store(false)
			if err := receive(t, 10*time.Second, "the end of following", done); !jetstream.IsRewound(err) {
				t.Errorf("after record %d, the follower ended with %v, want the error for a rewound log", last, err)
			}
		})
	}
}

// A queue that was restored from a backup assigns sequences again. A request must be handled even if it gets the
// sequence of another request that is being handled.
func TestARequestWithTheSequenceOfAHeldOneIsHandled(t *testing.T) {
	t.Parallel()
	b := startBackup(t)
	b.take(t)
	c, client := b.opened(t), b.opened(t)
	heard, free := make(chan string, 10), make(chan struct{})
	background(t, func(ctx context.Context) error {
		return c.ConsumeRequests(ctx, func(ctx context.Context, r *jetstream.Delivery) error {
			heard <- r.ID
			if r.ID == "lost" {
				select {
				case <-free:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		})
	})
	defer close(free)
	submit(t, client, b.tenant, "lost", "")
	if id := <-heard; id != "lost" {
		t.Fatalf("received request %s, want lost", id)
	}
	b.restore(t)
	eventually.Holds(t, 10*time.Second, "both clients are connected again", func() bool {
		return c.Connected() && client.Connected()
	})
	submitAgain(t, client, b.tenant, "next")
	select {
	case id := <-heard:
		if id != "next" {
			t.Errorf("received request %s, want next", id)
		}
	case <-time.After(20 * time.Second):
		t.Error("the request with a reused sequence was not handled")
	}
}
