package output

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
)

// A single server writes output to disk a moment after it acknowledged it. Until then, the files of an exec that has
// ended are kept, if they are small and few.
const (
	syncAfter = 2 * time.Second // output acknowledged this long ago survives a crash of the server

	keepBytes  = 8 << 20 // of one exec
	keepExecs  = 256     // of one worker
	keepWithin = time.Minute
)

// Forget calls forget, which removes the files of the ended exec, once the log has the output for good. It does not
// wait longer than the container lives: the context that while returns ends with it.
func (p *Exec) Forget(while func(context.Context) (context.Context, context.CancelFunc), forget func()) {
	h := p.host
	stdout, stderr := p.Published() // as the exec's end says
	total := stdout + stderr
	p.deadline = time.Time{}
	cheap := total > 0 && total <= keepBytes && h.kept.Load() < keepExecs
	if !cheap || !h.conn.MayLoseOutput() {
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
		forget()
	}()
}
