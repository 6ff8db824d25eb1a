package jetstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// ErrNoIndex says that a sandbox's index of execs, or a page of the index, is missing or unreadable. The index must
// then be rebuilt from the history.
var ErrNoIndex = errors.New("the index of execs is missing or unreadable")

// headKey is the end of a head's key: tenant.sandbox.head. The keys of its pages are tenant.sandbox.<pages>.<number>.
// <pages> includes the salt that spreads ids over the pages, so that pages of a lost head are not mixed with pages of
// another head. Earlier versions of Boxfleet stored pages with only the first half of each hash under
// tenant.sandbox.<number>, starting with 0.
const headKey = "head"

func execHeadKey(tenant, sandbox string) string { return tenant + "." + sandbox + "." + headKey }

// pagesKey returns the part of the key that all pages of a depth share: the key without the page's number.
func (h *ExecHead) pagesKey(tenant, sandbox string, depth int) string {
	return fmt.Sprintf("%s.%s.p%d_%016x", tenant, sandbox, depth, h.salt)
}

func (h *ExecHead) pageKey(tenant, sandbox string, depth, page int) string {
	return h.pagesKey(tenant, sandbox, depth) + "." + strconv.Itoa(page)
}

// ExecIndex stores and reads the index of the execs of each sandbox.
type ExecIndex struct {
	*streams

	histories *Histories
}

// ExecHead reads the head of a sandbox's index. Error: [ErrNoIndex], together with an empty head if the stored head is
// unreadable.
func (x *ExecIndex) ExecHead(ctx context.Context, tenant, sandbox string) (*ExecHead, error) {
	value, revision, err := x.kv(protocol.BucketExecIDs).get(ctx, execHeadKey(tenant, sandbox))
	switch {
	case protocol.CodeOf(err) == protocol.NotFound || err == nil && value == nil:
		return nil, ErrNoIndex
	case err != nil:
		return nil, err
	}
	h, err := decodeHead(value, revision)
	if err != nil {
		x.log.Error("could not decode the head of an index of execs; rebuilding the index",
			"sandbox", sandbox, "error", err)
		return &ExecHead{salt: rand.Uint64(), revision: revision}, ErrNoIndex
	}
	return h, nil
}

// ExecPage reads a page of the index with this head. Error: [ErrNoIndex].
func (x *ExecIndex) ExecPage(ctx context.Context, tenant, sandbox string, h *ExecHead, page int) (ExecPage, error) {
	value, _, err := x.kv(protocol.BucketExecIDs).get(ctx, h.pageKey(tenant, sandbox, h.Depth, page))
	switch {
	case protocol.CodeOf(err) == protocol.NotFound || err == nil && value == nil:
		return nil, ErrNoIndex
	case err != nil:
		return nil, err
	}
	p, err := decodePage(value)
	if err != nil {
		x.log.Error("could not decode a page of an index of execs; rebuilding the index",
			"sandbox", sandbox, "page", page, "error", err)
		return nil, ErrNoIndex
	}
	return p, nil
}

// pagesAtOnce is how many pages are read or written concurrently.
const pagesAtOnce = 8

// ExecPages reads all pages of an index. Error: [ErrNoIndex].
func (x *ExecIndex) ExecPages(ctx context.Context, tenant, sandbox string, h *ExecHead) ([]ExecPage, error) {
	if h.Depth == 0 {
		return nil, nil
	}
	pages := make([]ExecPage, 1<<h.Depth)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pagesAtOnce)
	for i := range pages {
		group.Go(func() (err error) {
			pages[i], err = x.ExecPage(ctx, tenant, sandbox, h, i)
			return err
		})
	}
	return pages, group.Wait()
}

// ErrIndexRemoved says that an index that existed when the caller last read it no longer exists.
var ErrIndexRemoved = errors.New("the index of execs was removed")

