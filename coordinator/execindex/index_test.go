package execindex

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// indexed is one coordinator's view of the sandbox's execs.
type indexed struct {
	*Index
	j *jetstream.Journal
}

var theOne = key{Tenant: "default", ID: "a"}

func (d *deployment) indexed(from *jetstream.Snapshot) *indexed {
	d.t.Helper()
	x := New(d.conn, slog.New(slog.DiscardHandler))
	x.live = from == nil
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: theOne.Tenant, Sandbox: theOne.ID, Writer: "c", KeepEnded: 8,
		OnApply: func(s *protocol.State,
			b *protocol.Batch) {
			x.Applied(theOne, s, b)
		}, OnReset: func() { x.Reset(theOne) }})
	if from != nil {
		copied := *from
		copied.State = from.State.Clone()
		j.Restore(&copied)
		x.Restored(theOne, from.State)
	}
	i := &indexed{x, j}
	i.refresh(d)
	return i
}

func (i *indexed) refresh(d *deployment) {
	d.t.Helper()
	if err := i.j.Refresh(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

// keep takes a snapshot and stores the index, as a leader does.
func (i *indexed) keep(d *deployment) *jetstream.Snapshot {
	s := i.j.Snapshot()
	if err := i.Store(d.t.Context(), theOne); err != nil {
		d.t.Error(err)
	}
	return s
}

// knows asks whether an id was used, as a coordinator does when it decides a request.
func (i *indexed) knows(d *deployment, id string) bool {
	d.t.Helper()
	lookups := Lookups{}
	for {
		used, err := i.Used(theOne, id, lookups)
		if err == nil {
			return used
		}
		if !errors.Is(err, ErrUnknown) {
			d.t.Fatal(err)
		}
		if err := i.Lookup(d.t.Context(), theOne, lookups, id); err != nil {
			d.t.Fatal(err)
		}
	}
}

// read reads an exec as a coordinator does: from the fold, or through the index if the exec ended long ago.
func (i *indexed) read(d *deployment, id string) (x *protocol.Exec, err error) {
	i.j.View(func(s *protocol.State, _ uint64) { x = s.Execs[id] })
	if x != nil {
		return x, nil
	}
	entry, found, _, err := i.Find(d.t.Context(), theOne, id)
	if err != nil || !found {
		return nil, err
	}
	return Read(d.t.Context(), theOne, entry, d.conn.Batch)
}

// evict empties the caches.
func (i *indexed) evict() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.heads, i.pages = newCache[key, *indexHead](1), newCache[pageKey, readPages](1)
}

// accepting returns a function that appends one batch: it accepts n execs, and ends some of the active execs.
func (d *deployment) accepting() (accept func(first, n int)) {
	zero := 0
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: theOne.Tenant, Sandbox: theOne.ID, Writer: "w1", KeepEnded: 1})
	return func(first, n int) {
		d.t.Helper()
		_, err := j.Do(d.t.Context(), func(s *protocol.State, _ time.Time) (events []protocol.Event, err error) {
			for _, x := range s.Active() {
				if len(events) < 300 {
					if x.State == protocol.ExecStateAccepted {
						events = append(events,
							protocol.Event{Kind: protocol.ExecStarted,
								Exec: &protocol.ExecDetails{ID: x.ID, Boot: "b"}})
					}
					events = append(events,
						protocol.Event{Kind: protocol.ExecFinished,
							Exec: &protocol.ExecDetails{ID: x.ID, ExitCode: &zero, Inline: true}})
				}
			}
			for i := first; i < first+n; i++ {
				events = append(events, protocol.Event{Kind: protocol.ExecAccepted, Request: fmt.Sprint("r", i),
					Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i),
						Spec: &protocol.ExecSpec{Command: []string{"true"}}}})
			}
			return events, nil
		})
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

