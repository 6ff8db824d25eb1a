package execs

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// Execs are the execs of a sandbox that have a goroutine. The type forwards the reports of supervisors to these execs,
// and implements service.Execs.
type Execs struct {
	cfg Config

	mu         sync.Mutex
	runs       map[string]*execution
	closed     bool                 // no new goroutine starts
	pause      time.Duration        // last pause before a retry of execs; 0 after an exec that ended without an error
	pauseUntil time.Time            // end of the last pause
	unstarted  map[string]time.Time // when this worker first saw each accepted exec that has not started
}

// New returns the execs of a sandbox. No goroutine runs until Start is called.
func New(cfg Config) *Execs { return &Execs{cfg: cfg, runs: map[string]*execution{}} }

const (
	retryFirst      = 100 * time.Millisecond // pause after the first error
	signalRetryMost = 5 * time.Second        // longest pause between two tries to deliver a signal
	execRetryMost   = 2 * time.Second        // longest pause before execs are retried
)

// Start starts a goroutine for each active exec without a goroutine, if the exec's supervisor is connected or its
// container has ended. It also tells supervisors to cancel execs, if the log says so. Only the sandbox's goroutine
// calls Start.
//
// Start reads the state under the lock. A goroutine removes its exec from runs only after the journal has the exec's
// end. Start therefore never mistakes an exec that has just ended for an active exec without a goroutine.
func (e *Execs) Start(ctx context.Context) { e.start(ctx, false) }

// StartAfterEnd does what Start does, after every container of the sandbox has ended.
func (e *Execs) StartAfterEnd(ctx context.Context) { e.start(ctx, true) }

func (e *Execs) start(ctx context.Context, ended bool) {
	e.cfg.Probe("before-execs")
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	active := e.active()
	e.rememberUnstarted(active)
	for _, x := range active {
		r := e.runs[x.ID]
		if a, mustRun := e.containerOf(x, ended); r == nil && (a != nil || mustRun) {
			r = e.run(ctx, x, a)
		}
		if r != nil && x.Cancelling && !r.cancelled.Swap(true) {
			go r.cancel(x.Spec.Grace.Std())
		}
		if r != nil && len(x.Signals) > 0 {
			r.wakeSignals()
		}
	}
}

func (e *Execs) active() (active []*protocol.Exec) {
	e.cfg.Log.View(func(st *protocol.State) {
		if st.Sandbox.ActiveExecs > 0 && st.Sandbox.HostID == e.cfg.HostID {
			active = st.Active()
		}
	})
	return active
}

// rememberUnstarted records when this worker first saw each accepted exec. Hold e.mu.
func (e *Execs) rememberUnstarted(active []*protocol.Exec) {
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

// unstartedSince returns when this worker first saw an accepted exec, or zero if the exec has started.
func (e *Execs) unstartedSince(id string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unstarted[id]
}

// containerOf returns the connection to the container in which an exec runs, or nil if there is no connection. For an
// exec that has not started, it returns nil while the supervisor is away: Connected wakes the sandbox for the exec. The
// result mustRun is true if the exec needs its goroutine even without a connection: the goroutine then finds out how
// the exec ended, or fails an exec that cannot start. The parameter ended is true if every container has ended.
func (e *Execs) containerOf(x *protocol.Exec, ended bool) (a *attach.Attachment, mustRun bool) {
	running := x.State == protocol.ExecStateRunning
	a, down, givenUp := e.cfg.Containers.Status(x.Spec.Service)
	if !running && !a.Up() {
		a = nil // a supervisor that is away cannot start the exec, and may have ended with its container
	}
	return a, running && (down || ended) || givenUp
}

// run starts the goroutine of an exec. Hold e.mu.
func (e *Execs) run(ctx context.Context, x *protocol.Exec, a *attach.Attachment) *execution {
	ctx, stop := context.WithCancel(ctx)
	r := newExecution(e, x, stop)
	e.runs[x.ID] = r
	go func() {
		defer close(r.done)
		defer stop()
		e.remove(ctx, r, r.run(ctx, x, a))
	}()
	return r
}

// remove removes an exec from runs when its goroutine ends. After an error, the sandbox starts a new goroutine for the
// exec.
func (e *Execs) remove(ctx context.Context, r *execution, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, r.id)
	if err == nil || ctx.Err() != nil {
		e.pause = 0
		return
	}
	e.cfg.Logger.Warn("could not carry out the next step of an exec; retrying", "exec", r.id, "error", err)
	e.cfg.Reread()
	e.resumeLater()
}

