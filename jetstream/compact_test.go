package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// small returns a configuration that moves all but five messages.
func small() jetstream.Compaction {
	return jetstream.Compaction{Keep: 5, MinBatches: 1, MinBytes: 1 << 30}
}

// longHistory makes a sandbox with ended execs, each in two messages.
func longHistory(t testing.TB, c *jetstream.Conn, tenant, sandbox string, execs int) {
	t.Helper()
	readySandbox(t, c, tenant, sandbox)
	moreHistory(t, c, tenant, sandbox, 0, execs)
}

func moreHistory(t testing.TB, c *jetstream.Conn, tenant, sandbox string, from, to int) {
	t.Helper()
	j := journal(c, tenant, sandbox, "k1")
	for i := from; i < to; i++ {
		id := fmt.Sprint("x", i)
		_, err := j.Do(t.Context(), acceptExec(id))
		must(t, err)
		_, err = j.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
			return []protocol.Event{{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: id}}}, nil
		})
		must(t, err)
	}
}

// snapshotNow stores the current snapshot of a sandbox.
func snapshotNow(t testing.TB, c *jetstream.Conn, tenant, sandbox string) *jetstream.Snapshot {
	t.Helper()
	j := c.Journal(jetstream.JournalConfig{Tenant: tenant, Sandbox: sandbox, Writer: "k9", KeepEnded: 3})
	must(t, j.Refresh(t.Context()))
	s := j.Snapshot()
	_, err := c.WriteSnapshot(t.Context(), tenant, sandbox, s, 0)
	must(t, err)
	return s
}

// compactedHistory makes a long history, stores its snapshot and compacts it.
func compactedHistory(t testing.TB, c *jetstream.Conn, tenant, sandbox string, execs int) {
	t.Helper()
	longHistory(t, c, tenant, sandbox, execs)
	snapshotNow(t, c, tenant, sandbox)
	_, err := c.Compact(t.Context(), tenant, sandbox, small())
	must(t, err)
}

// rawMessage is a message as it is stored.
type rawMessage struct {
	Record uint64
	Batch  []byte
}

func rawHistory(t testing.TB, c *jetstream.Conn, tenant, sandbox string, after uint64) (all []rawMessage) {
	t.Helper()
	must(t, c.ReadHistory(t.Context(), tenant, sandbox, after, func(b *protocol.Batch) bool {
		all = append(all, rawMessage{b.Record, b.Encode()})
		return true
	}))
	return all
}

// sameFrom checks that a history still has these messages. It reads the history from its beginning, and then again
// after each of its messages.
func sameFrom(t testing.TB, c *jetstream.Conn, tenant, sandbox string, want []rawMessage) {
	t.Helper()
	for from := -1; from < len(want); from++ {
		after := uint64(0)
		if from >= 0 {
			after = want[from].Record
		}
		got := rawHistory(t, c, tenant, sandbox, after)
		if len(got) != len(want)-from-1 {
			t.Fatalf("after record %d there are %d messages, want %d", after, len(got), len(want)-from-1)
		}
		for i, m := range got {
			if w := want[from+1+i]; m.Record != w.Record || !bytes.Equal(m.Batch, w.Batch) {
				t.Fatalf("after record %d, message %d is record %d, want %d, or has other content",
					after, i, m.Record, w.Record)
			}
		}
	}
}

func (d *deployment) onSubject(t testing.TB, tenant, sandbox string) int {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(t.Context(), protocol.StreamEvents)
	must(t, err)
	subject := protocol.EventSubject(tenant, sandbox)
	info, err := stream.Info(t.Context(), natsjs.WithSubjectFilter(subject))
	must(t, err)
	return int(info.State.Subjects[subject])
}

// segmentsStored counts a tenant's keys in the bucket of manifests and all messages in the bucket of segments.
func (d *deployment) segmentsStored(t testing.TB, tenant string) (keys, chunks int) {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	counts := map[string]*int{"KV_" + protocol.BucketHistories: &keys, "OBJ_" + protocol.BucketSegments: &chunks}
	for name, count := range counts {
		stream, err := js.Stream(t.Context(), name)
		must(t, err)
		info, err := stream.Info(t.Context(), natsjs.WithSubjectFilter(">"))
		must(t, err)
		for subject := range info.State.Subjects {
			if name[0] == 'O' || strings.Contains(subject, "."+tenant+".") {
				*count++
			}
		}
	}
	return keys, chunks
}