// Two coordinators store the index late and concurrently. Each of them receives or misses the other's writes, evicts
// pages, and restarts. A used id must stay used, and no unused id may be refused.
func TestP3_UsedExecIDsStayKnownWhateverHappensToCoordinators(t *testing.T) {
	t.Parallel()
	d := provisioned(t)
	accept := d.accepting()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	both := []*indexed{d.indexed(nil), d.indexed(nil)}
	known := []int{0, 0} // how many ids each coordinator has seen
	next := 0
	var saved *jetstream.Snapshot
	for step := range 60 {
		which := r.IntN(2)
		i := both[which]
		switch r.IntN(8) {
		case 0, 1, 2, 3:
			n := 1 + r.IntN(150)
			accept(next, n)
			next += n
			if r.IntN(3) > 0 {
				i.refresh(d)
				known[which] = next
			}
		case 4:
			saved = i.keep(d)
		case 5: // both store concurrently
			var wg sync.WaitGroup
			for _, i := range both {
				wg.Go(func() { i.keep(d) })
			}
			wg.Wait()
		case 6:
			i.evict()
		case 7:
			if r.IntN(3) == 0 && saved != nil {
				both[which], known[which] = d.indexed(saved), next
			} else if h, err := d.conn.ExecHead(t.Context(), "default", "a"); err == nil {
				i.headStored(theOne, h)
			}
		}
		for range 5 {
			for w, i := range both {
				if known[w] > 0 {
					if id := fmt.Sprint("x", r.IntN(known[w])); !i.knows(d, id) {
						t.Fatalf("step %d: coordinator %d takes the used id %s for unused", step, w, id)
					}
				}
				if id := fmt.Sprint("never-", r.Uint64()); i.knows(d, id) {
					t.Fatalf("step %d: coordinator %d takes the unused id %s for used", step, w, id)
				}
			}
		}
	}
	accept(next, 3)
	for w, i := range append(both, d.indexed(nil)) {
		i.refresh(d)
		d.agrees(fmt.Sprint("coordinator ", w), i)
	}
	if h, err := d.conn.ExecHead(t.Context(), "default", "a"); err == nil {
		t.Logf("%d execs, %d pages, %d spills", next, 1<<h.Depth, h.Spills)
	}
}

// agrees checks that the index agrees with the fold of the whole history.
func (d *deployment) agrees(who string, i *indexed) {
	t := d.t
	t.Helper()
	whole := d.conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: "a", Writer: "judge",
		KeepEnded: 1 << 30})
	if err := whole.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, _ := whole.State()
	all, err := i.All(t.Context(), theOne)
	if err != nil {
		t.Fatal(err)
	}
	listed, last := map[jetstream.ExecHash]jetstream.ExecEntry{}, uint64(1<<62)
	for e := range all {
		if e.Sequence >= last {
			t.Fatalf("%s: the exec of event %d is listed after that of event %d", who, e.Sequence, last)
		}
		listed[e.Hash], last = e, e.Sequence
	}
	if len(listed) != len(s.Execs) {
		t.Errorf("%s: %d of %d execs are listed", who, len(listed), len(s.Execs))
	}
	lookups := 0
	for id, want := range s.Execs {
		if e := listed[jetstream.HashExec(id)]; e.State != want.State || e.Sequence != want.AcceptSequence {
			t.Fatalf("%s: exec %s is listed as %+v, want %+v", who, id, e, want)
		}
		if lookups++; lookups > 60 {
			continue
		}
		got, err := i.read(d, id)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: exec %s is\n%+v, want\n%+v, %v", who, id, got, want, err)
		}
	}
}

