package sandbox

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// execRun takes one exec from its state in the log to its end. It appends exec.started, tells the supervisor to start
// the exec, publishes the exec's output, appends the exec's end, and tells the supervisor to forget the exec. Each step
// can be repeated, so a worker that restarts continues an unfinished exec with the same code.
type execRun struct {
	s       *Sandbox
	id      string
	service string // the exec runs in this service's container; "": in the primary container
	result  chan control.Result
	done    chan struct{} // closed when the goroutine has ended
	stop    context.CancelFunc

	stdout, stderr atomic.Int64 // sizes of the output, as the supervisor reported
	grew           wake.Signal
	cancelled      atomic.Bool // the supervisor was asked to end the exec
}

func newExecRun(s *Sandbox, x *protocol.Exec, stop context.CancelFunc) *execRun {
	return &execRun{s: s, id: x.ID, service: x.Spec.Service, result: make(chan control.Result, 1),
		done: make(chan struct{}), stop: stop, grew: wake.New()}
}

// grow records the sizes of the output, as the supervisor reported.
func (r *execRun) grow(stdout, stderr int64) {
	raise(&r.stdout, stdout)
	raise(&r.stderr, stderr)
	r.grew.Wake()
}

func raise(size *atomic.Int64, to int64) {
	for old := size.Load(); to > old && !size.CompareAndSwap(old, to); old = size.Load() {
	}
}

// cancel tells the supervisor to end the exec's process tree. The supervisor then reports the result as after any other
// end.
func (r *execRun) cancel(grace time.Duration) {
	a := r.s.conn.attachmentOf(r.service)
	if a == nil {
		r.cancelled.Store(false)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.Link.Cancel(ctx, r.id, grace); err != nil {
		r.s.log.Warn("the supervisor did not cancel an exec; retrying", "exec", r.id, "error", err)
		r.cancelled.Store(false)
		time.AfterFunc(retryFirst, r.s.wake.Wake)
	}
}

// run takes the exec to its end. It returns nil when the log has the exec's end, or when the exec no longer belongs to
// this host.
func (r *execRun) run(ctx context.Context, x *protocol.Exec, a *attach.Attachment) error {
	adopted := x.State == protocol.ExecStateRunning
	r.s.host.Output.ExecStartsOrEnds(r.s.key)
	if !adopted && a == nil {
		return decide.IgnoreSuperseded(r.failWithService(ctx))
	}
	number := x.StartSequence
	if !adopted {
		defer a.Link.Prepare(r.id)()
		r.s.host.Probe("before-exec-started")
		var err error
		if number, err = r.appendStarted(ctx, a.Boot); err != nil {
			return decide.IgnoreSuperseded(err)
		}
		r.s.host.Probe("after-exec-started")
	}
	p := r.s.host.Output.NewExec(output.ExecConfig{
		Key: r.s.key, Exec: x, Adopted: adopted, Sandbox: execOutput{r, a}, Logger: r.s.log,
		HashFile: r.dir().ExecHash(r.id),
	})
	result, err := r.finished(ctx, x, number, a, p)
	if err != nil {
		return err
	}
	return decide.IgnoreSuperseded(r.finish(ctx, x, a, p, result))
}

// failWithService fails an exec in a service that was given up. The service's container does not run, and the worker
// will not start it again.
func (r *execRun) failWithService(ctx context.Context) error {
	return r.s.append(ctx, r.s.history().generation(), func(st *protocol.State) []protocol.Event {
		return decide.ServiceDown(st, r.id, r.service)
	})
}

// appendStarted appends exec.started, and returns the event's sequence number, which identifies this start of the exec.
// The event is appended before the process starts. An exec that was cancelled, or that belongs to a sandbox that is
// being stopped, therefore never starts.
func (r *execRun) appendStarted(ctx context.Context, boot string) (number uint64, err error) {
	started := false
	since := r.s.execs.unstartedSince(r.id)
	events, err := r.s.history().appendEvents(ctx, r.s.history().generation(), func(st *protocol.State) []protocol.Event {
		number, started = decide.StartedBefore(st, r.id, boot)
		waited := time.Duration(0)
		if !since.IsZero() {
			waited = time.Since(since)
		}
		return decide.ExecStart(st, r.id, boot, waited)
	})
	switch {
	case err == nil && events[0].Kind == protocol.ExecFailed: // the exec waited too long for its start
		return 0, decide.ErrSuperseded
	case err == nil:
		return events[0].Sequence, nil
	case started:
		return number, nil
	}
	return 0, err
}

// finished waits for the end of the exec and returns its result. It first starts the exec if the supervisor does not
// know the exec. Until the end, it publishes the exec's output.
func (r *execRun) finished(ctx context.Context, x *protocol.Exec, number uint64, a *attach.Attachment,
	p *output.Exec) (control.Result, error) {
	if a == nil || x.Boot != "" && x.Boot != a.Boot {
		return r.sealedResult(a, containerEnded)
	}
	result, err := r.start(ctx, x, number, a, p)
	if result != nil || err != nil {
		return derefResult(result), err
	}
	return r.await(ctx, a, p)
}

func derefResult(r *control.Result) control.Result {
	if r == nil {
		return control.Result{}
	}
	return *r
}

// start tells the supervisor to start the exec. If this supervisor runs the exec, or ran it to its end, start returns
// nil, and await returns the result. If the exec ended in another way, start returns the result: for example, the
// supervisor refused the exec, or the container ended.
func (r *execRun) start(ctx context.Context, x *protocol.Exec, number uint64, a *attach.Attachment,
	p *output.Exec) (*control.Result, error) {
	if err := r.s.host.Fence(); err != nil {
		return nil, err
	}
	starting, cancel := a.During(ctx)
	defer cancel()
	status, err := a.Link.Start(starting, control.Start{
		ID: r.id, Boot: a.Boot, Number: number,
		Argv: x.Spec.Command, Env: x.Spec.Env, Cwd: x.Spec.Cwd, User: x.Spec.User, Stdin: x.Spec.Stdin,
		Timeout: x.Spec.Timeout.Std(), Grace: x.Spec.Grace.Std(),
		OutputLimit: int64(x.Spec.OutputLimit), InlineLimit: protocol.MaxInlineOutput,
	})
	r.s.host.Probe("after-exec-start")
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case starting.Err() != nil:
		result, err := r.sealedResult(a, containerEnded)
		return &result, err
	case protocol.CodeOf(err) == protocol.FailedPrecondition && protocol.AsError(err).Reason == protocol.ReasonInterrupted:
		result, err := r.sealedResult(a, protocol.AsError(err).Message)
		return &result, err
	case err != nil && protocol.AsError(err).Reason == protocol.ReasonLeaseLost:
		return nil, err // the exec was not started; the next holder of the host's lock starts it
	case err != nil:
		return refused(r.id, protocol.AsError(err))
	}
	if status.Age > 0 { // the supervisor knows the age of the process more precisely than the log does
		p.SetAge(status.Age)
	}
	if status.Result != nil {
		r.s.execs.Ended(*status.Result)
	}
	r.grow(status.StdoutBytes, status.StderrBytes)
	return nil, nil
}