// StoreExecs adds entries to a sandbox's index and returns the stored head. known is the head that the caller last read
// or stored, or nil. With the new entries, the index covers the history up to last, the position of the last message
// that has an exec's event. If complete is true, the new entries cover the entire history, and StoreExecs may replace
// missing pages. Entries that another process stores at the same time are kept. Errors: [ErrIndexRemoved]; [ErrNoIndex]
// if a page is lost.
//
// Pages are written before the head that refers to them, so that a reader of a head finds every entry in the head or on
// one of its pages. If another process replaces the head at the same time, StoreExecs starts again from the new head.
func (x *ExecIndex) StoreExecs(ctx context.Context, tenant, sandbox string, known *ExecHead, add []ExecEntry,
	last Position, complete bool) (*ExecHead, error) {
	b, key := x.kv(protocol.BucketExecIDs), execHeadKey(tenant, sandbox)
	h, pause := known, backoff.New(firstPause, retryPause)
	for {
		if h == nil {
			h = &ExecHead{salt: rand.Uint64()}
		}
		next, err := x.nextHead(ctx, tenant, sandbox, h, add, last, complete)
		if err == ErrNoIndex { // another process may have made more pages and removed the old ones
			now, err := x.ExecHead(ctx, tenant, sandbox)
			if err != nil {
				return nil, err
			}
			if now.revision == h.revision {
				return nil, ErrNoIndex
			}
			h = now
			continue
		}
		if err != nil {
			return nil, err
		}
		revision, err := b.putOver(ctx, key, next.encode(), h.revision)
		if err == nil {
			next.revision = revision
			if next.Depth != h.Depth && h.Depth > 0 {
				x.removePages(ctx, tenant, sandbox, h)
			}
			if next.Last.Record != 0 {
				return next, nil
			}
			h = next // the salt is stored; the next round writes the pages
			continue
		}
		if err != ErrConflict || !pause.Wait(ctx) {
			return nil, err
		}
		if h, err = x.newerHead(ctx, tenant, sandbox, h.revision); err != nil {
			return nil, err
		}
	}
}

// nextHead returns the head that replaces h, with more entries. If there are too many entries for the head, nextHead
// writes them to the pages.
func (x *ExecIndex) nextHead(ctx context.Context, tenant, sandbox string, h *ExecHead, add []ExecEntry,
	last Position, complete bool) (*ExecHead, error) {
	next := *h
	next.Last = last
	if h.Last.Record > last.Record { // a later leader wrote h, or h covers a history that was lost
		newer, err := x.histories.HasBatch(ctx, tenant, sandbox, h.Last)
		if err != nil {
			return nil, err
		}
		if newer {
			next.Last = h.Last
		}
	}
	next.Entries = h.Entries.With(add)
	if next.Entries.Len() <= headMost {
		return &next, nil
	}
	if h.revision == 0 { // store the salt before pages depend on it
		next.Entries, next.Last = nil, Position{}
		return &next, nil
	}
	return &next, x.spill(ctx, tenant, sandbox, &next, complete)
}

// newerHead reads the head that replaced an older head. replaced is the revision of the older head, or 0 if that head
// was not stored. newerHead returns nil if no head was ever stored.
func (x *ExecIndex) newerHead(ctx context.Context, tenant, sandbox string, replaced uint64) (*ExecHead, error) {
	h, err := x.ExecHead(ctx, tenant, sandbox)
	if err == ErrNoIndex && replaced != 0 && h == nil {
		return nil, ErrIndexRemoved
	}
	if err != nil && err != ErrNoIndex {
		return nil, err
	}
	return h, nil
}

// removePages removes the pages of a head that was replaced by a head with more pages.
func (x *ExecIndex) removePages(ctx context.Context, tenant, sandbox string, old *ExecHead) {
	b := x.kv(protocol.BucketExecIDs)
	pages := b.subject(old.pagesKey(tenant, sandbox, old.Depth) + ".*")
	if err := x.purge(ctx, b.stream(), pages, 0); err != nil {
		x.log.Warn("could not remove old pages of an index of execs", "sandbox", sandbox, "error", err)
	}
}

// putOver writes a key if the key's revision is the given one. Revision 0 means that the key must be new or deleted.
func (b kv) putOver(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if revision == 0 {
		return b.create(ctx, key, value)
	}
	return b.put(ctx, key, value, int64(revision))
}

// HasBatch reports whether a position is part of a sandbox's history.
func (h *Histories) HasBatch(ctx context.Context, tenant, sandbox string, at Position) (bool, error) {
	b, err := h.Batch(ctx, tenant, sandbox, at.Record)
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	return err == nil && b.ID == at.Batch, err
}

// FirstBatch reads the oldest batch of a sandbox's history that is still in the log. Error: not_found.
func (h *Histories) FirstBatch(ctx context.Context, tenant, sandbox string) (*protocol.Batch, error) {
	v := h.verdicts(tenant, sandbox)
	for after := uint64(0); ; {
		next, err := h.events.historyNext(ctx, tenant, sandbox, after)
		if err == nil && len(next) == 0 {
			err = protocol.Errorf(protocol.NotFound, "", "the log has no batch of sandbox %s", sandbox)
		}
		if err != nil {
			return nil, err
		}
		accepts, err := v.accepts(ctx, &next[0])
		if err != nil || accepts {
			return next[0].batch, err
		}
		after = next[0].record
	}
}

