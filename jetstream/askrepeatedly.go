package jetstream

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

const (
	askFirst = 250 * time.Millisecond
	askMost  = 500 * time.Millisecond
)

// askRepeatedly sends an idempotent request until it is answered. A cluster that elects a leader drops requests, and
// answers can be lost, so it repeats the request soon, and at once after a reconnect. Earlier requests stay open, in
// case a server is only slow. It fails when ctx ends or on a permanent error.
func askRepeatedly[T any](
	ctx context.Context,
	c *connection,
	doing string,
	ask func(ctx context.Context) (T, error),
) (value T, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer)
	back := wake.New()
	defer c.OnReconnect(back.Wake)()
	err = translate(context.DeadlineExceeded, doing)
	pause := backoff.New(askFirst, askMost)
	for {
		if waited := c.awaitConnection(ctx); waited != nil {
			return value, waited
		}
		go func() {
			value, err := ask(ctx)
			select {
			case answers <- answer{value, translate(err, doing)}:
			case <-ctx.Done():
			}
		}()
		again := time.NewTimer(pause.Next())
		for asked := true; asked; {
			select {
			case a := <-answers:
				if !isOneOf(a.err, protocol.Unavailable, protocol.DeadlineExceeded) {
					return a.value, a.err
				}
				err = a.err // it is transient, but says more than that no answer came
			case <-ctx.Done():
				return value, err
			case <-back:
				pause.Reset()
				asked = false
			case <-again.C:
				asked = false
			}
		}
		again.Stop()
	}
}
