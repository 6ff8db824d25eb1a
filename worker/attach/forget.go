package attach

import (
	"context"
	"sync"
	"time"
)

// forgetDelay gathers execs that have ended, so that one message has the supervisor forget several: a message for each
// was a sixth of the cost of a short exec in its sandbox. It is well below the time after which the supervisor
// writes the record of an exec to disk.
const forgetDelay = 20 * time.Millisecond

// forgetting gathers the execs that a supervisor is to forget.
type forgetting struct {
	mu  sync.Mutex
	ids []string // if there are any, a timer runs
}

// Forget has the supervisor drop an exec that has ended, with its files, and does not wait for it. If that fails, they
// go with the sandbox.
func (a *Attachment) Forget(id string) {
	f := &a.forgetting
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids = append(f.ids, id)
	if len(f.ids) == 1 {
		time.AfterFunc(forgetDelay, a.sendForget)
	}
}

func (a *Attachment) sendForget() {
	f := &a.forgetting
	f.mu.Lock()
	ids := f.ids
	f.ids = nil
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.Link.Forget(ctx, ids...); err != nil {
		a.cfg.Log.Debug("the supervisor did not forget execs", "execs", ids, "error", err)
	}
}