// resumeLater wakes the sandbox after a pause. The pause grows until an exec ends without an error. Hold e.mu.
func (e *Execs) resumeLater() {
	now := time.Now()
	if now.Before(e.pauseUntil) { // the end of the present pause wakes the sandbox for this exec, too
		return
	}
	e.pause = min(max(2*e.pause, retryFirst), execRetryMost)
	e.pauseUntil = now.Add(e.pause)
	time.AfterFunc(e.pause, e.cfg.Wake)
}

func (e *Execs) Any() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.runs) > 0
}

func (e *Execs) list() []*execution {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*execution, 0, len(e.runs))
	for _, r := range e.runs {
		list = append(list, r)
	}
	return list
}

// Await prevents new goroutines from starting, and waits until the running goroutines have ended. Call await after the
// goroutines' contexts have ended.
func (e *Execs) Await() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	for _, r := range e.list() {
		<-r.done
	}
}

// Abandon ends the goroutines, because the sandbox no longer belongs to this host. The goroutines append nothing more.
func (e *Execs) Abandon() {
	for _, r := range e.list() {
		r.stop()
		<-r.done
	}
}

// AwaitEnds waits until the goroutines have appended the events that end their execs. With primaryOnly, it waits only
// for execs in the primary container.
func (e *Execs) AwaitEnds(ctx context.Context, grace time.Duration, primaryOnly bool) error {
	ctx, cancel := context.WithTimeout(ctx, grace+10*time.Second)
	defer cancel()
	for _, r := range e.list() {
		if primaryOnly && r.service != "" {
			continue
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return protocol.Errorf(protocol.DeadlineExceeded, "", "exec %s did not end in time", r.id)
		}
	}
	return nil
}

func (e *Execs) get(id string) *execution {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[id]
}

// Output passes the sizes of an exec's output to its goroutine.
func (e *Execs) Output(o control.Output) {
	if r := e.get(o.ID); r != nil {
		r.grow(o.Stdout, o.Stderr)
	}
}

// Ended passes the result of an exec to its goroutine.
func (e *Execs) Ended(result control.Result) {
	if r := e.get(result.ID); r != nil {
		select {
		case r.result <- result:
		default: // the exec already has its result
		}
	}
}

// Restart wakes the sandbox after one of its containers has become ready for execs, or has ended. The sandbox then
// starts the goroutines of execs.
func (e *Execs) Restart() { e.cfg.Wake() }

// Connected tells a supervisor to drop the execs that have ended according to the log. An earlier worker may have died
// before it could tell the supervisor. Without Connected, the supervisor could reach its limit of [control.MaxExecs]
// execs, and the files of these execs would use disk space. Connected does not drop hooks, because a dropped hook could
// run twice.
func (e *Execs) Connected(a *attach.Attachment, h control.Hello, first bool) {
	if !first {
		e.cfg.Wake() // execs may have waited for the supervisor
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var active map[string]bool
	e.cfg.Log.View(func(st *protocol.State) {
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

// append appends the events that choose returns for the newest state. It returns decide.ErrSuperseded if choose returns
// no events, or if the sandbox is not assigned to this host.
func (e *Execs) append(ctx context.Context, choose decide.Decision) error {
	_, err := e.cfg.Log.AppendEvents(ctx, e.generation(), choose)
	return err
}

func (e *Execs) generation() (generation uint64) {
	e.cfg.Log.View(func(st *protocol.State) { generation = st.Sandbox.Generation })
	return generation
}
