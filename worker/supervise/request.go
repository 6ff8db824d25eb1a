package supervise

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Every request waits for a connection, and is sent again on the next one when the connection ends
// before the answer: all of them may be repeated. When ctx ends first the error is unavailable,
// and it is not known whether the request was carried out.

// Start starts an exec, once: the same id again answers with the exec as it is then. A command that
// cannot be started is not an error but a result, in the status and in OnEnd. Errors:
// failed_precondition with "interrupted" when it was meant for an earlier boot of the supervisor, or
// was started and forgotten, with "sandbox_stopping" after StopAll; "lease_lost" when [Config.Lease]
// no longer allowed it as it was written, or the supervisor read it too late; resource_exhausted;
// unavailable.
//
// The exec's files are made before, and are the same ones each time. Where they cannot be made, for want of space,
// say, the exec runs all the same and less is kept of its output; see [control.Start].
//
// OnEnd may be called before Start returns.
func (l *Link) Start(ctx context.Context, start control.Start) (control.ExecStatus, error) {
	reply, err := l.ask(ctx, control.Command{Start: &start})
	if err != nil || reply.Status == nil {
		return control.ExecStatus{}, err
	}
	return *reply.Status, nil
}

// Cancel ends an exec: TERM to its process tree, KILL after grace. It returns when the supervisor
// knows; the end comes by OnEnd. It does nothing for an ended exec; a second call may shorten the
// grace. Errors: not_found for an exec that this boot does not know; unavailable.
func (l *Link) Cancel(ctx context.Context, execID string, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{Cancel: &control.Cancel{ID: execID, Grace: grace}})
	return err
}

// Forget has the supervisor drop ended execs, and removes their files, also where the supervisor does not answer. It
// passes over those that run, but nobody can read their output any more.
func (l *Link) Forget(ctx context.Context, execIDs ...string) error {
	_, err := l.ask(ctx, control.Command{Forget: &control.Forget{IDs: execIDs}})
	for _, id := range execIDs {
		l.removeFiles(id, err == nil)
	}
	return err
}

// StopAll ends every exec and the primary command, TERM, grace, KILL, and returns when nothing of
// them is left; OnEnd has each exec's result as Cancelled. Nothing starts in this boot afterwards.
// Errors: "lease_lost", as of Start; unavailable.
func (l *Link) StopAll(ctx context.Context, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{StopAll: &control.StopAll{Grace: grace}})
	return err
}

// prepared are the files of an exec that is going to be started.
type prepared struct {
	files *passed
	done  chan struct{} // closed when they are there
}

// Prepare makes the files of an exec that [Link.Start] is going to start, while the caller does something else: on a
// busy disk that takes longer than to start the process. cancel removes them again where Start was not called.
func (l *Link) Prepare(execID string) (cancel func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.hello.TakesFiles || l.prepared[execID] != nil {
		return func() {}
	}
	p := &prepared{done: make(chan struct{})}
	l.prepared[execID] = p
	l.running.Go(func() {
		defer close(p.done)
		p.files = l.execFiles(execID)
	})
	return func() {
		if files, there := l.takePrepared(execID); there {
			files.release()
			l.removeFiles(execID, false)
		}
	}
}

// takePrepared returns the files that were prepared, once.
func (l *Link) takePrepared(id string) (files *passed, there bool) {
	l.mu.Lock()
	p := l.prepared[id]
	delete(l.prepared, id)
	l.mu.Unlock()
	if p == nil {
		return nil, false
	}
	<-p.done
	return p.files, true
}

func (l *Link) removeFiles(id string, forgotten bool) {
	if err := l.files.remove(l.config.Run, id, forgotten); err != nil {
		l.config.Logger.Warn("the files of an exec stay", "exec", id, "error", err)
	}
}

// execFiles makes the files of an exec; nil where that cannot be.
func (l *Link) execFiles(id string) *passed {
	files, err := l.files.exec(id)
	if err != nil {
		l.config.Logger.Warn("an exec has no files for its output", "exec", id, "error", err)
	}
	return files
}

func (l *Link) ask(ctx context.Context, c control.Command) (*control.Reply, error) {
	var files *passed
	defer func() { files.release() }()
	for {
		s, hello, err := l.session(ctx)
		if err != nil {
			return nil, err
		}
		if c.Start != nil && hello.TakesFiles && files == nil {
			var made bool
			if files, made = l.takePrepared(c.Start.ID); !made {
				files = l.execFiles(c.Start.ID)
			}
			start := *c.Start
			start.Files = files.count()
			c.Start = &start
		}
		reply, lost, err := s.ask(ctx, c, files)
		switch {
		case err != nil:
			return nil, err
		case lost:
			if err := l.gone(ctx, s); err != nil {
				return nil, err
			}
		case reply.Error != nil:
			return nil, reply.Error
		default:
			if reply.Status != nil && reply.Status.Result != nil {
				l.files.sets.ended(reply.Status.ID)
			}
			return reply, nil
		}
	}
}

// gone waits until an ended session is no longer the current one.
func (l *Link) gone(ctx context.Context, s *session) error {
	for {
		l.mu.Lock()
		current, changed := l.current, l.changed
		l.mu.Unlock()
		if current != s {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return unavailable(ctx)
		}
	}
}