func TestACompactedHistoryReadsTheSameFromEachMessage(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		longHistory(t, c, d.tenant, "s1", 12)
		old := c.Journal(
			jetstream.JournalConfig{
				Tenant:  d.tenant,
				Sandbox: "s1",
				Writer:  "k2",
				OnReset: func() { t.Error("the history was folded again") },
			},
		)
		must(t, old.Refresh(ctx))
		moreHistory(t, c, d.tenant, "s1", 12, 20)
		before, batches := readHistory(t, c, d.tenant, "s1")
		want := rawHistory(t, c, d.tenant, "s1", 0)

		// Without a snapshot the log keeps every message.
		done, err := c.Compact(ctx, d.tenant, "s1", small())
		must(t, err)
		if done.Messages != len(want)-5 || done.Purged != 0 || !done.Waits ||
			d.onSubject(t, d.tenant, "s1") != len(want) {
			t.Fatalf("Compact: %+v, and %d of %d messages are in the log", done, d.onSubject(t, d.tenant, "s1"), len(want))
		}
		sameFrom(t, c, d.tenant, "s1", want)

		snapshotNow(t, c, d.tenant, "s1")
		done, err = c.Compact(ctx, d.tenant, "s1", small())
		must(t, err)
		if done.Messages != 0 || done.Waits || d.onSubject(t, d.tenant, "s1") != 5 {
			t.Fatalf("Compact: %+v, and %d messages are in the log, want 5", done, d.onSubject(t, d.tenant, "s1"))
		}
		other := d.opened(t) // this connection's cache is empty
		sameFrom(t, other, d.tenant, "s1", want)
		after, _ := readHistory(t, other, d.tenant, "s1")
		same(t, "the folds before and after", after, before)
		for _, b := range batches {
			got, err := other.Batch(ctx, d.tenant, "s1", b.Record)
			must(t, err)
			same(t, "a batch by its record", got, b)
		}
		_, err = other.Batch(ctx, d.tenant, "s2", batches[0].Record)
		wantError(t, err, protocol.NotFound, "")

		// A journal whose position is in a segment can continue, and a new journal can read the history.
		for _, j := range []*jetstream.Journal{old, journal(other, d.tenant, "s1", "k3")} {
			must(t, j.Refresh(ctx))
			if s, record := j.State(); s.Sandbox.Sequence != before.Sandbox.Sequence ||
				record != batches[len(batches)-1].Record {
				t.Fatalf("the journal is at event %d, record %d", s.Sandbox.Sequence, record)
			}
		}
		_, err = old.Do(ctx, acceptExec("new"))
		must(t, err)
		moreHistory(t, c, d.tenant, "s1", 20, 24) // the history is compacted a second time
		snapshotNow(t, c, d.tenant, "s1")
		want = rawHistory(t, c, d.tenant, "s1", 0)
		_, err = c.Compact(ctx, d.tenant, "s1", small())
		must(t, err)
		sameFrom(t, d.opened(t), d.tenant, "s1", want)
	})
}

// A crash at any point loses no message, and the next compaction finishes the work.
func TestACompactionThatCrashesAnywhereLosesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"compact-before-store", "compact-before-manifest", "compact-before-purge"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			d := startServer(t, jetstream.Assets{})
			c := d.opened(t)
			longHistory(t, c, d.tenant, "s1", 10)
			snapshotNow(t, c, d.tenant, "s1")
			want := rawHistory(t, c, d.tenant, "s1", 0)
			func() {
				defer func() { _ = recover() }() // the panic is the crash
				cfg := small()
				cfg.Probe = func(p string) {
					if p == point {
						panic("dies at " + p)
					}
				}
				_, err := c.Compact(t.Context(), d.tenant, "s1", cfg)
				t.Errorf("the compaction did not crash: %v", err)
			}()
			sameFrom(t, d.opened(t), d.tenant, "s1", want)
			_, err := c.Compact(t.Context(), d.tenant, "s1", small())
			must(t, err)
			if n := d.onSubject(t, d.tenant, "s1"); n != 5 {
				t.Errorf("%d messages are in the log, want 5", n)
			}
			sameFrom(t, d.opened(t), d.tenant, "s1", want)
			if keys, chunks := d.segmentsStored(t, d.tenant); keys != 1 || chunks != 2 {
				t.Errorf("%d manifest keys and %d chunks are stored, want 1 and 2", keys, chunks)
			}
		})
	}
}

