package sandbox

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// execs are the sandbox's execs that have a goroutine. It passes on what supervisors report of execs, and is a
// service.Execs.
type execs struct {
	s *Sandbox

	mu         sync.Mutex
	runs       map[string]*execRun
	closed     bool                 // no run starts any more
	pause      time.Duration        // before failed execs are resumed; 0: none failed since
	pauseUntil time.Time            // end of that pause
	unstarted  map[string]time.Time // accepted execs that have not started, and since when they are known here
}

// execRetryMost is the longest pause before failed execs are resumed. The first is retryFirst.
const execRetryMost = 2 * time.Second

// start starts a goroutine for each active exec that has none, if its supervisor is attached or its container has
// ended, and passes cancels on. Only the sandbox's goroutine calls it.
//
// It reads the state under the lock: a goroutine removes its exec only after the journal has the end, so an exec that
// is active and has no goroutine is really without one.
func (e *execs) start(ctx context.Context) { e.startWhere(ctx, false) }

// startWhere is start. ended says that every container has ended.
func (e *execs) startWhere(ctx context.Context, ended bool) {
	e.s.host.Probe("before-execs")
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	active := e.active()
	e.rememberUnstarted(active)
	for _, x := range active {
		r := e.runs[x.ID]
		if a, over := e.containerOf(x, ended); r == nil && (a != nil || over) {
			r = e.run(ctx, x, a)
		}
		if r != nil && x.Cancelling && !r.cancelled.Swap(true) {
			go r.cancel(x.Spec.Grace.Std())
		}
	}
}

func (e *execs) active() (active []*protocol.Exec) {
	e.s.history().View(func(st *protocol.State) {
		if st.Sandbox.ActiveExecs > 0 && st.Sandbox.HostID == e.s.host.ID {
			active = st.Active()
		}
	})
	return active
}

// rememberUnstarted keeps since when each accepted exec is known here. Hold e.mu.
func (e *execs) rememberUnstarted(active []*protocol.Exec) {
	before := e.unstarted
	e.unstarted = nil
	for _, x := range active {
		if x.State != protocol.ExecStateAccepted {
			continue
		}
		first, known := before[x.ID]
		if !known {
			first = time.Now()
		}
		if e.unstarted == nil {
			e.unstarted = map[string]time.Time{}
		}
		e.unstarted[x.ID] = first
	}
}

// unstartedSince is since when an accepted exec is known here, zero if it has started.
func (e *execs) unstartedSince(id string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unstarted[id]
}

// containerOf returns the connection to the container that an exec runs in. over says that the exec's goroutine should
// find out how it ended, or that it cannot start. ended says that every container has ended.
func (e *execs) containerOf(x *protocol.Exec, ended bool) (a *attach.Attachment, over bool) {
	running := x.State == protocol.ExecStateRunning
	if x.Spec.Service == "" {
		c := e.s.local.Container
		return e.s.conn.attachment(), running && c != decide.ContainerUnknown && c != decide.ContainerRunning
	}
	v := e.s.services.get(x.Spec.Service)
	if v == nil {
		return nil, running && ended
	}
	a, down, givenUp := v.Container()
	return a, running && (down || ended) || givenUp
}

// run starts the goroutine of an exec. Hold e.mu.
func (e *execs) run(ctx context.Context, x *protocol.Exec, a *attach.Attachment) *execRun {
	ctx, stop := context.WithCancel(ctx)
	r := newExecRun(e.s, x, stop)
	e.runs[x.ID] = r
	go func() {
		defer close(r.done)
		defer stop()
		e.remove(ctx, r, r.run(ctx, x, a))
	}()
	return r
}

// remove removes an exec whose goroutine ends. After an error the sandbox resumes the exec.
func (e *execs) remove(ctx context.Context, r *execRun, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, r.id)
	if err == nil || ctx.Err() != nil {
		e.pause = 0
		return
	}
	e.s.log.Warn("an exec failed to proceed; it will be resumed", "exec", r.id, "error", err)
	e.s.mu.Lock()
	e.s.stale = true
	e.s.mu.Unlock()
	e.resumeLater()
}

// resumeLater wakes the sandbox after a pause, which grows while execs fail. Hold e.mu.
func (e *execs) resumeLater() {
	now := time.Now()
	if now.Before(e.pauseUntil) { // one pause for all that failed meanwhile
		return
	}
	e.pause = min(max(2*e.pause, retryFirst), execRetryMost)
	e.pauseUntil = now.Add(e.pause)
	time.AfterFunc(e.pause, e.s.wake.Wake)
}

func (e *execs) any() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.runs) > 0
}

func (e *execs) list() []*execRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*execRun, 0, len(e.runs))
	for _, r := range e.runs {
		list = append(list, r)
	}
	return list
}

// await waits for all goroutines, whose contexts have ended, and lets no other start.
func (e *execs) await() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	for _, r := range e.list() {
		<-r.done
	}
}

// abandon ends the goroutines of a sandbox that is no longer this host's. They append nothing.
func (e *execs) abandon() {
	for _, r := range e.list() {
		r.stop()
		<-r.done
	}
}

// awaitEnds waits until the goroutines have appended the ends of their execs; only of those in the primary container if
// primaryOnly.
func (e *execs) awaitEnds(ctx context.Context, grace time.Duration, primaryOnly bool) error {
	ctx, cancel := context.WithTimeout(ctx, grace+10*time.Second)
	defer cancel()
	for _, r := range e.list() {
		if primaryOnly && r.service != "" {
			continue
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return protocol.Errorf(protocol.DeadlineExceeded, "", "exec %s does not end", r.id)
		}
	}
	return nil
}

func (e *execs) get(id string) *execRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[id]
}

// Output takes the sizes of an exec's output.
func (e *execs) Output(o control.Output) {
	if r := e.get(o.ID); r != nil {
		r.grow(o.Stdout, o.Stderr)
	}
}

// Ended takes the result of an exec.
func (e *execs) Ended(result control.Result) {
	if r := e.get(result.ID); r != nil {
		select {
		case r.result <- result:
		default: // it was reported before
		}
	}
}

// Restart has the sandbox start execs, since a container of its may be ready for them, or has ended.
func (e *execs) Restart() { e.s.wake.Wake() }

// Connected has a supervisor drop execs that have ended in the log too: an earlier worker may have died before it did.
// A supervisor takes at most [control.MaxExecs], and their files fill the disk. Hooks stay, so that none runs twice.
func (e *execs) Connected(a *attach.Attachment, h control.Hello, first bool) {
	if !first {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var active map[string]bool
	e.s.history().View(func(st *protocol.State) {
		active = make(map[string]bool, st.Sandbox.ActiveExecs)
		for _, x := range st.Active() {
			active[x.ID] = true
		}
	})
	for _, x := range h.Execs {
		if x.Result != nil && !active[x.ID] && e.runs[x.ID] == nil && !a.Runs(x.ID) && !attach.IsHook(x.ID) {
			a.Forget(x.ID)
		}
	}
}
