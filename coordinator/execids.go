package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// execIDs are the ids of all execs that a sandbox ever had, in the order of its history. They say
// whether an id may be used, together with the append that uses it: what is appended was decided on
// a fold of everything before it, so of two requests for one id the log takes one. A registry
// beside the log would cost every exec another durable write before its first event.
//
// An id is kept as the first eight bytes of its hash. Should two ever collide, the second is refused.
type execIDs struct {
	order []uint64
	used  map[uint64]struct{}
}

func hashID(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[:])
}

func (e *execIDs) add(hash uint64) {
	if _, known := e.used[hash]; known {
		return
	}
	if e.used == nil {
		e.used = map[uint64]struct{}{}
	}
	e.used[hash] = struct{}{}
	e.order = append(e.order, hash)
}

// execIDsPage is how many ids are stored under one key.
const execIDsPage = 16 << 10

// usedExec says whether an exec of the sandbox ever had the id, as far as its history is folded.
func (p *projection) usedExec(k key, id string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	e := p.execIDs[k]
	if e == nil {
		return false
	}
	_, used := e.used[hashID(id)]
	return used
}

// useExec notes the id of an exec that was accepted. p.mu is held.
func (p *projection) useExec(k key, id string) {
	e := p.execIDs[k]
	if e == nil {
		e = &execIDs{}
		p.execIDs[k] = e
	}
	e.add(hashID(id))
}

// restoreExecIDs loads what was stored with the snapshots. What is known already stays: it can only
// refuse more.
func (p *projection) restoreExecIDs(ctx context.Context) error {
	pages := map[key]map[int][]uint64{}
	err := p.conn.ReadExecIDs(ctx, func(tenant, sandbox string, page int, hashes []uint64) {
		k := key{tenant, sandbox}
		if pages[k] == nil {
			pages[k] = map[int][]uint64{}
		}
		pages[k][page] = hashes
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, of := range pages {
		e := p.execIDs[k]
		if e == nil {
			e = &execIDs{}
		}
		for _, page := range slices.Sorted(maps.Keys(of)) {
			for _, hash := range of[page] {
				e.add(hash)
			}
		}
		p.execIDs[k] = e
	}
	return err
}

// execIDsSince returns the ids from a count on, from the beginning of the page that this is on.
func (p *projection) execIDsSince(k key, since int) []uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	e := p.execIDs[k]
	if e == nil || len(e.order) <= since {
		return nil
	}
	return slices.Clone(e.order[since/execIDsPage*execIDsPage:])
}

// storeExecIDs stores the ids that came since those that are stored, page by page.
func (c *coordinator) storeExecIDs(ctx context.Context, k key, ids []uint64, stored *kept) error {
	for len(ids) > 0 {
		page, n := stored.ids/execIDsPage, min(execIDsPage, len(ids))
		revision, err := c.conn.WriteExecIDs(ctx, k.tenant, k.id, page, ids[:n], stored.page)
		if err != nil {
			stored.page = 0
			return err
		}
		stored.ids, stored.page, ids = page*execIDsPage+n, revision, ids[n:]
		if n == execIDsPage {
			stored.page = 0 // of the next one
		}
	}
	return nil
}
