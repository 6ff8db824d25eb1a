package coordinator

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// execIndex knows the ids of all execs that the sandboxes ever had, and where their events are in the log. It says
// whether an id may be used, together with the append that uses it: what is appended was decided on a fold of
// everything before it, so of two requests for one id the log takes one. A registry beside the log would cost
// every exec another durable write before its first event.
//
// What the log said since the leader stored the index last is in memory, at every coordinator. Everything before
// is in the bucket; of that a filter for each page is in memory while it is used, which answers for almost every
// new id. Where it cannot, the page is read: see [execIndex.find]. So memory does not grow with what is over.
type execIndex struct {
	conn *jetstream.Conn
	log  *slog.Logger

	mu     sync.Mutex
	of     map[key]*execsOf           // none: the sandbox has had no exec
	heads  *cache[key, *execHead]     // with the filters
	pages  *cache[pageKey, execPages] // as they were read
	lines  uint64                     // how many lines of heads there were, see [execHead]
	live   bool                       // the log was followed to its end
	rewind bool                       // the log was set back: what is stored may be of another history
	shared singleflight.Group         // reads of whole indexes and histories
}

// What is kept of indexes in memory, in bytes, at most.
const (
	execFilters = 32 << 20 // 10 bits for each id: 26 million ids
	execPagesOf = 32 << 20
)

// execsOf is what is known of a sandbox's execs beside what is stored. The index has everything up to base, and
// recent what came after it.
type execsOf struct {
	base   jetstream.Position // zero: recent has everything, from the beginning of the history on
	total  int                // execs accepted so far, as the fold counts them
	recent map[jetstream.ExecHash]recentExec
	marks  []jetstream.Position // of the messages that recent has, in their order
	heard  jetstream.Position   // a head was stored that reaches to here, where the fold has not come yet
	old    map[uint64]struct{}  // prefixes of ids that an older version stored, and the history does not have
	mayBe  bool                 // an index may be stored
	drops  uint64               // how often something of recent was forgotten, because it is stored
}

type recentExec struct {
	jetstream.ExecEntry
	last uint64 // record of the newest message that says something of it
}

// execHead is the head of an index without its entries, and filters of the pages that were looked at. Heads of one line
// follow each other: what was read of the pages of one holds for the others, as their versions say.
type execHead struct {
	*jetstream.ExecHead
	line    uint64
	inHead  *filter
	onPages map[int]*filter
}

func (h *execHead) size() int {
	n := 300 + h.inHead.size()
	for _, f := range h.onPages {
		n += 24 + f.size()
	}
	return n
}

// pageKey names a page that was read. A page of the same version has all that was on it then.
type pageKey struct {
	key
	line    uint64 // of the head
	version uint64 // of the head: its revision; of others: the head's spills
	page    int    // or one of those below
}

const (
	entriesOfHead = -1
	allEntries    = -2 // in the order of their acceptance, the newest first
)

// execPages is a page, or the whole index in its order.
type execPages struct {
	page jetstream.ExecPage
	all  []jetstream.ExecEntry
}

func newExecIndex(conn *jetstream.Conn, log *slog.Logger) *execIndex {
	return &execIndex{conn: conn, log: log, of: map[key]*execsOf{},
		heads: newCache[key, *execHead](execFilters), pages: newCache[pageKey, execPages](execPagesOf)}
}

// restored notes that a sandbox's fold begins with a snapshot: the index is stored before that.
func (x *execIndex) restored(k key, s *protocol.State) {
	switch s.Sandbox.State {
	case protocol.StateFailed, protocol.StateDeleting, protocol.StateDeleted:
		return // it gets no more execs, and a request for one is refused by its state
	}
	if s.Sandbox.TotalExecs == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.of[k]; e == nil || e.total != s.Sandbox.TotalExecs { // else it was followed to here
		x.begins(k, s)
	}
}

// begins notes that what came before a state was not shown here. x.mu is held.
func (x *execIndex) begins(k key, s *protocol.State) {
	e := x.of[k]
	if e == nil {
		e = &execsOf{}
		x.of[k] = e
	}
	e.base, e.total, e.mayBe = jetstream.Position{Record: s.ExecRecord}, s.Sandbox.TotalExecs, true
}

// expect makes sure that what is known of a sandbox's execs goes as far as its fold, however that came about.
func (x *execIndex) expect(k key, s *protocol.State) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.of[k]; s.Sandbox.TotalExecs > 0 && (e == nil || e.total < s.Sandbox.TotalExecs) {
		x.begins(k, s)
	}
}