// await publishes the exec's output until the exec ends.
func (r *execRun) await(ctx context.Context, a *attach.Attachment, p *output.Exec) (control.Result, error) {
	var again <-chan time.Time
	for {
		select {
		case result := <-r.result:
			return result, nil
		case <-again:
			r.grew.Wake()
		case <-r.grew:
			pause, err := p.Publish(ctx, r.stdout.Load(), r.stderr.Load())
			if err != nil {
				return control.Result{}, err
			}
			if again = nil; pause > 0 {
				again = time.After(pause)
			}
		case <-a.Done():
			if ctx.Err() != nil {
				return control.Result{}, ctx.Err()
			}
			return r.sealedResult(a, containerEnded)
		case <-ctx.Done():
			return control.Result{}, ctx.Err()
		}
	}
}

// refused returns the result of an exec that the supervisor refused to start, or an error if a retry may succeed.
func refused(id string, why *protocol.Error) (*control.Result, error) {
	switch {
	case why.Code == protocol.Unavailable:
		return nil, why
	case why.Reason == protocol.ReasonSandboxStopping: // the supervisor is ending every exec
		return &control.Result{ID: id, Cancelled: true}, nil
	}
	return &control.Result{ID: id, Failed: true, Error: why}, nil
}

// containerEnded is the reason in the error of an exec that was interrupted by the end of its container.
const containerEnded = "its container ended"

// sealedResult returns the result that the exec's supervisor reported, or wrote to disk, before the supervisor ended.
// If there is no such result, the exec was interrupted; its error quotes the given reason.
func (r *execRun) sealedResult(a *attach.Attachment, why string) (control.Result, error) {
	select {
	case result := <-r.result: // the supervisor reported the result before it ended
		return result, nil
	default:
	}
	unknown := control.Result{ID: r.id, Failed: true, Error: decide.Interrupted(why)}
	if stopped := r.s.diskStop.now(); stopped != nil {
		unknown.Error = stopped
	}
	run, secret, done, err := r.runDir(a)
	if err != nil {
		return unknown, nil
	}
	defer done()
	record, err := supervise.ReadRecord(run, secret, r.id)
	if err != nil {
		r.s.log.Info("an exec has no readable exit record; its result is unknown", "exec", r.id, "why", err)
		unknown.StdoutBytes, unknown.StderrBytes = r.stdout.Load(), r.stderr.Load()
		return unknown, nil
	}
	return record.Result, nil
}