func TestAPastExecEqualsTheFoldOfTheWholeHistory(t *testing.T) {
	t.Parallel()
	d := provisioned(t)
	code := 3
	say := func(events ...protocol.Event) {
		d.appendEvents(events...)
	}
	accept := func(id string) protocol.Event {
		return protocol.Event{Kind: protocol.ExecAccepted, Request: "r-" + id, Exec: &protocol.ExecDetails{ID: id,
			Spec: &protocol.ExecSpec{Command: []string{"sh"}, Stdin: []byte("in")}}}
	}
	of := func(kind protocol.Kind, id string) protocol.Event {
		return protocol.Event{Kind: kind, Request: "rq", Reason: "why", Exec: &protocol.ExecDetails{ID: id}}
	}
	say(accept("finished"), accept("cancelled"), accept("never-started"))
	say(of(protocol.ExecStarted, "finished"), of(protocol.ExecStarted, "cancelled"))
	say(of(protocol.ExecCancelRequested, "cancelled"))
	say(protocol.Event{Kind: protocol.ExecFinished,
		Exec: &protocol.ExecDetails{ID: "finished", ExitCode: &code, Started: time.Unix(5, 0).UTC(),
			StdoutBytes: 3, Inline: true, Stdout: []byte("out"), OOMKills: 1}})
	say(of(protocol.ExecCancelled, "cancelled"), of(protocol.ExecFailed, "never-started"), accept("timed-out"),
		of(protocol.ExecStarted, "timed-out"))
	say(of(protocol.ExecTimedOut, "timed-out"), accept("runs"), of(protocol.ExecStarted, "runs"), accept("waits"))
	i := d.indexed(nil)
	d.agrees("from memory", i)
	more := d.accepting()
	for from := range 20 { // until only the last of the execs above is still in the fold
		more(10*from, 10)
	}
	i.refresh(d)
	d.agrees("not stored", i)
	s := i.keep(d)
	d.agrees("stored", i)
	d.agrees("after a restart", d.indexed(s))
}

// The index in the bucket is lost entirely or in part.
func TestP3_ALostIndexIsRebuiltFromTheHistory(t *testing.T) {
	const execs = 2000 // enough that the index has pages
	for name, lose := range map[string]string{
		"everything": "default.a.>", "the head": "default.a.head", "the pages": "default.a.*.>",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := provisioned(t)
			accept := d.accepting()
			i := d.indexed(nil)
			var s *jetstream.Snapshot
			for from := 0; from < execs; from += 100 {
				accept(from, 100)
				if i.refresh(d); from%1000 == 900 {
					s = i.keep(d)
				}
			}
			h, err := d.conn.ExecHead(t.Context(), "default", "a")
			if err != nil || h.Depth == 0 {
				t.Fatalf("the head is %+v, %v", h, err)
			}
			accept(execs, 10)
			d.purgeBucket(protocol.BucketExecIDs, lose)
			i.evict()
			accept(execs+10, 10)
			for who, i := range map[string]*indexed{"the leader": i, "after a restart": d.indexed(s)} {
				i.refresh(d)
				for _, id := range []string{"x0", "x7", fmt.Sprint("x", execs-1), fmt.Sprint("x", execs+15)} {
					if !i.knows(d, id) {
						t.Errorf("%s: the used id %s is taken for unused", who, id)
					}
				}
				if i.knows(d, "never") {
					t.Errorf("%s: an unused id is taken for used", who)
				}
				d.agrees(who, i)
				s = i.keep(d)
			}
			// The whole index is lost again. A new coordinator has nothing to add, but checks that the index is stored.
			d.purgeBucket(protocol.BucketExecIDs, "default.a.>")
			again := d.indexed(s)
			if err := again.StoreThrough(t.Context(), theOne, again.j.Snapshot()); err != nil {
				t.Error(err)
			}
			if n := d.storedExecs("a"); n != execs+20 {
				t.Errorf("%d of %d execs are in the stored index", n, execs+20)
			}
			d.agrees("after another restart", d.indexed(s))
		})
	}
}

