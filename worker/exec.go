package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// execRun takes one exec from where the log has it to its end: append started, start it through
// the supervisor, publish its output, append its end, forget it. Each step can be taken twice, so
// that a worker which finds the exec half-way goes on from there by the same code.
type execRun struct {
	s       *sandbox
	id      string
	service string // whose container it runs in; "": the primary one
	result  chan control.Result
	done    chan struct{} // closed when the run is over
	stop    context.CancelFunc

	stdout, stderr atomic.Int64 // sizes that the supervisor announced
	more           wake.Signal  // they grew
	cancelled      atomic.Bool  // the supervisor was told to end it
}

// startExecs starts a run for each exec that has not ended and has none, where a supervisor is
// attached, and passes cancels on.
//
// It reads the state under the lock: a run whose exec has ended leaves the runs only when the journal
// has the end, so that an exec is never seen without both.
func (s *sandbox) startExecs(ctx context.Context) {
	s.w.cfg.Probe("before-execs")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	var active []*protocol.Exec
	s.journal.View(func(st *protocol.State, _ uint64) {
		if st.Sandbox.ActiveExecs > 0 && st.Sandbox.HostID == s.w.hostID {
			active = st.Active()
		}
	})
	unstarted := s.unstarted
	s.unstarted = nil
	for _, x := range active {
		if x.State == protocol.ExecStateAccepted {
			first, known := unstarted[x.ID]
			if !known {
				first = time.Now()
			}
			if s.unstarted == nil {
				s.unstarted = map[string]time.Time{}
			}
			s.unstarted[x.ID] = first
		}
		r := s.runs[x.ID]
		// An exec whose container has ended has a run too: it finds out what became of it.
		if a, ended := s.where(x); r == nil && (a != nil || ended) {
			r = s.newRun(ctx, x, a)
		}
		if r != nil && x.Cancelling && !r.cancelled.Swap(true) {
			go r.cancel(x.Spec.Grace.Std())
		}
	}
}

// where is the attachment of the container that an exec is for; ended says that the exec has no more
// to wait for there. The caller holds the lock.
func (s *sandbox) where(x *protocol.Exec) (a *attachment, ended bool) {
	running := x.State == protocol.ExecStateRunning
	if x.Spec.Service == "" {
		return s.attached, running && s.inspection.Container != decide.ContainerUnknown && s.inspection.Container != decide.ContainerRunning
	}
	v := s.services[x.Spec.Service]
	if v == nil {
		return nil, running && s.allEnded
	}
	return v.attached, running && (v.down || s.allEnded) || v.givenUp
}

func (s *sandbox) newRun(ctx context.Context, x *protocol.Exec, a *attachment) *execRun {
	ctx, stop := context.WithCancel(ctx)
	r := &execRun{
		s: s, id: x.ID, service: x.Spec.Service, result: make(chan control.Result, 1), done: make(chan struct{}), stop: stop,
		more: wake.New(),
	}
	s.runs[x.ID] = r
	go func() {
		defer stop()
		err := r.run(ctx, x, a)
		s.mu.Lock()
		delete(s.runs, r.id)
		// A run that could not do its part is begun again, when the mailbox looks next.
		if err != nil && ctx.Err() == nil {
			s.log.Warn("an exec is taken up again", "exec", r.id, "error", err)
			s.stale = true
			s.takeUpLater()
		} else {
			s.again = 0
		}
		s.mu.Unlock()
		close(r.done)
	}()
	return r
}

// takeUpLater has the mailbox look again after a pause, which grows while execs go on to fail. The caller
// holds the lock.
func (s *sandbox) takeUpLater() {
	now := time.Now()
	if now.Before(s.againAt) { // for all that failed meanwhile
		return
	}
	s.again = min(max(2*s.again, retryFirst), execRetryMost)
	s.againAt = now.Add(s.again)
	time.AfterFunc(s.again, s.wakeUp)
}

// execRetryMost is the longest pause before the execs of a sandbox that could not do their part are taken up
// again. The first is retryFirst.
const execRetryMost = 2 * time.Second

// abandonRuns ends the runs of a sandbox that is no longer this host's: they have nothing to say.
func (s *sandbox) abandonRuns() {
	s.mu.Lock()
	var runs []*execRun
	for _, r := range s.runs {
		runs = append(runs, r)
	}
	s.mu.Unlock()
	for _, r := range runs {
		r.stop()
		<-r.done
	}
}

func (r *execRun) grown(stdout, stderr int64) {
	for _, g := range []struct {
		size *atomic.Int64
		to   int64
	}{{&r.stdout, stdout}, {&r.stderr, stderr}} {
		for old := g.size.Load(); g.to > old && !g.size.CompareAndSwap(old, g.to); old = g.size.Load() {
		}
	}
	r.more.Wake()
}

