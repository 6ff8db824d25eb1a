package output

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
)

// A NATS server without a cluster acknowledges output a moment before it writes the output to disk. Until then, the
// worker keeps the files of an exec that has ended, within these limits.
const (
	syncAfter = 2 * time.Second // output acknowledged this long ago survives a crash of the server

	keepBytes  = 8 << 20     // largest output of an exec whose files are kept
	keepExecs  = 256         // number of execs of one worker whose files are kept at the same time
	keepWithin = time.Minute // longest time for which the files are kept
)

// Forget waits in the background until a crash of the server can no longer lose the output of the ended exec. Then it
// calls forget, which removes the exec's files. Forget calls forget at once if the files exceed the limits above, and
// ends the wait after keepWithin. The first parameter derives a context that ends with the container; the wait ends
// with that context, too.
func (p *Exec) Forget(while func(context.Context) (context.Context, context.CancelFunc), forget func()) {
	h := p.host
	stdout, stderr := p.Published() // the same sizes as in the event of the exec's end
	total := stdout + stderr
	p.deadline = time.Time{}
	cheap := total > 0 && total <= keepBytes && h.kept.Load() < keepExecs
	if !cheap || !h.conn.MayLoseOutput() {
		p.removeHashes()
		forget()
		return
	}
	h.kept.Add(1)
	go func() {
		defer h.kept.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), keepWithin)
		defer cancel()
		ctx, end := while(ctx)
		defer end()
		for pause := syncAfter; backoff.Sleep(ctx, pause); pause = retryPause {
			if h.conn.Connected() && p.publish(ctx, stdout, stderr) == nil && p.current() {
				break
			}
		}
		p.removeHashes()
		forget()
	}()
}
