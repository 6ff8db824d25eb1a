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

// askRepeatedly sends an idempotent request until it is answered. A cluster drops requests while it elects a leader,
// and answers can be lost. So askRepeatedly repeats the request after a short pause, and immediately after a reconnect.
// An answer to an earlier request still counts, because the server may only have been slow. askRepeatedly fails when
// ctx ends or on a permanent error.
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
				err = a.err // a transient error, but more specific than "no answer in time"
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