// cancel has the supervisor end the exec's process tree; the result comes by itself.
func (r *execRun) cancel(grace time.Duration) {
	a := r.s.attachedTo(r.service)
	if a == nil {
		r.cancelled.Store(false)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.link.Cancel(ctx, r.id, grace); err != nil {
		r.s.log.Warn("a cancel is passed on again later", "exec", r.id, "error", err)
		r.cancelled.Store(false)
		time.AfterFunc(retryFirst, r.s.wakeUp)
	}
}

// run takes the exec to its end. It returns nil when the log has the end, or no longer wants the
// exec from this host.
func (r *execRun) run(ctx context.Context, x *protocol.Exec, a *attachment) error {
	adopted := x.State == protocol.ExecStateRunning
	r.s.w.output.ExecStartsOrEnds(r.s.key)
	if !adopted && a == nil {
		return ignore(r.nowhere(ctx), errSuperseded)
	}
	number := x.StartSequence
	if !adopted {
		defer a.link.Prepare(r.id)()
		r.s.w.cfg.Probe("before-exec-started")
		var err error
		if number, err = r.started(ctx, a.boot); err != nil {
			return ignore(err, errSuperseded)
		}
		r.s.w.cfg.Probe("after-exec-started")
	}
	p := r.newOutput(a, x, adopted)
	result, err := r.await(ctx, x, number, a, p)
	if err != nil {
		return err
	}
	return ignore(r.finish(ctx, x, a, p, result), errSuperseded)
}

// nowhere appends that the exec's service has no container that runs, and will have none by itself.
func (r *execRun) nowhere(ctx context.Context) error {
	generation := uint64(0)
	r.s.journal.View(func(st *protocol.State, _ uint64) { generation = st.Sandbox.Generation })
	return r.s.append(ctx, generation, func(st *protocol.State) []protocol.Event { return decide.ServiceDown(st, r.id, r.service) })
}

func ignore(err, that error) error {
	if errors.Is(err, that) {
		return nil
	}
	return err
}

// started appends that the exec is going to be started, once, by this worker, and returns the number
// of the start: that of its event. The log comes first: an exec that was cancelled, or whose sandbox is
// being stopped, is not started.
func (r *execRun) started(ctx context.Context, boot string) (number uint64, err error) {
	generation := uint64(0)
	r.s.journal.View(func(st *protocol.State, _ uint64) { generation = st.Sandbox.Generation })
	r.s.mu.Lock()
	since := r.s.unstarted[r.id]
	r.s.mu.Unlock()
	again := false
	events, err := r.s.appendEvents(ctx, generation, func(st *protocol.State) []protocol.Event {
		number, again = decide.StartedBefore(st, r.id, boot)
		waited := time.Duration(0)
		if !since.IsZero() {
			waited = time.Since(since)
		}
		return decide.ExecStart(st, r.id, boot, waited)
	})
	switch {
	case err == nil && events[0].Kind == protocol.ExecFailed: // it waited too long
		return 0, errSuperseded
	case err == nil:
		return events[0].Sequence, nil
	}
	if again {
		return number, nil
	}
	return 0, err
}

// await starts the exec, where it was not started, and publishes its output until it ends.
func (r *execRun) await(ctx context.Context, x *protocol.Exec, number uint64, a *attachment, p *output.Exec) (control.Result, error) {
	if a == nil || x.Boot != "" && x.Boot != a.boot {
		return r.leftBehind(x, a, containerEnded)
	}
	if err := r.s.w.fence(); err != nil {
		return control.Result{}, err
	}
	starting, cancel := a.during(ctx)
	defer cancel()
	status, err := a.link.Start(starting, control.Start{
		ID: r.id, Boot: a.boot, Number: number, Argv: x.Spec.Command, Env: x.Spec.Env, Cwd: x.Spec.Cwd, User: x.Spec.User, Stdin: x.Spec.Stdin,
		Timeout: x.Spec.Timeout.Std(), Grace: x.Spec.Grace.Std(), OutputLimit: int64(x.Spec.OutputLimit), InlineLimit: protocol.MaxInlineOutput,
	})
	r.s.w.cfg.Probe("after-exec-start")
	switch {
	case ctx.Err() != nil:
		return control.Result{}, ctx.Err()
	case starting.Err() != nil:
		return r.leftBehind(x, a, containerEnded)
	case protocol.CodeOf(err) == protocol.FailedPrecondition && protocol.AsError(err).Reason == protocol.ReasonInterrupted:
		return r.leftBehind(x, a, protocol.AsError(err).Message)
	case err != nil && protocol.AsError(err).Reason == protocol.ReasonLeaseLost:
		return control.Result{}, err // nothing was started: the run is begun again, under the lease of then
	case err != nil:
		return notStarted(r.id, protocol.AsError(err))
	}
	if status.Age > 0 { // its supervisor knows best
		p.SetAge(status.Age)
	}
	if status.Result != nil {
		r.s.ended(*status.Result)
	}
	r.grown(status.StdoutBytes, status.StderrBytes)
	var again <-chan time.Time
	for {
		select {
		case result := <-r.result:
			return result, nil
		case <-again:
			r.grown(0, 0)
		case <-r.more:
			pause, err := p.Publish(ctx, r.stdout.Load(), r.stderr.Load())
			if err != nil {
				return control.Result{}, err
			}
			if again = nil; pause > 0 {
				again = time.After(pause)
			}
		case <-a.over:
			if ctx.Err() != nil {
				return control.Result{}, ctx.Err()
			}
			return r.leftBehind(x, a, containerEnded)
		case <-ctx.Done():
			return control.Result{}, ctx.Err()
		}
	}
}

// notStarted is how an exec ended that the supervisor refused, unless that passes.
func notStarted(id string, why *protocol.Error) (control.Result, error) {
	switch {
	case why.Code == protocol.Unavailable:
		return control.Result{}, why
	case why.Reason == protocol.ReasonSandboxStopping: // everything else in the sandbox is ended now
		return control.Result{ID: id, Cancelled: true}, nil
	}
	return control.Result{ID: id, Failed: true, Error: why}, nil
}

// containerEnded is why the supervisor that started an exec is not there.
const containerEnded = "its container ended"

// leftBehind finds out how an exec ended of which no supervisor knows: from the record that its own one
// sealed, or not at all. why says why none knows.
func (r *execRun) leftBehind(x *protocol.Exec, a *attachment, why string) (control.Result, error) {
	select {
	case result := <-r.result: // it was told just before
		return result, nil
	default:
	}
	unknown := control.Result{ID: r.id, Failed: true, Error: decide.Interrupted(why)}
	if stopped := r.s.diskStopped(); stopped != nil {
		unknown.Error = stopped
	}
	run, secret, closeRun, err := r.runDir(a)
	if err != nil {
		return unknown, nil
	}
	defer closeRun()
	record, err := supervise.ReadRecord(run, secret, r.id)
	if err != nil {
		r.s.log.Info("an exec has no exit record", "exec", r.id, "why", err)
		unknown.StdoutBytes, unknown.StderrBytes = r.stdout.Load(), r.stderr.Load()
		return unknown, nil
	}
	return record.Result, nil
}

// finish publishes the rest of the output, appends the end, and lets the supervisor forget.
func (r *execRun) finish(ctx context.Context, x *protocol.Exec, a *attachment, p *output.Exec, result control.Result) error {
	details := &protocol.ExecDetails{ID: r.id, ExitCode: result.ExitCode, Truncated: result.Truncated, OOMKills: result.OOMKills}
	r.s.journal.View(func(st *protocol.State, _ uint64) {
		if now := st.Execs[r.id]; now != nil {
			x = now // it has the time of its start
		}
	})
	details.Started, details.Ended = ranBetween(r.s.w.conn, x.StartedAt, &result)
	inline := result.Inline
	if inline { // unless an earlier worker published some of it
		var err error
		if inline, err = p.NothingPublished(ctx); err != nil {
			return err
		}
	}
	if inline {
		details.Inline, details.Stdout, details.Stderr = true, result.Stdout, result.Stderr
		details.StdoutBytes, details.StderrBytes = int64(len(result.Stdout)), int64(len(result.Stderr))
	} else {
		lost, err := p.PublishAll(ctx, result.StdoutBytes, result.StderrBytes)
		if err != nil {
			return err
		}
		details.OutputError = lost
		details.StdoutBytes, details.StderrBytes = p.Published()
		details.Truncated = details.Truncated || details.StdoutBytes < result.StdoutBytes || details.StderrBytes < result.StderrBytes
		details.Inline = details.StdoutBytes == 0 && details.StderrBytes == 0
	}
	if result.DiskFull && details.OutputError == nil {
		details.OutputError = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonDiskFull, "the disk of its host was full")
	}
	r.s.w.output.ExecStartsOrEnds(r.s.key)
	r.s.w.cfg.Probe("before-exec-end")
	generation := uint64(0)
	r.s.journal.View(func(st *protocol.State, _ uint64) { generation = st.Sandbox.Generation })
	err := r.s.append(ctx, generation, func(st *protocol.State) []protocol.Event {
		return decide.ExecEnd(st, &result, details, a != nil && a.ending.Load())
	})
	r.s.w.cfg.Probe("after-exec-end")
	if a != nil && (err == nil || errors.Is(err, errSuperseded)) {
		p.Forget(a.during, func() { a.forget(r.id) })
	}
	return err
}

// ranBetween says when an exec ran, by the store's clock: its supervisor knows it by its machine's wall clock,
// which may have been set in between. started is when the log has that it was to be started. A time that is
// not known stays zero.
func ranBetween(conn *jetstream.Conn, started time.Time, result *control.Result) (from, to time.Time) {
	now := conn.Now()
	within := func(t, least time.Time) time.Time {
		t = conn.StoreTime(t)
		if t.Before(least) {
			t = least
		}
		if t.After(now) {
			t = now
		}
		return t
	}
	if !result.Started.IsZero() {
		from = within(result.Started, started)
		started = from
	}
	if !result.Ended.IsZero() {
		to = within(result.Ended, started)
	}
	return from, to
}
