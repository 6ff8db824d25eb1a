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

// ErrNoIndex says that a sandbox's index of execs, or a page of it, is not there or cannot be read: it is to be
// made again from the history.
var ErrNoIndex = errors.New("there is no index of execs yet")

// headKey ends the key of a head: tenant.sandbox.head. Pages are at tenant.sandbox.<pages>.<number>, where the
// name of the pages says how ids are spread over them: those of a head that was lost are not mixed with others.
// Older versions have pages of half hashes at tenant.sandbox.<number>, from 0 on.
const headKey = "head"

func execHeadKey(tenant, sandbox string) string { return tenant + "." + sandbox + "." + headKey }

// pagesKey is that of all pages of a depth, without their numbers.
func (h *ExecHead) pagesKey(tenant, sandbox string, depth int) string {
	return fmt.Sprintf("%s.%s.p%d_%016x", tenant, sandbox, depth, h.salt)
}

func (h *ExecHead) pageKey(tenant, sandbox string, depth, page int) string {
	return h.pagesKey(tenant, sandbox, depth) + "." + strconv.Itoa(page)
}

// ExecHead reads the head of a sandbox's index. Error: [ErrNoIndex], with an empty head where one is stored that
// cannot be read.
func (c *Conn) ExecHead(ctx context.Context, tenant, sandbox string) (*ExecHead, error) {
	value, revision, err := c.kv(protocol.BucketExecIDs).get(ctx, execHeadKey(tenant, sandbox))
	switch {
	case protocol.CodeOf(err) == protocol.NotFound || err == nil && value == nil:
		return nil, ErrNoIndex
	case err != nil:
		return nil, err
	}
	h, err := decodeHead(value, revision)
	if err != nil {
		c.log.Error("an index of execs cannot be read, and is made again", "sandbox", sandbox, "error", err)
		return &ExecHead{salt: rand.Uint64(), revision: revision}, ErrNoIndex
	}
	return h, nil
}

// ExecPage reads a page of the index that has this head. Error: [ErrNoIndex].
func (c *Conn) ExecPage(ctx context.Context, tenant, sandbox string, h *ExecHead, page int) (ExecPage, error) {
	value, _, err := c.kv(protocol.BucketExecIDs).get(ctx, h.pageKey(tenant, sandbox, h.Depth, page))
	switch {
	case protocol.CodeOf(err) == protocol.NotFound || err == nil && value == nil:
		return nil, ErrNoIndex
	case err != nil:
		return nil, err
	}
	p, err := decodePage(value)
	if err != nil {
		c.log.Error("a page of execs cannot be read, and is made again", "sandbox", sandbox, "page", page, "error", err)
		return nil, ErrNoIndex
	}
	return p, nil
}

// pagesAtOnce is how many pages are read or written at a time.
const pagesAtOnce = 8

// ExecPages reads all pages of an index. Error: [ErrNoIndex].
func (c *Conn) ExecPages(ctx context.Context, tenant, sandbox string, h *ExecHead) ([]ExecPage, error) {
	if h.Depth == 0 {
		return nil, nil
	}
	pages := make([]ExecPage, 1<<h.Depth)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pagesAtOnce)
	for i := range pages {
		group.Go(func() (err error) {
			pages[i], err = c.ExecPage(ctx, tenant, sandbox, h, i)
			return err
		})
	}
	return pages, group.Wait()
}

// ErrIndexRemoved says that an index is gone that the caller has seen: somebody removed it, or it was lost.
var ErrIndexRemoved = errors.New("the index of execs was removed")

// StoreExecs adds entries to a sandbox's index. last is the last message that says something of execs up to which
// index and entries together have everything. known is the head that the caller read or stored last; nil: there is
// none, as far as it knows. whole says that the entries are those of the whole
// history, so that pages may be missing. It returns the head as it is stored then. What another process stored stays,
// whichever of the two comes late. Errors: [ErrIndexRemoved]; [ErrNoIndex] where a page is lost.
//
// Pages are written first, and then the head that says so: a reader of a head finds everything in it or in one
// of its pages. Where the head was replaced meanwhile, all is done again from that one.
func (c *Conn) StoreExecs(ctx context.Context, tenant, sandbox string, known *ExecHead, add []ExecEntry, last Position, whole bool) (*ExecHead, error) {
	b, key := c.kv(protocol.BucketExecIDs), execHeadKey(tenant, sandbox)
	h := known
	pause := backoff.New(firstPause, retryPause)
	for {
		if h == nil {
			h = &ExecHead{salt: rand.Uint64()}
		}
		next := *h
		next.Last = last
		if h.Last.Record > last.Record { // of a leader after this one, or of a history that was lost
			newer, err := c.HasBatch(ctx, tenant, sandbox, h.Last)
			if err != nil {
				return nil, err
			}
			if newer {
				next.Last = h.Last
			}
		}
		next.Entries = h.Entries.With(add)
		spilled := next.Entries.Len() > headMost
		if spilled && h.revision == 0 { // the salt must stand before pages are made by it
			next.Entries, next.Last = nil, Position{}
			spilled = false
		}
		if spilled {
			err := c.spill(ctx, tenant, sandbox, &next, whole)
			if err == ErrNoIndex { // perhaps somebody made more pages, and took these away
				var now *ExecHead
				if now, err = c.ExecHead(ctx, tenant, sandbox); err == nil && now.revision != h.revision {
					h = now
					continue
				}
				if err == nil {
					err = ErrNoIndex
				}
			}
			if err != nil {
				return nil, err
			}
		}
		revision, err := b.putOver(ctx, key, next.encode(), h.revision)
		if err == nil {
			next.revision = revision
			if spilled && next.Depth != h.Depth && h.Depth > 0 {
				err = c.purge(ctx, b.stream(), b.subject(h.pagesKey(tenant, sandbox, h.Depth)+".*"), 0)
				if err != nil {
					c.log.Warn("old pages of execs are left", "sandbox", sandbox, "error", err)
				}
			}
			if next.Last.Record == 0 {
				h = &next
				continue // now with the pages
			}
			return &next, nil
		}
		if err != ErrConflict || !pause.Wait(ctx) {
			return nil, err
		}
		was := h.revision
		h, err = c.ExecHead(ctx, tenant, sandbox)
		if err == ErrNoIndex && was != 0 && h == nil {
			return nil, ErrIndexRemoved
		}
		if err != nil && err != ErrNoIndex {
			return nil, err
		}
	}
}

