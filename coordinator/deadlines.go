package coordinator

import (
	"container/heap"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// deadlines orders sandboxes by when the watchdog must inspect them next. The heap may have several entries for a
// sandbox. The time of the only valid entry is in the field at; the other entries are ignored. When a deadline moves to
// a later time, as the deadline of an idle sandbox does with each exec, the entry stays. The watchdog then inspects the
// sandbox too early, which is harmless.
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

// set moves the next inspection of a sandbox to the given time, unless an earlier inspection is already planned or the
// given time is zero. It reports whether the sandbox is now the first to be inspected.
func (d *deadlines) set(k key, at time.Time) bool {
	before, there := d.at[k]
	if at.IsZero() || there && !at.Before(before) {
		return false
	}
	d.at[k] = at
	if len(d.heap) > 2*len(d.at)+1000 { // most entries are outdated
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

func (d *deadlines) drop(k key) { delete(d.at, k) }

// due removes and returns at most limit sandboxes that are due. next is when the next sandbox is due; zero: no sandbox
// remains.
func (d *deadlines) due(now time.Time, limit int) (keys []key, next time.Time) {
	for len(d.heap) > 0 {
		first := d.heap[0]
		if at, there := d.at[first.key]; !there || !at.Equal(first.at) {
			heap.Pop(&d.heap)
			continue
		}
		if first.at.After(now) || len(keys) == limit {
			return keys, first.at
		}
		heap.Pop(&d.heap)
		delete(d.at, first.key)
		keys = append(keys, first.key)
	}
	return keys, time.Time{}
}

// takeDue locks the working state and calls due.
func (w *workingState) takeDue(now time.Time, limit int) (keys []key, next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deadlines.due(now, limit)
}

// inspectBy moves the next inspection of each given sandbox to the given time, unless the sandbox is not living or an
// earlier inspection is already planned.
func (w *workingState) inspectBy(at time.Time, keys ...key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range keys {
		if w.sandboxes[k] != nil {
			w.setDeadlineLocked(k, at)
		}
	}
}

func (w *workingState) setDeadlineLocked(k key, at time.Time) {
	if w.deadlines.set(k, at) {
		w.deadlineWake.Wake()
	}
}

// nextDeadline returns when the watchdog must inspect a sandbox because of its deadlines; zero: never. The time may be
// too early but not too late. nextDeadline ignores the state of the host: after that state has changed, the watchdog
// inspects the sandbox at once.
func nextDeadline(b *protocol.Sandbox, overdue, cleanup time.Duration) (at time.Time) {
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