// Readers read while the history is being compacted and appended to.
func TestAHistoryReadsTheSameWhileItIsCompacted(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	longHistory(t, c, d.tenant, "s1", 60)
	want := rawHistory(t, c, d.tenant, "s1", 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 4)
	for range 2 {
		reader := d.opened(t)
		go func() {
			failed <- func() error {
				for ctx.Err() == nil {
					i := 0
					err := reader.ReadHistory(t.Context(), d.tenant, "s1", 0, func(b *protocol.Batch) bool {
						if i < len(want) && (b.Record != want[i].Record || !bytes.Equal(b.Encode(), want[i].Batch)) {
							return false
						}
						i++
						return true
					})
					if err != nil || i < len(want) {
						return fmt.Errorf("message %d of %d, %w", i, len(want), err)
					}
				}
				return nil
			}()
		}()
	}
	for keep := 100; keep > 0; keep -= 12 {
		snapshotNow(t, c, d.tenant, "s1")
		// One of two concurrent compactions may fail with ErrConflict.
		lost := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := c.Compact(
					t.Context(),
					d.tenant,
					"s1",
					jetstream.Compaction{Keep: keep, MinBatches: 1, MinBytes: 1 << 30},
				)
				lost <- err
			}()
		}
		for range 2 {
			if err := <-lost; err != nil && !errors.Is(err, jetstream.ErrConflict) {
				t.Error(err)
			}
		}
		moreHistory(t, c, d.tenant, "s1", 1000-keep, 1001-keep)
	}
	cancel()
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	sameFrom(t, d.opened(t), d.tenant, "s1", rawHistory(t, c, d.tenant, "s1", 0))
}

func TestAHistoryWithExpiredSegmentsIsFoldedFromItsBase(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	compactedHistory(t, c, d.tenant, "s1", 10)
	kept := rawHistory(t, c, d.tenant, "s1", 0)
	moreHistory(t, c, d.tenant, "s1", 10, 20)
	want, _ := readHistory(t, c, d.tenant, "s1")
	cfg := small()
	cfg.MaxAge = time.Hour
	done, err := c.Compact(ctx, d.tenant, "s1", cfg)
	must(t, err)
	if done.Dropped != 0 || done.DropAt.IsZero() {
		t.Fatalf("Compact: %+v, want no dropped segments and the time when the first one expires", done)
	}
	cfg.MaxAge, cfg.Keep = time.Nanosecond, 1000
	done, err = c.Compact(ctx, d.tenant, "s1", cfg)
	must(t, err)
	if done.Dropped == 0 {
		t.Fatalf("Compact: %+v, want dropped segments", done)
	}
	rest := rawHistory(t, d.opened(t), d.tenant, "s1", 0)
	if len(rest) == 0 || rest[0].Record <= kept[0].Record {
		t.Fatalf("%d messages are left, want some, and fewer than before", len(rest))
	}
	opened := uint64(0)
	j := d.opened(t).Journal(jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "s1", Writer: "k3", KeepEnded: 3,
		OnOpen: func(s *protocol.State, _ uint64) { opened = s.Sandbox.Sequence }})
	must(t, j.Refresh(ctx))
	got, _ := j.State()
	want.Trim(3)
	same(t, "the fold", got, want)
	if opened != want.Sandbox.Sequence {
		t.Errorf("OnOpen reported event %d, want %d", opened, want.Sandbox.Sequence)
	}
	_, err = j.Do(ctx, acceptExec("new"))
	must(t, err)
}

func TestAPurgedHistoryLeavesNoSegments(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	compactedHistory(t, c, d.tenant, "s1", 10)
	deleteSandbox(t, c, d.tenant, "s1")
	for range 2 {
		must(t, c.PurgeHistory(ctx, d.tenant, "s1"))
	}
	if keys, chunks := d.segmentsStored(t, d.tenant); keys != 0 || chunks != 0 {
		t.Errorf("%d manifest keys and %d chunks are left", keys, chunks)
	}
	j := journal(d.opened(t), d.tenant, "s1", "k3")
	must(t, j.Refresh(ctx))
	if s, _ := j.State(); !s.Sandbox.HistoryPurged {
		t.Errorf("the sandbox is not marked as purged: %+v", s.Sandbox)
	}
}

