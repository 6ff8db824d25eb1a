package attach

import (
	"context"
	"sync"
	"time"
)

// forgetDelay is how long ended execs are gathered before one message tells the supervisor to forget all of them. When
// each exec had its own message, these messages took a sixth of the CPU time of short execs. The delay is so short that
// the supervisor normally forgets an exec before it would write the exec's record to disk.
const forgetDelay = 20 * time.Millisecond

// forgetting gathers the execs that the supervisor should forget.
type forgetting struct {
	mu  sync.Mutex
	ids []string // a timer runs while ids is not empty
}

// Forget tells the supervisor to drop an ended exec and its files. It does not wait for the supervisor. If the
// supervisor does not drop the exec, the files are removed with the sandbox.
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
		a.cfg.Log.Debug("the supervisor did not drop ended execs", "execs", ids, "error", err)
	}
}
