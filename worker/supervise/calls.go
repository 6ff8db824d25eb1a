package supervise

import (
	"sync"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// calls runs callbacks one after another on one goroutine. It merges the waiting output notices of an exec into one, so
// the queue does not grow with the output.
type calls struct {
	mu      sync.Mutex
	changed sync.Cond
	queue   []func()
	outputs map[string]*control.Output // waiting notices, by exec
	closed  bool
}

func newCalls() *calls {
	c := &calls{outputs: map[string]*control.Output{}}
	c.changed.L = &c.mu
	return c
}

func (c *calls) add(call func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call == nil || c.closed {
		return
	}
	c.queue = append(c.queue, call)
	c.changed.Signal()
}

func (c *calls) addOutput(o control.Output, call func(control.Output)) {
	c.mu.Lock()
	waiting := c.outputs[o.ID]
	if waiting != nil {
		*waiting = o
		c.mu.Unlock()
		return
	}
	c.outputs[o.ID] = &o
	c.mu.Unlock()
	c.add(func() {
		c.mu.Lock()
		delete(c.outputs, o.ID)
		newest := o
		c.mu.Unlock()
		call(newest)
	})
}

// close drops the waiting callbacks, and makes run return.
func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.queue = true, nil
	c.changed.Signal()
}

// run runs the callbacks until close is called.
func (c *calls) run() {
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.closed {
			c.changed.Wait()
		}
		batch := c.queue
		c.queue = nil
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return
		}
		for _, call := range batch {
			call()
		}
	}
}
