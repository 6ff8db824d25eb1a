package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Limits of concurrent reads of the log. Each read holds a few messages of at most a megabyte each.
const (
	getsAtOnce    = 16
	listsAtOnce   = 4
	pagesAtOnce   = 8                       // pages of events and output, for all clients together
	recordsAtOnce = 8                       // records of one list
	readWithin    = 1500 * time.Millisecond // less than the 2 s after which the SDK repeats a read
)

// readSlots limits the concurrent reads of one kind.
type readSlots chan struct{}

// take waits for a slot. It returns resource_exhausted if no slot becomes free within readWithin.
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
			"%d reads of the log are running, and none ended within %s: try again later, with fewer reads at once",
			cap(s), readWithin)
	}
}
