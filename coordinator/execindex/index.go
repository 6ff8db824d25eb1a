package execindex

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

// Index says whether an exec id was used in a sandbox, and where the events of an exec are. A decision asks the index
// while it appends. The append succeeds only if the history has not changed since the decision, so the log accepts only
// one of two requests for the same id. A registry of exec ids beside the log would cost every exec another durable
// write before its first event.
//
// On every coordinator, memory holds the ids that came since the leader last stored the index. All older ids are in the
// bucket. A filter of each page in use is cached, and answers for almost every new id. If a filter cannot answer, the
// page is read, see [Index.Find]. So memory does not grow with the number of ended execs.
type Index struct {
	conn *jetstream.Conn
	log  *slog.Logger

	mu        sync.Mutex
	sandboxes map[key]*sandboxExecs      // no entry: the sandbox has had no exec
	heads     *cache[key, *indexHead]    // heads that were read, with filters
	pages     *cache[pageKey, readPages] // pages that were read
	lines     uint64                     // number of the newest line of heads, see [indexHead]
	live      bool                       // the log has been followed to its end
	rewind    bool                       // the log was rewound, so a stored index may belong to another history
	shared    singleflight.Group         // reads of whole indexes and histories
}

// Limits of the caches, in bytes.
const (
	filtersBytes = 32 << 20 // 10 bits for each id: 26 million ids
	pagesBytes   = 32 << 20
)

// sandboxExecs is the part of a sandbox's index that is in memory. The stored index has all entries up to base; recent
// has the entries after base.
type sandboxExecs struct {
	base        jetstream.Position // zero: recent has all entries since the history began
	total       int                // execs accepted so far, as the fold counts them
	recent      map[jetstream.ExecHash]recentExec
	marks       []jetstream.Position // positions of the messages whose execs are in recent, in log order
	announced   jetstream.Position   // a stored head covers the log up to this position, which the fold has not reached
	old         map[uint64]struct{}  // prefixes of ids that an older version stored and the history no longer has
	maybeStored bool                 // the bucket may have an index of the sandbox
	drops       uint64               // how often entries were removed from recent because they are stored
}

type recentExec struct {
	jetstream.ExecEntry
	last uint64 // record of the newest message about the exec
}

// indexHead is the head of a stored index without its entries, with filters of the pages that were read. Heads belong
// to one line if each was stored as the successor of the previous head. A page that was read under one head of a line
// is also valid under another head of the line, unless the version in [pageKey] has changed.
type indexHead struct {
	*jetstream.ExecHead
	line        uint64
	headFilter  *filter
	pageFilters map[int]*filter
}

func (h *indexHead) size() int {
	n := 300 + h.headFilter.size()
	for _, f := range h.pageFilters {
		n += 24 + f.size()
	}
	return n
}

// pageKey identifies a page that was read. Pages with the same key always have the same content.
type pageKey struct {
	key
	line    uint64 // line of the head
	version uint64 // for entriesOfHead, the revision of the head; for a page, the value of Spills in the head
	page    int    // number of a page, or one of the constants below
}

const (
	entriesOfHead = -1
	allEntries    = -2 // all entries, the last accepted first
)

// readPages is one page, or the whole index in order.
type readPages struct {
	page jetstream.ExecPage
	All  []jetstream.ExecEntry
}

type key = protocol.SandboxKey

// New returns an empty index.
func New(conn *jetstream.Conn, log *slog.Logger) *Index {
	return &Index{conn: conn, log: log, sandboxes: map[key]*sandboxExecs{},
		heads: newCache[key, *indexHead](filtersBytes), pages: newCache[pageKey, readPages](pagesBytes)}
}

// Restored tells the index that a sandbox's fold begins with a snapshot. The index was stored before the snapshot.
func (x *Index) Restored(k key, s *protocol.State) {
	switch s.Sandbox.State {
	case protocol.StateFailed, protocol.StateDeleting, protocol.StateDeleted:
		return // the sandbox accepts no more execs
	}
	if s.Sandbox.TotalExecs == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// If the totals are equal, the index already covers the snapshot.
	if e := x.sandboxes[k]; e == nil || e.total != s.Sandbox.TotalExecs {
		x.entry(k).beginAt(s)
	}
}