// The journal's first messages were moved to a segment and purged from the log. Then the log is restored to a state
// before the journal's position.
func TestAJournalNoticesARewoundLogWithSegments(t *testing.T) {
	t.Parallel()
	d := startBackup(t)
	c := d.opened(t)
	longHistory(t, c, d.tenant, "s1", 10)
	snapshotNow(t, c, d.tenant, "s1")
	_, err := c.Compact(t.Context(), d.tenant, "s1", small())
	must(t, err)
	resets := 0
	lives := c.Journal(
		jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "s1", Writer: "k1", OnReset: func() { resets++ }},
	)
	accept(t, lives, "y1")
	d.take(t)
	accept(t, lives, "y2", "y3")
	d.restore(t)
	accept(t, journal(d.opened(t), d.tenant, "s1", "w1"), "z1", "z2", "z3")
	accept(t, lives, "z4")
	want, _ := readHistory(t, c, d.tenant, "s1")
	got, _ := lives.State()
	same(t, "the journal's fold and the log's", got, want)
	if resets != 1 || got.Execs["y2"] != nil || got.Execs["z1"] == nil {
		t.Errorf("the history was folded again %d times", resets)
	}
}

// A reader verifies the digest of a segment's content.
func TestADamagedSegmentIsNotRead(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	compactedHistory(t, c, d.tenant, "s1", 10)
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	store, err := js.ObjectStore(ctx, protocol.BucketSegments)
	must(t, err)
	objects, err := store.List(ctx)
	must(t, err)
	content, err := store.GetBytes(ctx, objects[0].Name)
	must(t, err)
	content[len(content)/2] ^= 1
	rollups := configOf(t, d, "OBJ_"+protocol.BucketSegments)
	rollups.AllowRollup = true // the client's PutBytes needs rollups
	_, err = js.UpdateStream(ctx, rollups)
	must(t, err)
	_, err = store.PutBytes(ctx, objects[0].Name, content)
	must(t, err)
	err = d.opened(t).ReadHistory(ctx, d.tenant, "s1", 0, func(*protocol.Batch) bool { return true })
	wantError(t, err, protocol.Internal, "")
}

// Many segments are listed in pages, which are dropped and purged together with their segments.
func TestAHistoryOfManySegmentsReadsTheSame(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	c.SmallSegments(600, 2)
	longHistory(t, c, d.tenant, "s1", 11)
	// The events after this pause are at least a second newer, so they do not reach the maximum age below while the
	// test runs.
	older := c.Now()
	eventually.Holds(t, 10*time.Second, "a second has passed", func() bool { return c.Now().Sub(older) > time.Second })
	moreHistory(t, c, d.tenant, "s1", 11, 25)
	snapshotNow(t, c, d.tenant, "s1")
	want := rawHistory(t, c, d.tenant, "s1", 0)
	done, err := c.Compact(ctx, d.tenant, "s1", small())
	must(t, err)
	if keys, _ := d.segmentsStored(t, d.tenant); done.Segments < 8 || keys < 4 {
		t.Fatalf("Compact: %+v, in %d keys; want at least 8 segments in 4 keys", done, keys)
	}
	sameFrom(t, d.opened(t), d.tenant, "s1", want)
	for _, from := range []uint64{1, 2, 9, 17, 30, 50, 53} {
		first := uint64(0)
		visit := func(b *protocol.Batch) bool { first = b.First(); return false }
		must(t, d.opened(t).ReadEvents(ctx, d.tenant, "s1", from, visit))
		if first == 0 || first > from || from-first > 12 {
			t.Errorf("reading from event %d starts at %d", from, first)
		}
	}

	old := want[20].Record // segments that end before this message expire
	b, err := c.Batch(ctx, d.tenant, "s1", old)
	must(t, err)
	cfg := small()
	cfg.MaxAge = time.Since(b.Events[0].Time)
	done, err = c.Compact(ctx, d.tenant, "s1", cfg)
	must(t, err)
	rest := rawHistory(t, d.opened(t), d.tenant, "s1", 0)
	if done.Dropped == 0 || done.DropAt.IsZero() || len(rest) == 0 || len(rest) >= len(want) {
		t.Fatalf("Compact: %+v, and %d of %d messages are left", done, len(rest), len(want))
	}
	sameFrom(t, d.opened(t), d.tenant, "s1", want[len(want)-len(rest):])
	j := journal(d.opened(t), d.tenant, "s1", "k2")
	must(t, j.Refresh(ctx))
	if s, _ := j.State(); s.Sandbox.TotalExecs != 25 {
		t.Errorf("the state counts %d execs, want 25", s.Sandbox.TotalExecs)
	}
	deleteSandbox(t, c, d.tenant, "s1")
	must(t, c.PurgeHistory(ctx, d.tenant, "s1"))
	if keys, chunks := d.segmentsStored(t, d.tenant); keys != 0 || chunks != 0 {
		t.Errorf("%d manifest keys and %d chunks are left", keys, chunks)
	}
}

