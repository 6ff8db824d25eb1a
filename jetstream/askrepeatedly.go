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

// insist asks for something until it is answered, which must be harmless to ask for twice. A cluster that
// elects a leader drops what it is asked, and an answer can be lost, so the question is put again soon;
// the ones before still stand, for a server that is only slow. The same at once after a reconnect. It
// gives up at the end of ctx, and with an error that does not pass.
func askRepeatedly[T any](ctx context.Context, c *Conn, doing string, ask func(ctx context.Context) (T, error)) (value T, err error) {
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
				err = a.err // it passes, and says more than that no answer came
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
