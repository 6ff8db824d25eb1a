package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Limits of concurrent reads of the log and of the leader's sums. Each read of the log holds a few messages of at most
// a megabyte each.
const (
	getsAtOnce    = 16
	listsAtOnce   = 4
	pagesAtOnce   = 8 // pages of events and output, for all clients together
	recordsAtOnce = 8 // messages of the log that one list reads at the same time

	measuresAtOnce = 64 // each waits for a worker, at most 1.5 s

	checkupsAtOnce = 4 // each reads up to maxAsked messages, one after another

	followersAtOnce = 16 // reads by clients that follow a history or output
	unknownAtOnce   = 16 // reads of sandboxes that memory does not have
	reportsAtOnce   = 4  // reads of tenants' use; the leader has slots for these and the checkups of eight coordinators

	readWithin = 1500 * time.Millisecond // less than the 2 s after which the SDK gives up an attempt and asks again

	// waitingPerTenant is how many of a tenant's reads of one kind may wait for a slot. An endpoint handles more
	// queries than this number at once, so it still receives reads of other tenants while all these reads wait.
	waitingPerTenant = 64
)

// readSlots limits the concurrent reads of one kind, and shares them among the tenants: one tenant never has all slots,
// and a free slot goes to the waiting tenant with the fewest running reads.
type readSlots struct {
	most int // reads at once

	mu      sync.Mutex
	running map[string]int // reads by tenant
	total   int            // reads of all tenants
	waiting []*waitingRead // reads that wait for a slot, in the order of their arrival
}

type waitingRead struct {
	tenant string
	turn   chan struct{} // closed when the read has a slot
}

func newReadSlots(most int) *readSlots { return &readSlots{most: most, running: map[string]int{}} }

// share is how many slots one tenant may have.
func (s *readSlots) share() int { return max(s.most*3/4, 1) }

// take waits for a slot. It returns resource_exhausted if the tenant gets no slot within readWithin, or if too many
// reads of the tenant already wait.
func (s *readSlots) take(ctx context.Context, tenant string) (release func(), err error) {
	w := &waitingRead{tenant, make(chan struct{})}
	if !s.queue(w) {
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
			"%d reads of the tenant already wait: try again later, with fewer reads at once", waitingPerTenant)
	}
	over := time.NewTimer(readWithin)
	defer over.Stop()
	release = func() { s.release(w) }
	select {
	case <-w.turn:
		return release, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-over.C:
		err = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
			"%d reads of this kind are running, at most %d for one tenant, and the tenant got no turn within %s: "+
				"try again later, with fewer reads at once", s.most, s.share(), readWithin)
	}
	release()
	return nil, err
}

// queue adds a waiting read, and gives it a slot if one is free. It returns false if too many reads of the tenant
// already wait.
func (s *readSlots) queue(w *waitingRead) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	queued := 0
	for _, other := range s.waiting {
		if other.tenant == w.tenant {
			queued++
		}
	}
	if queued >= waitingPerTenant {
		return false
	}
	s.waiting = append(s.waiting, w)
	s.next()
	return true
}

// release ends a read that has a slot or waits for one.
func (s *readSlots) release(w *waitingRead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		return
	}
	s.total--
	if s.running[w.tenant]--; s.running[w.tenant] == 0 {
		delete(s.running, w.tenant)
	}
	s.next()
}

// next gives a free slot to a read of the tenants with the fewest running reads: to the read that has waited longest.
func (s *readSlots) next() {
	if s.total == s.most {
		return
	}
	best := -1
	for i, w := range s.waiting {
		if n := s.running[w.tenant]; n < s.share() && (best < 0 || n < s.running[s.waiting[best].tenant]) {
			best = i
		}
	}
	if best < 0 {
		return
	}
	w := s.waiting[best]
	s.waiting = slices.Delete(s.waiting, best, best+1)
	s.total++
	s.running[w.tenant]++
	close(w.turn)
}