// beginAt records that the index in memory begins after the given state.
func (e *sandboxExecs) beginAt(s *protocol.State) {
	e.base, e.total, e.maybeStored = jetstream.Position{Record: s.ExecRecord}, s.Sandbox.TotalExecs, true
}

// entry returns the part of a sandbox's index that is in memory. If there is none, it creates an empty part. The caller
// holds x.mu.
func (x *Index) entry(k key) *sandboxExecs {
	e := x.sandboxes[k]
	if e == nil {
		e = &sandboxExecs{}
		x.sandboxes[k] = e
	}
	return e
}

// EnsureCovers makes sure that the index covers all execs that a sandbox's fold has counted.
func (x *Index) EnsureCovers(k key, s *protocol.State) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.sandboxes[k]; s.Sandbox.TotalExecs > 0 && (e == nil || e.total < s.Sandbox.TotalExecs) {
		x.entry(k).beginAt(s)
	}
}

// LogFollowed tells the index that the log was followed to its end. From then on, if a history begins, its sandbox has
// no stored index yet.
func (x *Index) LogFollowed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.live = true
}

// Reset tells the index that a history is folded again from its beginning, because the log was rewound. The exec ids
// that were used stay used.
func (x *Index) Reset(k key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rewind = true
	x.heads.remove(k)
	if e := x.sandboxes[k]; e != nil {
		for hash := range e.recent {
			e.recent[hash] = recentExec{ExecEntry: jetstream.ExecEntry{Hash: hash}}
		}
		e.base, e.total, e.marks, e.announced, e.maybeStored = jetstream.Position{}, 0, nil, jetstream.Position{}, true
	}
}

// Forget drops a sandbox from memory.
func (x *Index) Forget(k key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.sandboxes, k)
	x.heads.remove(k)
}

// Applied adds the execs of a batch; s is the fold including the batch.
func (x *Index) Applied(k key, s *protocol.State, b *protocol.Batch) {
	said, accepted := entriesOf(s, b)
	if len(said) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.sandboxes[k]
	if e == nil {
		e = &sandboxExecs{maybeStored: !x.live || x.rewind}
		x.sandboxes[k] = e
	}
	if s.Sandbox.TotalExecs > e.total+accepted { // the fold includes batches that the index has not seen
		e.base, e.maybeStored = jetstream.Position{Record: b.Record - 1}, true
	}
	e.total = s.Sandbox.TotalExecs
	for _, entry := range said {
		e.add(entry, b.Record)
	}
	if at := (jetstream.Position{Record: b.Record, Batch: b.ID}); len(e.marks) == 0 ||
		e.marks[len(e.marks)-1].Record < b.Record {
		if e.marks = append(e.marks, at); at == e.announced {
			e.drop(at)
		}
	}
}

func (e *sandboxExecs) add(entry jetstream.ExecEntry, record uint64) {
	if e.recent == nil {
		e.recent = map[jetstream.ExecHash]recentExec{}
	}
	r := e.recent[entry.Hash]
	r.ExecEntry, r.last = r.With(entry), max(r.last, record)
	r.Hash = entry.Hash
	e.recent[entry.Hash] = r
}

// drop removes the stored entries from memory: the entries of all messages up to the given position.
func (e *sandboxExecs) drop(stored jetstream.Position) {
	i, found := slices.BinarySearchFunc(e.marks, stored.Record,
		func(m jetstream.Position, record uint64) int { return cmp.Compare(m.Record, record) })
	if !found || e.marks[i] != stored {
		if i == len(e.marks) {
			e.announced = stored // dropped once the fold has reached this position
		}
		return
	}
	for hash, r := range e.recent {
		if r.last <= stored.Record {
			delete(e.recent, hash)
		}
	}
	if len(e.recent) == 0 {
		e.recent = nil // an emptied map keeps its memory
	}
	e.base, e.marks, e.announced, e.old, e.maybeStored =
		stored, slices.Clone(e.marks[i+1:]), jetstream.Position{}, nil, true
	e.drops++
}

// entriesOf lists the execs that a batch mentions, and counts the execs that it accepts.
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
				continue // the fold rejected the event: the id was used before
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

// headStored updates memory after a coordinator has stored a head.
func (x *Index) headStored(k key, h *jetstream.ExecHead) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.sandboxes[k]
	if _, there := x.heads.get(k); there || e != nil {
		x.cacheHead(k, h)
	}
	if e != nil {
		e.drop(h.Last)
	}
}

