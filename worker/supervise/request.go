package supervise

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Every request waits for a connection. If that ends before the answer, the request is sent again on the next one: all
// requests may be repeated. If ctx ends first, the error is unavailable, and the request may or may not have been
// carried out.

// Start starts an exec, once: the same id again returns its current status. A command that cannot be started is not an
// error but a result, in the status and in OnEnd. Errors: failed_precondition with "interrupted" if it was meant for an
// earlier boot of the supervisor, or was started and forgotten, or with "sandbox_stopping" after StopAll; "lease_lost"
// if [Config.Lease] no longer allowed it when it was written, or the supervisor read it too late; resource_exhausted;
// unavailable.
//
// The exec's files are made first; a retry uses the same ones. If they cannot be made, for example because the disk is
// full, the exec runs anyway and less of its output is stored; see [control.Start].
//
// OnEnd may be called before Start returns.
func (l *Link) Start(ctx context.Context, start control.Start) (control.ExecStatus, error) {
	reply, err := l.ask(ctx, control.Command{Start: &start})
	if err != nil || reply.Status == nil {
		return control.ExecStatus{}, err
	}
	return *reply.Status, nil
}

// Cancel ends an exec: TERM to its process tree, KILL after grace. It returns when the supervisor has the command; the
// end comes by OnEnd. It does nothing if the exec has ended; a second call may shorten the grace. Errors: not_found if
// this boot does not know the exec; unavailable.
func (l *Link) Cancel(ctx context.Context, execID string, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{Cancel: &control.Cancel{ID: execID, Grace: grace}})
	return err
}

// Forget makes the supervisor drop ended execs, and removes their files even if the supervisor does not answer. Running
// execs are skipped, but their output can no longer be read.
func (l *Link) Forget(ctx context.Context, execIDs ...string) error {
	_, err := l.ask(ctx, control.Command{Forget: &control.Forget{IDs: execIDs}})
	for _, id := range execIDs {
		l.removeFiles(id, err == nil)
	}
	return err
}

// StopAll ends every exec and the primary command with TERM, grace and KILL, and returns when all their processes are
// gone; OnEnd gets each exec's result as Cancelled. Nothing starts in this boot afterwards. Errors: "lease_lost", as
// for Start; unavailable.
func (l *Link) StopAll(ctx context.Context, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{StopAll: &control.StopAll{Grace: grace}})
	return err
}

// prepared are the files of an exec that is about to be started.
type prepared struct {
	files *passed
	done  chan struct{} // closed when the files exist
}

// Prepare makes the files of an exec that [Link.Start] will start, while the caller does something else: on a busy
// disk, that takes longer than starting the process. cancel removes them if Start was not called.
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

// takePrepared returns the prepared files, once.
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
		l.config.Logger.Warn("could not remove the files of an exec", "exec", id, "error", err)
	}
}

// execFiles makes the files of an exec; nil if that fails.
func (l *Link) execFiles(id string) *passed {
	files, err := l.files.exec(id)
	if err != nil {
		l.config.Logger.Warn("could not make the output files of an exec", "exec", id, "error", err)
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