// An older version stored only the prefixes of hashes. The history with these ids may have been lost since.
func TestP3_IDsThatAnOlderVersionStoredAreRefused(t *testing.T) {
	t.Parallel()
	d := provisioned(t)
	accept := d.accepting()
	accept(0, 20)
	d.storeAsBefore("a", "x3", "x5", "of a lost history")
	// Snapshots of an older version are not usable, so the history is folded again.
	check := func(who string, i *indexed) {
		t.Helper()
		for _, id := range []string{"x0", "x3", "x19", "of a lost history"} {
			if !i.knows(d, id) {
				t.Errorf("%s: the used id %q is taken for unused", who, id)
			}
		}
		if i.knows(d, "never") {
			t.Errorf("%s: an unused id is taken for used", who)
		}
		d.agrees(who, i)
	}
	i := d.startedLate()
	check("after the upgrade", i)
	s := i.keep(d)
	check("stored", i)
	i = d.indexed(s)
	check("after a restart", i)
	for from := range 20 {
		accept(100+100*from, 100)
	}
	i.refresh(d)
	s = i.keep(d)
	check("on pages", i)
	check("on pages, after a restart", d.indexed(s))
}

// readPages looks up unused ids, so that the index reads pages and caches them.
func (i *indexed) readPages(d *deployment) {
	d.t.Helper()
	for n := range 1000 {
		if i.knows(d, fmt.Sprint("never-", n)) {
			d.t.Errorf("an unused id is taken for used")
		}
	}
}

// knowsAll checks that the ids of the first n execs count as used.
func (i *indexed) knowsAll(d *deployment, who string, n int) {
	d.t.Helper()
	missing := 0
	for x := range n {
		if !i.knows(d, fmt.Sprint("x", x)) {
			missing++
		}
	}
	if missing > 0 {
		d.t.Errorf("%s: %d of %d used ids are taken for unused", who, missing, n)
	}
}

// hears gives a standby the stored head, as if the standby had followed the index.
func (i *indexed) hears(d *deployment) {
	d.t.Helper()
	h, err := d.conn.ExecHead(d.t.Context(), "default", "a")
	if err != nil {
		d.t.Fatal(err)
	}
	i.headStored(theOne, h)
}

// A standby has cached the filters of some pages. Then further execs are moved to these pages. The standby learns this
// before it has folded the last of the moved execs.
func TestP3_AStandbyThatIsBehindStillKnowsUsedIDs(t *testing.T) {
	t.Parallel()
	d := provisioned(t)
	accept, next := d.accepting(), 0
	leader, standby := d.indexed(nil), d.indexed(nil)
	more := func(n int) {
		for range n / 100 {
			accept(next, 100)
			next += 100
		}
		leader.refresh(d)
	}
	for range 9 {
		more(1600)
		standby.refresh(d)
		leader.keep(d)
		standby.hears(d)
	}
	standby.readPages(d)
	more(1400)
	standby.refresh(d)
	more(100)
	leader.keep(d)
	standby.hears(d)
	standby.refresh(d)
	standby.knowsAll(d, "the standby", next)
}

// The index is lost, and rebuilt from the history with other pages. Cached pages of the old index must not be used for
// the new index.
func TestP3_ARebuiltIndexIsNotReadFromOldCachedPages(t *testing.T) {
	t.Parallel()
	d := provisioned(t)
	accept, next := d.accepting(), 0
	leader, standby := d.indexed(nil), d.indexed(nil)
	both := map[string]*indexed{"the leader": leader, "the standby": standby}
	more := func(n int) {
		for range n / 100 {
			accept(next, 100)
			next += 100
		}
		for _, i := range both {
			i.refresh(d)
		}
		leader.keep(d)
		standby.hears(d)
	}
	for range 3 {
		more(1600)
	}
	standby.readPages(d)
	leader.readPages(d)
	d.purgeBucket(protocol.BucketExecIDs, "default.a.>")
	more(100)
	for spills := range 3 { // until the new index has had as many spills as the old one
		if spills > 0 {
			more(1600)
		}
		for who, i := range both {
			i.knowsAll(d, who, next)
		}
	}
}