// cacheHead caches a head without its entries, unless a newer head is cached. The caller holds x.mu.
func (x *Index) cacheHead(k key, h *jetstream.ExecHead) *indexHead {
	known, there := x.heads.get(k)
	if there && known.Stored() >= h.Stored() {
		return known
	}
	kept := &indexHead{ExecHead: h.WithoutEntries(), headFilter: filterOf(h.Entries), pageFilters: map[int]*filter{}}
	if there && h.Follows(known.ExecHead) {
		kept.line = known.line
		if known.Depth == h.Depth && (known.Spills == h.Spills || x.spilled(k, known, h.Last)) {
			kept.pageFilters = known.pageFilters
		}
	} else { // the index was rebuilt
		x.lines++
		kept.line = x.lines
	}
	x.heads.put(k, kept, kept.size())
	x.pages.put(pageKey{k, kept.line, h.Stored(), entriesOfHead}, readPages{page: h.Entries}, len(h.Entries)+200)
	return kept
}

// spilled updates the page filters after entries were moved from the head to pages. It adds all entries that may have
// moved: the entries of the previous head, and the entries of later messages up to the position last. It returns false
// if memory does not have all these entries: the previous head is no longer cached, or the fold has not reached last.
// The caller holds x.mu.
func (x *Index) spilled(k key, known *indexHead, last jetstream.Position) bool {
	e := x.sandboxes[k]
	before, there := x.pages.get(pageKey{k, known.line, known.Stored(), entriesOfHead})
	if !there || e == nil || e.base.Record > known.Last.Record || !slices.Contains(e.marks, last) {
		return false
	}
	add := func(hash jetstream.ExecHash) {
		page := known.Page(hash)
		if f := known.pageFilters[page]; f != nil && !f.add(hash) {
			delete(known.pageFilters, page) // the filter is full; the next read of the page makes a new filter
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

// Follow follows the heads that coordinators store, until ctx ends.
func (x *Index) Follow(ctx context.Context) error {
	return x.conn.FollowExecHeads(ctx, func(tenant, sandbox string, h *jetstream.ExecHead) {
		x.headStored(key{Tenant: tenant, ID: sandbox}, h)
	}, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.heads = newCache[key, *indexHead](x.heads.limit) // heads that were stored during an interruption were missed
	})
}

// Lookups are the results of looking up ids in the stored index, for one decision. The result that an id was not found
// is valid until entries are removed from memory.
type Lookups map[jetstream.ExecHash]struct {
	Used  bool
	drops uint64
}

// ErrUnknown says that memory cannot tell whether an id was used; call [Index.Lookup], then ask again.
var ErrUnknown = errors.New("the index in memory does not say whether the exec id was used")

// Used reports whether an exec of the sandbox ever had the id, as far as the sandbox's history is folded. It does no
// I/O.
func (x *Index) Used(k key, id string, lookups Lookups) (bool, error) {
	hash := jetstream.HashExec(id)
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.sandboxes[k]
	if e == nil {
		return false, nil
	}
	if e.has(hash) {
		return true, nil
	}
	if !e.maybeStored {
		return false, nil
	}
	if l, did := lookups[hash]; did && (l.Used || l.drops == e.drops) {
		return l.Used, nil
	}
	h, there := x.heads.get(k)
	if !there || h.headFilter.mayHave(hash) {
		return false, ErrUnknown
	}
	if h.Depth > 0 {
		if f := h.pageFilters[h.Page(hash)]; f == nil || f.mayHave(hash) {
			return false, ErrUnknown
		}
	}
	return false, nil
}

func (e *sandboxExecs) has(hash jetstream.ExecHash) bool {
	if _, used := e.recent[hash]; used {
		return true
	}
	_, used := e.old[hash.Prefix()]
	return used
}

// Lookup reads from the stored index whether ids were used, if memory cannot tell. [Index.Used] then answers from
// lookups.
func (x *Index) Lookup(ctx context.Context, k key, lookups Lookups, ids ...string) error {
	for _, id := range ids {
		if _, err := x.Used(k, id, lookups); err == nil {
			continue
		}
		_, found, drops, err := x.Find(ctx, k, id)
		if err != nil {
			return err
		}
		l := lookups[jetstream.HashExec(id)]
		l.Used, l.drops = found, drops
		lookups[jetstream.HashExec(id)] = l
	}
	return nil
}