// spill moves the entries of a head to its pages. It makes more pages if the existing pages would be too full.
func (x *ExecIndex) spill(ctx context.Context, tenant, sandbox string, h *ExecHead, complete bool) error {
	entries, depth := h.Entries.Entries(), depthFor(h.Count+h.Entries.Len(), h.Depth)
	if depth != h.Depth {
		pages, err := x.ExecPages(ctx, tenant, sandbox, h)
		if err != nil && !(complete && err == ErrNoIndex) {
			return err
		}
		for _, p := range pages {
			entries = append(entries, p.Entries()...)
		}
		h.Count = 0
	}
	to := make([][]ExecEntry, 1<<depth)
	for _, e := range entries {
		n := pageAt(h.salt, depth, e.Hash)
		to[n] = append(to[n], e)
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pagesAtOnce)
	for n, more := range to {
		if len(more) == 0 && depth == h.Depth {
			continue
		}
		group.Go(func() error {
			key, must := h.pageKey(tenant, sandbox, depth, n), depth == h.Depth && !complete
			before, after, err := x.growPage(ctx, key, more, must)
			mu.Lock()
			defer mu.Unlock()
			if h.Count += after; depth == h.Depth {
				h.Count -= before
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	h.Depth, h.Entries = depth, nil
	h.Spills++
	return nil
}

// growPage adds entries to a page. If the parameter must is true, the page must exist already: growPage returns
// [ErrNoIndex] if the page is missing or damaged.
func (x *ExecIndex) growPage(
	ctx context.Context, key string, more []ExecEntry, must bool,
) (before, after int, err error) {
	_, err = x.kv(protocol.BucketExecIDs).replace(ctx, key, 0, func(old []byte) ([]byte, error) {
		p, damaged := ExecPage(nil), error(nil)
		if old != nil {
			if p, damaged = decodePage(old); damaged != nil {
				x.log.Error("could not decode a page of an index of execs; rebuilding the index",
					"key", key, "error", damaged)
			}
		}
		if must && (old == nil || damaged != nil) {
			return nil, ErrNoIndex
		}
		all := p.With(more)
		before, after = p.Len(), all.Len()
		return protocol.Encode(&pageValue{Version: protocol.Version, Entries: all}), nil
	})
	return before, after, err
}

// FollowExecHeads calls handle for every head that is stored from now on, until ctx ends. It calls begun at the start:
// handle receives every head that is stored after this call.
func (x *ExecIndex) FollowExecHeads(
	ctx context.Context,
	handle func(tenant, sandbox string, h *ExecHead),
	begun func(),
) error {
	b := x.kv(protocol.BucketExecIDs)
	from, err := x.lastSequence(ctx, b.stream())
	if err != nil {
		return err
	}
	begun()
	return x.follow(ctx, b.stream(), b.subject("*.*."+headKey), from+1, func(m *stored) {
		parts := strings.Split(b.key(m.subject), ".")
		if len(parts) != 3 || m.deleted() {
			return
		}
		h, err := decodeHead(m.data, m.sequence)
		if err != nil {
			x.log.Error("could not decode the head of an index of execs", "key", b.key(m.subject), "error", err)
			return
		}
		handle(parts[0], parts[1], h)
	}, nil)
}

// EachExecEvent visits the batches of a sandbox's history from its beginning, in order.
func (h *Histories) EachExecEvent(ctx context.Context, tenant, sandbox string, visit func(b *protocol.Batch)) error {
	return h.ReadHistory(ctx, tenant, sandbox, 0, func(b *protocol.Batch) bool {
		visit(b)
		return true
	})
}

// execIDPage is a page as earlier versions of Boxfleet stored it: the hashes of ids in the order of the sandbox's
// history, eight bytes each.
type execIDPage struct {
	Version int    `json:"v"`
	Hashes  []byte `json:"hashes"`
}

// OldExecIDs reads the exec ids that an earlier version of Boxfleet stored for a sandbox, as [ExecHash.Prefix].
func (x *ExecIndex) OldExecIDs(ctx context.Context, tenant, sandbox string) (prefixes []uint64, err error) {
	for page := 0; ; page++ {
		value, _, err := x.kv(protocol.BucketExecIDs).get(ctx, tenant+"."+sandbox+"."+strconv.Itoa(page))
		if protocol.CodeOf(err) == protocol.NotFound || err == nil && value == nil {
			return prefixes, nil
		}
		if err != nil {
			return nil, err
		}
		var p execIDPage
		if err := protocol.Decode(value, &p); err != nil {
			x.log.Error("could not decode a page of exec ids that an earlier version of Boxfleet stored",
				"sandbox", sandbox, "page", page, "error", err)
			continue
		}
		for b := range slices.Chunk(p.Hashes, 8) {
			if len(b) == 8 {
				prefixes = append(prefixes, binary.BigEndian.Uint64(b))
			}
		}
	}
}
