package supervise

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Every request waits for a connection. If the connection ends before the answer arrives, the request is sent again on
// the next connection. This is safe because all requests may be repeated. If ctx ends first, the error is unavailable,
// and whether the request was carried out is unknown.

// Start starts an exec. A second call with the same id starts nothing, and returns the exec's present status. If the
// command cannot be started, Start returns no error: the status has the result, and OnEnd gets it too.
//
// Start returns these errors, apart from resource_exhausted and unavailable:
//   - failed_precondition with reason interrupted if the command is for an earlier boot of the supervisor, or if the
//     exec was started and forgotten
//   - failed_precondition with reason sandbox_stopping after [Link.StopAll]
//   - the error of [Config.Lease] if Lease does not allow the command at the moment when the command is written
//   - unavailable with reason lease_lost if the supervisor reads the command too late
//   - not_found with [control.Start.OnlyKnown] if the supervisor does not know the exec
//   - failed_precondition with reason unsupported if the supervisor is too old for secrets or for an open stdin
//
// The exec's files are created first. A repeated Start uses the same files. If they cannot be created, for example
// because the disk is full, the exec runs anyway, and less of its output is stored; see [control.Start].
//
// OnEnd may be called before Start returns.
func (l *Link) Start(ctx context.Context, start control.Start) (control.ExecStatus, error) {
	reply, err := l.ask(ctx, control.Command{Start: &start})
	if err != nil || reply.Status == nil {
		return control.ExecStatus{}, err
	}
	return *reply.Status, nil
}

// Cancel ends an exec. The supervisor sends TERM to the exec's process tree, and KILL after the grace period. Cancel
// returns when the supervisor has accepted the command; the end of the exec is reported to OnEnd. Cancel does nothing
// if the exec has already ended. A second call may shorten the grace period. Errors: not_found if this boot of the
// supervisor does not know the exec; unavailable.
func (l *Link) Cancel(ctx context.Context, execID string, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{Cancel: &control.Cancel{ID: execID, Grace: grace}})
	return err
}

// Signal sends a signal to a running exec. The supervisor sends a signal with the same number only once, and answers
// every repetition with the first result. Errors: not_found if this boot of the supervisor does not know the exec;
// failed_precondition with reason unsupported_version if the supervisor is too old; the error of [Config.Lease];
// unavailable, with reason lease_lost if the supervisor reads the command too late.
func (l *Link) Signal(ctx context.Context, signal control.Signal) (control.SignalResult, error) {
	reply, err := l.ask(ctx, control.Command{Signal: &signal})
	if err != nil {
		return control.SignalResult{}, err
	}
	if reply.Signal == nil {
		return control.SignalResult{}, protocol.Errorf(protocol.Internal, protocol.ReasonSupervisorUnhealthy,
			"the supervisor's answer to a signal has no result")
	}
	return *reply.Signal, nil
}

// Processes lists the processes in the container. Errors: resource_exhausted if the supervisor is still listing them
// for another call; failed_precondition with reason unsupported_version if the supervisor is too old; unavailable.
func (l *Link) Processes(ctx context.Context) (*control.ProcessTable, error) {
	reply, err := l.ask(ctx, control.Command{Processes: &control.Processes{}})
	if err != nil {
		return nil, err
	}
	if reply.Processes == nil {
		return nil, protocol.Errorf(protocol.Internal, protocol.ReasonSupervisorUnhealthy,
			"the supervisor's answer has no list of processes")
	}
	return reply.Processes, nil
}

// Forget makes the supervisor forget ended execs. It removes their files even if the supervisor does not answer. The
// supervisor does not forget execs that still run, but their output can no longer be read.
func (l *Link) Forget(ctx context.Context, execIDs ...string) error {
	_, err := l.ask(ctx, control.Command{Forget: &control.Forget{IDs: execIDs}})
	for _, id := range execIDs {
		l.removeFiles(id, err == nil)
	}
	return err
}

// StopAll ends every exec and the primary command. The supervisor sends TERM, and KILL after the grace period. StopAll
// returns when all processes are gone. OnEnd gets the result of each exec, marked as cancelled. This boot of the
// supervisor starts nothing afterwards. Errors: unavailable, and the error of [Config.Lease].
func (l *Link) StopAll(ctx context.Context, grace time.Duration) error {
	_, err := l.ask(ctx, control.Command{StopAll: &control.StopAll{Grace: grace}})
	return err
}

// prepared are the files of an exec that is about to be started.
type prepared struct {
	files *passed
	done  chan struct{} // closed when the files exist
}

// Prepare creates the files of an exec in the background, before [Link.Start] is called for the exec. On a busy disk,
// creating the files takes longer than starting the process. The returned function cancel removes the files if Start
// was not called.
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

// takePrepared waits for the prepared files of an exec and returns them. It returns false if no files were prepared for
// the exec, or if they were taken before.
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
		l.config.Logger.Warn("could not remove the output files of an exec", "exec", id, "error", err)
	}
}

// execFiles opens or creates the files of an exec. It returns nil if that fails.
func (l *Link) execFiles(id string) *passed {
	files, err := l.files.exec(id)
	if err != nil {
		l.config.Logger.Warn("could not create the output files of an exec; its output is stored only in part",
			"exec", id, "error", err)
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
		if c.Start != nil && !hello.TakesSecrets && (c.Start.OnlyKnown || len(c.Start.Secrets) > 0) {
			return nil, errTooOld
		}
		if !hello.TakesInput && (c.Input != nil || c.Start != nil && c.Start.OpenStdin) {
			return nil, errTooOldForInput
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

// gone waits until a session that has ended is no longer the link's current session.
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