// caughtUp says that the log was followed to its end: what begins now has no index yet.
func (x *execIndex) caughtUp() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.live = true
}

// reset notes that a history is folded again from its beginning, because the log was set back. The ids stay.
func (x *execIndex) reset(k key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rewind = true
	x.heads.remove(k)
	if e := x.of[k]; e != nil {
		for hash := range e.recent {
			e.recent[hash] = recentExec{ExecEntry: jetstream.ExecEntry{Hash: hash}}
		}
		e.base, e.total, e.marks, e.heard, e.mayBe = jetstream.Position{}, 0, nil, jetstream.Position{}, true
	}
}

// forget drops a sandbox that is purged.
func (x *execIndex) forget(k key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.of, k)
	x.heads.remove(k)
}

// applied takes over what a batch says of execs; s is the fold after it.
func (x *execIndex) applied(k key, s *protocol.State, b *protocol.Batch) {
	said, accepted := entriesOf(s, b)
	if len(said) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.of[k]
	if e == nil {
		e = &execsOf{mayBe: !x.live || x.rewind}
		x.of[k] = e
	}
	if s.Sandbox.TotalExecs > e.total+accepted { // the fold went over something that was not shown here
		e.base, e.mayBe = jetstream.Position{Record: b.Record - 1}, true
	}
	e.total = s.Sandbox.TotalExecs
	for _, entry := range said {
		e.add(entry, b.Record)
	}
	if at := (jetstream.Position{Record: b.Record, Batch: b.ID}); len(e.marks) == 0 || e.marks[len(e.marks)-1].Record < b.Record {
		if e.marks = append(e.marks, at); at == e.heard {
			e.drop(at)
		}
	}
}

func (e *execsOf) add(entry jetstream.ExecEntry, record uint64) {
	if e.recent == nil {
		e.recent = map[jetstream.ExecHash]recentExec{}
	}
	r := e.recent[entry.Hash]
	r.ExecEntry, r.last = r.With(entry), max(r.last, record)
	r.Hash = entry.Hash
	e.recent[entry.Hash] = r
}

// drop forgets what is stored, up to a message.
func (e *execsOf) drop(stored jetstream.Position) {
	i, found := slices.BinarySearchFunc(e.marks, stored.Record, func(m jetstream.Position, record uint64) int { return cmp.Compare(m.Record, record) })
	if !found || e.marks[i] != stored {
		if i == len(e.marks) {
			e.heard = stored // of a history that the fold may come to yet
		}
		return
	}
	for hash, r := range e.recent {
		if r.last <= stored.Record {
			delete(e.recent, hash)
		}
	}
	if len(e.recent) == 0 {
		e.recent = nil // a map keeps its size
	}
	e.base, e.marks, e.heard, e.old, e.mayBe = stored, slices.Clone(e.marks[i+1:]), jetstream.Position{}, nil, true
	e.drops++
}

// entriesOf lists what a batch says of execs, and how many it accepts.
func entriesOf(s *protocol.State, b *protocol.Batch) (said []jetstream.ExecEntry, accepted int) {
	for i := range b.Events {
		e := &b.Events[i]
		if e.Exec == nil || e.Exec.ID == "" {
			continue
		}
		entry := jetstream.ExecEntry{Hash: jetstream.HashExec(e.Exec.ID)}
		switch e.Kind {
		case protocol.ExecAccepted:
			if s != nil && s.Execs[e.Exec.ID] != nil && s.Execs[e.Exec.ID].AcceptSequence != e.Sequence {
				continue // the fold did not take it
			}
			entry.Accepted, entry.Sequence, entry.State = b.Record, e.Sequence, protocol.ExecStateAccepted
			accepted++
		case protocol.ExecStarted:
			entry.Started, entry.State = b.Record, protocol.ExecStateRunning
		case protocol.ExecCancelRequested:
			entry.Cancelling = true
		case protocol.ExecFinished:
			entry.Ended, entry.State = b.Record, protocol.ExecStateFinished
		case protocol.ExecFailed:
			entry.Ended, entry.State = b.Record, protocol.ExecStateFailed
		case protocol.ExecCancelled:
			entry.Ended, entry.State = b.Record, protocol.ExecStateCancelled
		case protocol.ExecTimedOut:
			entry.Ended, entry.State = b.Record, protocol.ExecStateTimedOut
		default:
			continue
		}
		said = append(said, entry)
	}
	return said, accepted
}

