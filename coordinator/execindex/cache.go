package execindex

import (
	"container/list"
)

// cache holds the most recently used values, up to a total size.
type cache[K comparable, V any] struct {
	limit, size int
	order       list.List // values are *cached, the most recently used first
	at          map[K]*list.Element
}

type cached[K comparable, V any] struct {
	key   K
	value V
	size  int
}

func newCache[K comparable, V any](limit int) *cache[K, V] {
	return &cache[K, V]{limit: limit, at: map[K]*list.Element{}}
}

func (c *cache[K, V]) get(key K) (value V, ok bool) {
	e := c.at[key]
	if e == nil {
		return value, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached[K, V]).value, true
}

// put adds a value. It then evicts the least recently used values until the total size is within the limit.
func (c *cache[K, V]) put(key K, value V, size int) {
	c.remove(key)
	c.at[key] = c.order.PushFront(&cached[K, V]{key, value, size})
	c.size += size
	for c.size > c.limit && c.order.Len() > 1 {
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
