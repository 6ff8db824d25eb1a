package jetstream_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func entries(from, to int, state protocol.ExecState) (all []jetstream.ExecEntry) {
	for i := from; i < to; i++ {
		e := jetstream.ExecEntry{
			Hash:     jetstream.HashExec(fmt.Sprint("x", i)),
			Accepted: uint64(i + 1),
			Sequence: uint64(i + 1),
			State:    state,
		}
		if state.Terminal() {
			e.Ended = uint64(i + 2)
		}
		all = append(all, e)
	}
	return all
}

func findExec(
	t testing.TB,
	c *jetstream.Conn,
	tenant string,
	h *jetstream.ExecHead,
	id string,
) (jetstream.ExecEntry, bool) {
	t.Helper()
	x := jetstream.HashExec(id)
	if e, found := h.Entries.Find(x); found {
		return e, true
	}
	if h.Depth == 0 {
		return jetstream.ExecEntry{}, false
	}
	p, err := c.ExecPage(t.Context(), tenant, "s1", h, h.Page(x))
	must(t, err)
	return p.Find(x)
}

// storeAsLeader stores entries of execs in steps. A lagging leader skips some steps, and then stores everything up to
// the current step.
func storeAsLeader(t *testing.T, c *jetstream.Conn, tenant string, lagging bool, execs, step int) {
	var known *jetstream.ExecHead
	for to := step; to <= execs; to += step {
		if lagging && rand.IntN(2) == 0 {
			continue
		}
		from, state := to-step, protocol.ExecStateRunning
		if lagging {
			from = 0
		} else if to%800 == 0 {
			state = protocol.ExecStateFinished
		}
		last := jetstream.Position{Record: uint64(to)}
		h, err := c.StoreExecs(t.Context(), tenant, "s1", known, entries(from, to, state), last, false)
		if err != nil {
			t.Error(err)
			return
		}
		if known = h; rand.IntN(3) == 0 {
			known = nil // the next step begins like another process, which knows no head
		}
	}
}

// Two leaders store entries concurrently, and the older one lags behind. Every entry that one of them stored stays.
func TestAnExecIndexOnlyGrows(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		const execs, step = 6000, 400
		var wg sync.WaitGroup
		for leader := range 2 {
			wg.Go(func() { storeAsLeader(t, c, d.tenant, leader == 1, execs, step) })
		}
		wg.Wait()
		h, err := c.ExecHead(ctx, d.tenant, "s1")
		must(t, err)
		for i := 0; i < execs; i += 61 {
			id := fmt.Sprint("x", i)
			if e, found := findExec(t, c, d.tenant, h, id); !found || e.Accepted != uint64(i+1) {
				t.Fatalf("the entry of %s is %+v, found: %t", id, e, found)
			}
		}
		if _, found := findExec(t, c, d.tenant, h, "never"); found {
			t.Error("found an exec that never existed")
		}
		pages, err := c.ExecPages(ctx, d.tenant, "s1", h)
		must(t, err)
		for i, p := range pages {
			if len(p) > 64<<10 {
				t.Errorf("page %d of %d has %d bytes", i, len(pages), len(p))
			}
		}
		t.Logf("the index has %d pages", len(pages))

		// An index that was removed with its sandbox is not stored again by a process that still knows it.
		must(t, c.PurgeHistory(ctx, d.tenant, "s1"))
		late, last := entries(0, 1, protocol.ExecStateRunning), jetstream.Position{Record: execs + 1}
		if _, err := c.StoreExecs(ctx, d.tenant, "s1", h, late, last, false); err != jetstream.ErrIndexRemoved {
			t.Errorf("StoreExecs after the purge: %v, want %v", err, jetstream.ErrIndexRemoved)
		}
		if _, err := c.ExecHead(ctx, d.tenant, "s1"); err != jetstream.ErrNoIndex {
			t.Errorf("ExecHead after the purge: %v, want %v", err, jetstream.ErrNoIndex)
		}
		if _, err := c.ExecPage(ctx, d.tenant, "s1", h, 0); err != jetstream.ErrNoIndex {
			t.Errorf("ExecPage after the purge: %v, want %v", err, jetstream.ErrNoIndex)
		}
	})
}

func TestAnExecPageHasWhatWasAdded(t *testing.T) {
	t.Parallel()
	var p jetstream.ExecPage
	want := map[jetstream.ExecHash]jetstream.ExecEntry{}
	for range 50 {
		from := rand.IntN(500)
		state := []protocol.ExecState{protocol.ExecStateAccepted, protocol.ExecStateFinished}[rand.IntN(2)]
		more := entries(from, from+rand.IntN(40), state)
		rand.Shuffle(len(more), func(i, k int) { more[i], more[k] = more[k], more[i] })
		p = p.With(more)
		for _, e := range more {
			want[e.Hash] = want[e.Hash].With(e)
		}
	}
	if p.Len() != len(want) {
		t.Errorf("the page has %d entries, want %d", p.Len(), len(want))
	}
	for hash, e := range want {
		e.Hash = hash
		if got, found := p.Find(hash); !found || got != e {
			t.Fatalf("want %+v, got %+v", e, got)
		}
	}
	// An earlier version stored only half of an id's hash. The complete hash finds such an entry too.
	x := jetstream.HashExec("old")
	p = p.With([]jetstream.ExecEntry{jetstream.EntryOfLostHistory(x.Prefix())})
	if e, found := p.Find(x); !found || e.Accepted != 0 {
		t.Errorf("the entry of an earlier version is %+v, found: %t", e, found)
	}
	if _, found := p.Find(jetstream.HashExec("never")); found {
		t.Error("found an exec that never existed")
	}
}

// A late write by a process that knows less does not undo newer values.
func TestAnExecEntryOnlyMovesForward(t *testing.T) {
	t.Parallel()
	ended := jetstream.ExecEntry{
		Accepted:   1,
		Sequence:   1,
		Started:    2,
		Ended:      3,
		State:      protocol.ExecStateFailed,
		Cancelling: true,
	}
	for _, late := range []jetstream.ExecEntry{
		{},
		{Accepted: 1, Sequence: 1, State: protocol.ExecStateAccepted},
		{Started: 2, State: protocol.ExecStateRunning},
	} {
		if got := ended.With(late); got != ended {
			t.Errorf("with %+v the entry is %+v", late, got)
		}
	}
}
