package execs

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/secrets"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// execution takes one exec from its state in the log to its end. It appends exec.started, tells the supervisor to start
// the exec, publishes the exec's output, appends the exec's end, and tells the supervisor to forget the exec. Each step
// can be repeated, so a worker that restarts continues an unfinished exec with the same code.
type execution struct {
	e       *Execs
	cfg     *Config
	id      string
	service string // the exec runs in this service's container; "": in the primary container
	result  chan control.Result
	done    chan struct{} // closed when the goroutine has ended
	stop    context.CancelFunc

	stdout, stderr atomic.Int64 // sizes of the output, as the supervisor reported
	grew           wake.Signal
	cancelled      atomic.Bool // the supervisor was asked to end the exec
	signals        wake.Signal // the exec may have new signals to deliver

	secrets []control.Secret // values of the exec's secrets until it starts; only run's goroutine uses them
}

func newExecution(e *Execs, x *protocol.Exec, stop context.CancelFunc) *execution {
	return &execution{e: e, cfg: &e.cfg, id: x.ID, service: x.Spec.Service, result: make(chan control.Result, 1),
		done: make(chan struct{}), stop: stop, grew: wake.New(), signals: wake.New()}
}

// grow records the sizes of the output, as the supervisor reported.
func (r *execution) grow(stdout, stderr int64) {
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
func (r *execution) cancel(grace time.Duration) {
	a := r.cfg.Containers.Attachment(r.service)
	if a == nil {
		r.cancelled.Store(false)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.Link.Cancel(ctx, r.id, grace); err != nil {
		r.cfg.Logger.Warn("the supervisor did not cancel an exec; retrying", "exec", r.id, "error", err)
		r.cancelled.Store(false)
		time.AfterFunc(retryFirst, r.cfg.Wake)
	}
}

// run takes the exec to its end. It returns nil when the log has the exec's end, or when the exec no longer belongs to
// this host.
func (r *execution) run(ctx context.Context, x *protocol.Exec, a *attach.Attachment) error {
	adopted := x.State == protocol.ExecStateRunning
	r.cfg.Output.ExecStartsOrEnds(r.cfg.Key)
	if !adopted && a == nil {
		return decide.IgnoreSuperseded(r.failWithService(ctx))
	}
	number := x.StartSequence
	if !adopted {
		if get := r.getter(x); get != nil {
			var err error
			if r.secrets, err = get(ctx); err != nil {
				return r.failWithoutSecrets(ctx, err)
			}
		}
		defer a.Link.Prepare(r.id)()
		r.cfg.Probe("before-exec-started")
		var err error
		if number, err = r.appendStarted(ctx, a.Boot); err != nil {
			return decide.IgnoreSuperseded(err)
		}
		r.cfg.Probe("after-exec-started")
	}
	p := r.cfg.Output.NewExec(output.ExecConfig{
		Key: r.cfg.Key, Exec: x, Adopted: adopted, Sandbox: execOutput{r, a}, Logger: r.cfg.Logger,
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
func (r *execution) failWithService(ctx context.Context) error {
	return r.e.append(ctx, func(st *protocol.State) []protocol.Event {
		return decide.ServiceDown(st, r.id, r.service)
	})
}

// getter returns a function that gets the values of the exec's secrets, or nil if it has none.
func (r *execution) getter(x *protocol.Exec) supervise.Secrets {
	return secrets.OfExec(&x.Spec).Getter(r.cfg.Unseal, protocol.UnsealQuery{
		Tenant: r.cfg.Key.Tenant, Sandbox: r.cfg.Key.ID, Generation: r.e.generation(), Exec: r.id})
}

// failWithoutSecrets fails an accepted exec that cannot get its secrets. If a retry may succeed, it returns the error.
func (r *execution) failWithoutSecrets(ctx context.Context, why error) error {
	if hosterr.Temporary(why) || ctx.Err() != nil {
		return why
	}
	return decide.IgnoreSuperseded(r.e.append(ctx, func(st *protocol.State) []protocol.Event {
		return decide.ExecUnstartable(st, r.id, protocol.AsError(why))
	}))
}

// appendStarted appends exec.started, and returns the event's sequence number, which identifies this start of the exec.
// The event is appended before the process starts. An exec that was cancelled, or that belongs to a sandbox that is
// being stopped, therefore never starts.
func (r *execution) appendStarted(ctx context.Context, boot string) (number uint64, err error) {
	started := false
	since := r.e.unstartedSince(r.id)
	events, err := r.cfg.Log.AppendEvents(ctx, r.e.generation(), func(st *protocol.State) []protocol.Event {
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
func (r *execution) finished(ctx context.Context, x *protocol.Exec, number uint64, a *attach.Attachment,
	p *output.Exec) (control.Result, error) {
	if a == nil || x.Boot != "" && x.Boot != a.Boot {
		return r.sealedResult(a, containerEnded)
	}
	result, err := r.start(ctx, x, number, a, p)
	if result != nil || err != nil {
		return derefResult(result), err
	}
	delivering, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.deliverSignals(delivering, a)
	}()
	defer func() { stop(); <-ended }()
	return r.await(ctx, a, p)
}

func derefResult(r *control.Result) control.Result {
	if r == nil {
		return control.Result{}
	}
	return *r
}

// await publishes the exec's output until the exec ends.
func (r *execution) await(ctx context.Context, a *attach.Attachment, p *output.Exec) (control.Result, error) {
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