// headStored takes over a head that somebody stored.
func (x *execIndex) headStored(k key, h *jetstream.ExecHead) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.of[k]
	if _, there := x.heads.get(k); there || e != nil {
		x.keepHead(k, h)
	}
	if e != nil {
		e.drop(h.Last)
	}
}

// keepHead keeps a head in memory, without its entries, unless there is a newer one. x.mu is held.
func (x *execIndex) keepHead(k key, h *jetstream.ExecHead) *execHead {
	known, there := x.heads.get(k)
	if there && known.Stored() >= h.Stored() {
		return known
	}
	kept := &execHead{ExecHead: h.WithoutEntries(), inHead: filterOf(h.Entries), onPages: map[int]*filter{}}
	if there && h.Follows(known.ExecHead) {
		kept.line = known.line
		if known.Depth == h.Depth && (known.Spills == h.Spills || x.spilled(k, known, h.Last)) {
			kept.onPages = known.onPages
		}
	} else { // of an index that was made again
		x.lines++
		kept.line = x.lines
	}
	x.heads.put(k, kept, kept.size())
	x.pages.put(pageKey{k, kept.line, h.Stored(), entriesOfHead}, execPages{page: h.Entries}, len(h.Entries)+200)
	return kept
}

// spilled adds to the filters of pages what somebody moved there: no more than was in the head before, and what
// came since, up to the message at last. It reports false where that is not all in memory: the head is not any more, or
// the fold has not come to last yet. x.mu is held.
func (x *execIndex) spilled(k key, known *execHead, last jetstream.Position) bool {
	e := x.of[k]
	before, there := x.pages.get(pageKey{k, known.line, known.Stored(), entriesOfHead})
	if !there || e == nil || e.base.Record > known.Last.Record || !slices.Contains(e.marks, last) {
		return false
	}
	add := func(hash jetstream.ExecHash) {
		page := known.Page(hash)
		if f := known.onPages[page]; f != nil && !f.add(hash) {
			delete(known.onPages, page) // it is full, and made again when it is wanted
		}
	}
	for i := range before.page.Len() {
		add(before.page.At(i).Hash)
	}
	for hash := range e.recent {
		add(hash)
	}
	return true
}

// follow hears what is stored, until ctx ends.
func (x *execIndex) follow(ctx context.Context) error {
	return x.conn.FollowExecHeads(ctx, func(tenant, sandbox string, h *jetstream.ExecHead) {
		x.headStored(key{tenant, sandbox}, h)
	}, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.heads = newCache[key, *execHead](x.heads.most) // something may have been stored that was not heard
	})
}

// seen is what was found of ids in the stored part of an index. That one was not found holds while nothing is
// forgotten of what came after.
type seen map[jetstream.ExecHash]struct {
	used  bool
	drops uint64
}

// errUnsure says that memory cannot tell whether an id was used: [execIndex.look] can.
var errUnsure = errors.New("it is not known whether the id was used")

// used says whether an exec of the sandbox ever had the id, as far as its history is folded. It does no I/O.
func (x *execIndex) used(k key, id string, looked seen) (bool, error) {
	hash := jetstream.HashExec(id)
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.of[k]
	if e == nil {
		return false, nil
	}
	if e.has(hash) {
		return true, nil
	}
	if !e.mayBe {
		return false, nil
	}
	if l, did := looked[hash]; did && (l.used || l.drops == e.drops) {
		return l.used, nil
	}
	h, there := x.heads.get(k)
	if !there || h.inHead.mayHave(hash) {
		return false, errUnsure
	}
	if h.Depth > 0 {
		if f := h.onPages[h.Page(hash)]; f == nil || f.mayHave(hash) {
			return false, errUnsure
		}
	}
	return false, nil
}

func (e *execsOf) has(hash jetstream.ExecHash) bool {
	if _, used := e.recent[hash]; used {
		return true
	}
	_, used := e.old[hash.Prefix()]
	return used
}

// look reads what memory cannot tell of ids, so that [execIndex.used] can.
func (x *execIndex) look(ctx context.Context, k key, looked seen, ids ...string) error {
	for _, id := range ids {
		if _, err := x.used(k, id, looked); err == nil {
			continue
		}
		_, found, drops, err := x.find(ctx, k, id)
		if err != nil {
			return err
		}
		l := looked[jetstream.HashExec(id)]
		l.used, l.drops = found, drops
		looked[jetstream.HashExec(id)] = l
	}
	return nil
}
