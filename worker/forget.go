package worker

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// forgetAfter is how long an exec that has ended may wait until its supervisor is told to forget it,
// together with others: well below the time after which the supervisor writes its record to disk. A
// command and an answer for each exec were a sixth of what a short one costs in the sandbox.
const forgetAfter = 20 * time.Millisecond

// forgetting gathers the execs that a supervisor is to forget.
type forgetting struct {
	mu  sync.Mutex
	ids []string // waiting; not empty: they will be told
}

// forget has the supervisor drop an exec that has ended, with its files. Nobody waits for it; what is
// not forgotten goes with the sandbox.
func (a *attachment) forget(id string) {
	f := &a.forgetting
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids = append(f.ids, id)
	if len(f.ids) == 1 {
		time.AfterFunc(forgetAfter, a.tellForget)
	}
}

func (a *attachment) tellForget() {
	f := &a.forgetting
	f.mu.Lock()
	ids := f.ids
	f.ids = nil
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.link.Forget(ctx, ids...); err != nil {
		a.s.log.Debug("execs are not forgotten by their supervisor", "execs", ids, "error", err)
	}
}

// forgetEnded has the supervisor drop what an earlier worker did not live to tell it: execs that have
// ended, also for the log. A supervisor takes no more of them than [control.MaxExecs], and their files
// fill the disk. Hooks are kept, so that none runs twice.
func (a *attachment) forgetEnded(execs []control.ExecStatus) {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	var active map[string]bool
	s.journal.View(func(st *protocol.State, _ uint64) {
		active = make(map[string]bool, st.Sandbox.ActiveExecs)
		for _, x := range st.Active() {
			active[x.ID] = true
		}
	})
	for _, x := range execs {
		if x.Result != nil && !active[x.ID] && s.runs[x.ID] == nil && s.commands[x.ID] == nil && !strings.HasPrefix(x.ID, hookPrefix) {
			a.forget(x.ID)
		}
	}
}