// putOver is put, over a value of a revision; 0: over none, or a delete marker.
func (b kv) putOver(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if revision == 0 {
		return b.create(ctx, key, value)
	}
	return b.put(ctx, key, value, int64(revision))
}

// HasBatch says whether a place is one of a sandbox's history.
func (c *Conn) HasBatch(ctx context.Context, tenant, sandbox string, at Position) (bool, error) {
	b, err := c.Batch(ctx, tenant, sandbox, at.Record)
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	return err == nil && b.ID == at.Batch, err
}

// FirstBatch reads the first batch that the log has of a sandbox's history. Error: not_found.
func (c *Conn) FirstBatch(ctx context.Context, tenant, sandbox string) (*protocol.Batch, error) {
	m, err := c.nextOnSubject(ctx, protocol.StreamEvents, protocol.EventSubject(tenant, sandbox), 1)
	if err != nil {
		return nil, err
	}
	b, err := c.batchOf(m)
	if b == nil && err == nil {
		err = protocol.Errorf(protocol.NotFound, "", "the history of sandbox %s does not begin with its own", sandbox)
	}
	return b, err
}

// spill moves the entries of a head to its pages, of which there are twice as many where they would be too full.
func (c *Conn) spill(ctx context.Context, tenant, sandbox string, h *ExecHead, whole bool) error {
	entries, depth := h.Entries.Entries(), depthFor(h.Count+h.Entries.Len(), h.Depth)
	if depth != h.Depth {
		pages, err := c.ExecPages(ctx, tenant, sandbox, h)
		if err != nil && !(whole && err == ErrNoIndex) {
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
			before, after, err := c.growPage(ctx, h.pageKey(tenant, sandbox, depth, n), more, depth == h.Depth && !whole)
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

// growPage adds entries to a page. must says that there is one: otherwise it was lost, and what was on it.
func (c *Conn) growPage(ctx context.Context, key string, more []ExecEntry, must bool) (before, after int, err error) {
	_, err = c.kv(protocol.BucketExecIDs).replace(ctx, key, 0, func(old []byte) ([]byte, error) {
		p, damaged := ExecPage(nil), error(nil)
		if old != nil {
			if p, damaged = decodePage(old); damaged != nil {
				c.log.Error("a page of execs cannot be read, and is made again", "key", key, "error", damaged)
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

// FollowExecHeads hears of every head that is stored from now on, until ctx ends. begun is called when it begins;
// nothing that is stored after that is missed.
func (c *Conn) FollowExecHeads(ctx context.Context, handle func(tenant, sandbox string, h *ExecHead), begun func()) error {
	b := c.kv(protocol.BucketExecIDs)
	from, err := c.lastSequence(ctx, b.stream())
	if err != nil {
		return err
	}
	begun()
	return c.follow(ctx, b.stream(), b.subject("*.*."+headKey), from+1, func(m *stored) {
		parts := strings.Split(b.key(m.subject), ".")
		if len(parts) != 3 || m.deleted() {
			return
		}
		h, err := decodeHead(m.data, m.sequence)
		if err != nil {
			c.log.Error("an index of execs cannot be read", "key", b.key(m.subject), "error", err)
			return
		}
		handle(parts[0], parts[1], h)
	}, nil)
}

// EachExecEvent reads a sandbox's history from its beginning and hands out what it says of execs, in its
// order, with the place of the message that says it.
func (c *Conn) EachExecEvent(ctx context.Context, tenant, sandbox string, visit func(b *protocol.Batch)) error {
	return c.ReadHistory(ctx, tenant, sandbox, 0, func(b *protocol.Batch) bool {
		visit(b)
		return true
	})
}

// execIDPage is a page of an older version: the hashes of ids in the order of the sandbox's history, eight
// bytes each.
type execIDPage struct {
	Version int    `json:"v"`
	Hashes  []byte `json:"hashes"`
}

// OldExecIDs reads the ids that an older version stored of a sandbox's execs, as [ExecHash.Prefix].
func (c *Conn) OldExecIDs(ctx context.Context, tenant, sandbox string) (prefixes []uint64, err error) {
	for page := 0; ; page++ {
		value, _, err := c.kv(protocol.BucketExecIDs).get(ctx, tenant+"."+sandbox+"."+strconv.Itoa(page))
		if protocol.CodeOf(err) == protocol.NotFound || err == nil && value == nil {
			return prefixes, nil
		}
		if err != nil {
			return nil, err
		}
		var p execIDPage
		if err := protocol.Decode(value, &p); err != nil {
			c.log.Error("an old page of exec ids cannot be read", "sandbox", sandbox, "page", page, "error", err)
			continue
		}
		for b := range slices.Chunk(p.Hashes, 8) {
			if len(b) == 8 {
				prefixes = append(prefixes, binary.BigEndian.Uint64(b))
			}
		}
	}
}