// A purge died after it removed the pages and before it removed the manifest that lists them.
func TestAnInterruptedPurgeIsFinished(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	c.SmallSegments(600, 2)
	compactedHistory(t, c, d.tenant, "s1", 25)
	deleteSandbox(t, c, d.tenant, "s1")
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(ctx, "KV_"+protocol.BucketHistories)
	must(t, err)
	must(t, stream.Purge(ctx, natsjs.WithPurgeSubject("$KV."+protocol.BucketHistories+"."+d.tenant+".s1.*")))
	must(t, c.PurgeHistory(ctx, d.tenant, "s1"))
}

// The bucket of segments is full. No message leaves the log, and existing segments can still be removed.
func TestAFullSegmentBucketLosesNothingAndCanBeEmptied(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	c.SmallSegments(600, 2)
	longHistory(t, c, d.tenant, "s1", 10)
	_, err := c.Compact(ctx, d.tenant, "s1", small())
	must(t, err)
	longHistory(t, c, d.tenant, "s2", 10)
	snapshotNow(t, c, d.tenant, "s2")
	want := rawHistory(t, c, d.tenant, "s2", 0)
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(ctx, "OBJ_"+protocol.BucketSegments)
	must(t, err)
	full := stream.CachedInfo().Config
	info, err := stream.Info(ctx)
	must(t, err)
	full.MaxBytes = int64(info.State.Bytes)
	_, err = js.UpdateStream(ctx, full)
	must(t, err)
	for range 2 {
		if done, err := c.Compact(ctx, d.tenant, "s2", small()); err == nil {
			t.Fatalf("Compact succeeded with a full bucket: %+v", done)
		}
	}
	if n := d.onSubject(t, d.tenant, "s2"); n != len(want) {
		t.Errorf("%d of %d messages are in the log", n, len(want))
	}
	sameFrom(t, d.opened(t), d.tenant, "s2", want)
	deleteSandbox(t, c, d.tenant, "s1")
	must(t, c.PurgeHistory(ctx, d.tenant, "s1"))
	full.MaxBytes += 1 << 20
	_, err = js.UpdateStream(ctx, full)
	must(t, err)
	done, err := c.Compact(ctx, d.tenant, "s2", small())
	if err != nil || done.Purged == 0 {
		t.Errorf("after room was made: %+v, %v", done, err)
	}
	sameFrom(t, d.opened(t), d.tenant, "s2", want)
}

// The manifest was lost, or comes from an older backup than the log. No event may be appended to a state that lacks
// events.
func TestP2_AHistoryWhoseSegmentsAreLostGetsNoNumberTwice(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	compactedHistory(t, c, d.tenant, "s1", 10)
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(ctx, "KV_"+protocol.BucketHistories)
	must(t, err)
	must(t, stream.Purge(ctx))
	j := journal(c, d.tenant, "s1", "k3")
	events, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if s.Exists() {
			return nil, nil
		}
		return []protocol.Event{
			{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}},
		}, nil
	})
	if err == nil {
		t.Errorf("appended %d events to a history of more than 20 as if it were empty", len(events))
	}
	// The snapshot includes the missing events.
	j = c.Journal(jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "s1", Writer: "k3", FromSnapshot: true})
	if events, err := j.Do(ctx, acceptExec("new")); err != nil || events[0].Sequence < 22 {
		t.Errorf("an append to the state from the snapshot: %v, %v; want event 22 or a later one", events, err)
	}
}

// BenchmarkCompact measures how fast messages are moved into segments, and read by a client with an empty cache.
func BenchmarkCompact(b *testing.B) {
	d := startServer(b, jetstream.Assets{})
	c := d.opened(b)
	const execs = 10_000
	manyBatches(b, c, d.tenant, "s1", execs)
	snapshotNow(b, c, d.tenant, "s1")
	want := len(rawHistory(b, c, d.tenant, "s1", 0))
	began := time.Now()
	done, err := c.Compact(b.Context(), d.tenant, "s1", jetstream.Compaction{Keep: 1000})
	must(b, err)
	took := time.Since(began)
	for b.Loop() {
		if got := len(rawHistory(b, d.opened(b), d.tenant, "s1", 0)); got != want {
			b.Fatalf("read %d messages, want %d", got, want)
		}
	}
	b.ReportMetric(float64(want)*float64(b.N)/b.Elapsed().Seconds(), "read/s")
	b.ReportMetric(float64(done.Messages)/took.Seconds(), "moved/s")
	b.ReportMetric(float64(done.Segments), "segments")
}
