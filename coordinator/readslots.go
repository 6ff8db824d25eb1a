package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Bounds of concurrent reads of the log. Each read holds a few messages of at most a megabyte.
const (
	getsAtOnce    = 16
	listsAtOnce   = 4
	pagesAtOnce   = 8 // of events and output, for all clients together
	recordsAtOnce = 8 // of one list

	followersAtOnce = 16                      // reads by clients that follow a history or output
	readWithin      = 1500 * time.Millisecond // the SDK asks again after 2 s, and would never get the error
)

// readSlots bound the concurrent reads of one kind.
type readSlots chan struct{}

// take waits for a slot. It returns resource_exhausted.
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
			"%d reads of the log are running, and none has ended for %s: try again later, with fewer at once",
			cap(s), readWithin)
	}
}
