package execs

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// containerEnded is the reason in the error of an exec that was interrupted by the end of its container.
const containerEnded = "its container ended"

// sealedResult returns the result that the exec's supervisor reported, or wrote to disk, before the supervisor ended.
// If there is no such result, the exec was interrupted; its error quotes the given reason.
func (r *execution) sealedResult(a *attach.Attachment, why string) (control.Result, error) {
	select {
	case result := <-r.result: // the supervisor reported the result before it ended
		return result, nil
	default:
	}
	unknown := control.Result{ID: r.id, Failed: true, Error: decide.Interrupted(why)}
	if stopped := r.cfg.Containers.StoppedForDisk(); stopped != nil {
		unknown.Error = stopped
	}
	run, secret, done, err := r.runDir(a)
	if err != nil {
		return unknown, nil
	}
	defer done()
	record, err := supervise.ReadRecord(run, secret, r.id)
	if err != nil {
		r.cfg.Logger.Info("an exec has no readable exit record; its result is unknown", "exec", r.id, "why", err)
		unknown.StdoutBytes, unknown.StderrBytes = r.stdout.Load(), r.stderr.Load()
		return unknown, nil
	}
	return record.Result, nil
}

// finish publishes the rest of the output, appends the exec's end, and tells the supervisor to forget the exec.
func (r *execution) finish(ctx context.Context, x *protocol.Exec, a *attach.Attachment, p *output.Exec,
	result control.Result) error {
	r.cfg.Log.View(func(st *protocol.State) {
		if now := st.Execs[r.id]; now != nil {
			x = now // the newest state has the time of the start
		}
	})
	details := &protocol.ExecDetails{ID: r.id, ExitCode: result.ExitCode, Truncated: result.Truncated,
		OOMKills: result.OOMKills}
	details.Started, details.Ended = ranBetween(r.cfg.Clock, x.StartedAt, &result)
	if err := r.publishRest(ctx, p, &result, details); err != nil {
		return err
	}
	r.cfg.Output.ExecStartsOrEnds(r.cfg.Key)
	signals, asked := r.lastSignals(ctx, a)
	r.cfg.Probe("before-exec-end")
	err := r.e.append(ctx, func(st *protocol.State) []protocol.Event {
		last := decide.LastSignals(st, r.id, signals, asked)
		if end := decide.ExecEnd(st, &result, details, a.Ending()); len(end) > 0 {
			return append(last, end...)
		}
		return nil
	})
	r.cfg.Probe("after-exec-end")
	if a != nil && (err == nil || errors.Is(err, decide.ErrSuperseded)) {
		p.Forget(a.During, func() { a.Forget(r.id) })
	}
	return err
}

// publishRest completes the output of an exec: it puts short output into details, which become part of the exec's end,
// and publishes the rest of longer output.
func (r *execution) publishRest(ctx context.Context, p *output.Exec, result *control.Result,
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
func ranBetween(clock Clock, started time.Time, result *control.Result) (from, to time.Time) {
	now := clock.Now()
	within := func(t, least time.Time) time.Time {
		t = clock.StoreTime(t)
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
	r *execution
	a *attach.Attachment // nil: the exec's container has ended
}

func (o execOutput) RunDir() (run *os.Root, done func(), err error) {
	run, _, done, err = o.r.runDir(o.a)
	return run, done, err
}

func (o execOutput) Ending() bool { return o.a.Ending() }

func (o execOutput) Stopped() *protocol.Error { return o.r.cfg.Containers.StoppedForDisk() }

func (o execOutput) ReachLog(ctx context.Context) error { return o.r.cfg.Log.Refresh(ctx) }

// dir returns the directory of the exec's container.
func (r *execution) dir() hostdir.Dir {
	d := r.cfg.Containers.Dir(r.e.generation())
	if r.service != "" {
		d = d.Service(r.service)
	}
	return d
}

// runDir returns the run directory of the exec's container. If a is nil, the container has ended, and runDir opens the
// directory by its path. secret authenticates the exec's exit record. Call the returned function done after use.
func (r *execution) runDir(a *attach.Attachment) (run *os.Root, secret []byte, done func(), err error) {
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
