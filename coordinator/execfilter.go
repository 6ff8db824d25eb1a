package coordinator

import (
	"container/list"

	"github.com/boxfleet/boxfleet/jetstream"
)

// filter says of an id that it is not on a page, or that it may be: a Bloom filter of at most 10 bits for each id,
// which is wrong about two ids in a hundred that are not there. Who is told that it may be reads the page.
type filter struct {
	bits []uint64
	room int // so many more ids
}

const (
	filterBits   = 9  // for each id that there is room for
	filterRoom   = 24 // one more for so many ids
	filterProbes = 6
)

func filterOf(p jetstream.ExecPage) *filter {
	f := &filter{room: p.Len() + p.Len()/filterRoom}
	f.bits = make([]uint64, (f.room*filterBits+63)/64)
	for i := range p.Len() {
		f.add(p.At(i).Hash)
	}
	return f
}

func (f *filter) size() int { return 48 + 8*len(f.bits) }

// add reports false where there is no room.
func (f *filter) add(h jetstream.ExecHash) bool {
	if f.room == 0 {
		return false
	}
	f.room--
	return f.probe(h.Prefix(), func(word *uint64, bit uint64) bool { *word |= bit; return true })
}

func (f *filter) mayHave(h jetstream.ExecHash) bool {
	return len(f.bits) > 0 && f.probe(h.Prefix(), func(word *uint64, bit uint64) bool { return *word&bit != 0 })
}

func (f *filter) probe(x uint64, each func(word *uint64, bit uint64) bool) bool {
	step := x*0x9e3779b97f4a7c15>>17 | 1
	for range filterProbes {
		x += step
		if at := x % uint64(64*len(f.bits)); !each(&f.bits[at/64], 1<<(at%64)) {
			return false
		}
	}
	return true
}

// cache keeps what was used last, up to a size.
type cache[K comparable, V any] struct {
	most, size int
	order      list.List // of *cached, the newest first
	at         map[K]*list.Element
}

type cached[K comparable, V any] struct {
	key   K
	value V
	size  int
}

func newCache[K comparable, V any](most int) *cache[K, V] {
	return &cache[K, V]{most: most, at: map[K]*list.Element{}}
}

func (c *cache[K, V]) get(key K) (value V, there bool) {
	e := c.at[key]
	if e == nil {
		return value, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached[K, V]).value, true
}

// put keeps a value, at the cost of those that were used before.
func (c *cache[K, V]) put(key K, value V, size int) {
	c.remove(key)
	c.at[key] = c.order.PushFront(&cached[K, V]{key, value, size})
	c.size += size
	for c.size > c.most && c.order.Len() > 1 {
		c.remove(c.order.Back().Value.(*cached[K, V]).key)
	}
}

func (c *cache[K, V]) remove(key K) {
	if e := c.at[key]; e != nil {
		c.size -= e.Value.(*cached[K, V]).size
		c.order.Remove(e)
		delete(c.at, key)
	}
}
