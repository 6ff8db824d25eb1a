package coordinator

import (
	"container/heap"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// deadlines says which sandbox is to be looked at next. Of each sandbox one time counts, that in at; what the heap
// has beside it is passed over. A time that moves later, as that of an idle sandbox does with each exec, is left
// as it is: at its old time the sandbox is looked at for nothing, once.
type deadlines struct {
	at   map[key]time.Time
	heap deadlineHeap
}

type deadline struct {
	at  time.Time
	key key
}

type deadlineHeap []deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h deadlineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *deadlineHeap) Push(d any)        { *h = append(*h, d.(deadline)) }
func (h *deadlineHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// set has a sandbox looked at no later than at; zero: there is nothing to look at it for. It reports whether it is
// now the first.
func (d *deadlines) set(k key, at time.Time) bool {
	before, there := d.at[k]
	if at.IsZero() || there && !at.Before(before) {
		return false
	}
	d.at[k] = at
	if len(d.heap) > 2*len(d.at)+1000 { // most of it is of sandboxes that are gone
		d.heap = d.heap[:0]
		for k, at := range d.at {
			d.heap = append(d.heap, deadline{at, k})
		}
		heap.Init(&d.heap)
	} else {
		heap.Push(&d.heap, deadline{at, k})
	}
	return d.heap[0].at.Equal(at)
}

// drop forgets a sandbox.
func (d *deadlines) drop(k key) { delete(d.at, k) }

// due takes out what is due, at most so many, and says when the next is, zero for never.
func (d *deadlines) due(now time.Time, most int) (keys []key, next time.Time) {
	for len(d.heap) > 0 {
		first := d.heap[0]
		if at, there := d.at[first.key]; !there || !at.Equal(first.at) {
			heap.Pop(&d.heap)
			continue
		}
		if first.at.After(now) || len(keys) == most {
			return keys, first.at
		}
		heap.Pop(&d.heap)
		delete(d.at, first.key)
		keys = append(keys, first.key)
	}
	return keys, time.Time{}
}

// dueSandboxes takes out the sandboxes whose time has come.
func (p *projection) dueSandboxes(now time.Time, most int) (keys []key, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index.wakes.due(now, most)
}

// lookAt has a living sandbox looked at no later than at, by the watchdog.
func (p *projection) lookAt(k key, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sandboxes[k] != nil {
		p.setWakeLocked(k, at)
	}
}

func (p *projection) setWakeLocked(k key, at time.Time) {
	if p.index.wakes.set(k, at) {
		select {
		case p.alarm <- struct{}{}:
		default:
		}
	}
}

// nextLook is when a sandbox is to be looked at for its deadlines, zero for never. It may be too early, never too
// late, except where the state of its host changes, and then the sandbox is looked at immediately.
func nextLook(b *protocol.Sandbox, overdue, cleanup time.Duration) (at time.Time) {
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if !b.ExpiresAt.IsZero() && b.Desired != protocol.StateDeleted {
		sooner(b.ExpiresAt)
	}
	switch {
	case b.State == protocol.StatePending && !b.Assigned:
		sooner(queueDeadline(b, overdue))
	case b.State == protocol.StatePending:
		sooner(b.AssignedAt.Add(b.Spec.CreateTimeout.Std() + overdue))
		sooner(queueDeadline(b, overdue))
	case b.State == protocol.StateReady && b.Desired == protocol.StateReady && b.ActiveExecs == 0 && b.Spec.IdleTTL > 0:
		sooner(b.ActiveAt.Add(b.Spec.IdleTTL.Std()))
	case b.State == protocol.StateStopped, b.State == protocol.StateFailed:
		sooner(b.StateChangedAt.Add(cleanup))
	}
	return at
}
