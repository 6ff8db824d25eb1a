package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// How many reads of the log there are at once. Each has few messages in hand, of at most a megabyte.
const (
	getsAtOnce    = 16
	listsAtOnce   = 4
	pagesAtOnce   = 8                       // of events and output, for all clients together
	recordsAtOnce = 8                       // of one list
	readWithin    = 1500 * time.Millisecond // the SDK asks again after 2 s, and would never hear why
)

// readSlots bound how many reads of one kind there are at once.
type readSlots chan struct{}

// take waits for a slot. Error: resource_exhausted.
func (s readSlots) take(ctx context.Context) (release func(), err error) {
	over := time.NewTimer(readWithin)
	defer over.Stop()
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-over.C:
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
			"%d reads of the log are in hand, and none has ended for %s: ask again later, and for fewer at once", cap(s), readWithin)
	}
}