// finish publishes the rest of the output, appends the exec's end, and tells the supervisor to forget the exec.
func (r *execRun) finish(ctx context.Context, x *protocol.Exec, a *attach.Attachment, p *output.Exec,
	result control.Result) error {
	r.s.history().View(func(st *protocol.State) {
		if now := st.Execs[r.id]; now != nil {
			x = now // the newest state has the time of the start
		}
	})
	details := &protocol.ExecDetails{ID: r.id, ExitCode: result.ExitCode, Truncated: result.Truncated,
		OOMKills: result.OOMKills}
	details.Started, details.Ended = ranBetween(r.s.host.Conn, x.StartedAt, &result)
	if err := r.publishRest(ctx, p, &result, details); err != nil {
		return err
	}
	r.s.host.Output.ExecStartsOrEnds(r.s.key)
	r.s.host.Probe("before-exec-end")
	err := r.s.append(ctx, r.s.history().generation(), func(st *protocol.State) []protocol.Event {
		return decide.ExecEnd(st, &result, details, a.Ending())
	})
	r.s.host.Probe("after-exec-end")
	if a != nil && (err == nil || errors.Is(err, decide.ErrSuperseded)) {
		p.Forget(a.During, func() { a.Forget(r.id) })
	}
	return err
}

// publishRest completes the output of an exec: it puts short output into details, which become part of the exec's end,
// and publishes the rest of longer output.
func (r *execRun) publishRest(ctx context.Context, p *output.Exec, result *control.Result,
	details *protocol.ExecDetails) (err error) {
	inline := result.Inline
	if inline { // if an earlier worker published a part of the output, publish the rest, too
		if inline, err = p.NothingPublished(ctx); err != nil {
			return err
		}
	}
	if inline {
		details.Inline, details.Stdout, details.Stderr = true, result.Stdout, result.Stderr
		details.StdoutBytes, details.StderrBytes = int64(len(result.Stdout)), int64(len(result.Stderr))
		details.StdoutSHA256 = protocol.OutputHash(result.Stdout)
		details.StderrSHA256 = protocol.OutputHash(result.Stderr)
	} else {
		lost, err := p.PublishAll(ctx, result.StdoutBytes, result.StderrBytes)
		if err != nil {
			return err
		}
		details.OutputError = lost
		details.StdoutBytes, details.StderrBytes = p.Published()
		if details.StdoutSHA256, details.StderrSHA256, err = p.Hashes(ctx); err != nil {
			return err
		}
		details.Truncated = details.Truncated || details.StdoutBytes < result.StdoutBytes ||
			details.StderrBytes < result.StderrBytes
		details.Inline = details.StdoutBytes == 0 && details.StderrBytes == 0
	}
	if result.DiskFull && details.OutputError == nil {
		details.OutputError = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonDiskFull,
			"the disk of the exec's host was full")
	}
	return nil
}

// ranBetween returns when an exec started and ended, by the store's clock. The supervisor reports these times by the
// machine's wall clock, which may have been changed during the exec. ranBetween therefore replaces a time before the
// event exec.started by the time of that event, and a time after now by now. An unknown time is zero.
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

// execOutput implements output.Sandbox for one exec.
type execOutput struct {
	r *execRun
	a *attach.Attachment // nil: the exec's container has ended
}

func (o execOutput) RunDir() (run *os.Root, done func(), err error) {
	run, _, done, err = o.r.runDir(o.a)
	return run, done, err
}

func (o execOutput) Ending() bool { return o.a.Ending() }

func (o execOutput) Stopped() *protocol.Error { return o.r.s.diskStop.now() }

func (o execOutput) ReachLog(ctx context.Context) error { return o.r.s.journal.Refresh(ctx) }

// dir returns the directory of the exec's container.
func (r *execRun) dir() hostdir.Dir {
	d := r.s.dir(r.s.history().generation())
	if r.service != "" {
		d = d.Service(r.service)
	}
	return d
}

// runDir returns the run directory of the exec's container. If a is nil, the container has ended, and runDir opens the
// directory by its path. secret authenticates the exec's exit record. Call the returned function done after use.
func (r *execRun) runDir(a *attach.Attachment) (run *os.Root, secret []byte, done func(), err error) {
	if a != nil {
		return a.Run, a.Key, func() {}, nil
	}
	d := r.dir()
	if secret, err = d.Secret(); err != nil {
		return nil, nil, nil, err
	}
	if run, err = os.OpenRoot(d.Run()); err != nil {
		return nil, nil, nil, protocol.Errorf(protocol.NotFound, "", "open the run directory: %v", err)
	}
	return run, secret, func() { run.Close() }, nil
}
