package worker

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// The worker runs commands of its own in a sandbox: hooks and health tests. They are execs for the
// supervisor, with the kill of the whole tree at the timeout, and none for the log.

// commandOutput is how much of such a command's output is kept of each stream.
const commandOutput = 64 << 10

// command runs a command through an attachment and returns its result and the end of its output. An
// id that the supervisor knows is not run again: its result is returned. The error says that it is
// not known what became of it, or, with the reason lease_lost, that it was not asked for.
func (s *sandbox) command(ctx context.Context, a *attachment, start control.Start) (control.Result, []byte, error) {
	if err := s.w.fence(); err != nil {
		return control.Result{}, nil, err
	}
	ctx, cancel := a.during(ctx)
	defer cancel()
	ended := make(chan control.Result, 1)
	s.mu.Lock()
	s.commands[start.ID] = ended
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.commands, start.ID)
	}()
	start.Boot, start.OutputLimit, start.InlineLimit = a.boot, commandOutput, 2*commandOutput
	status, err := a.link.Start(ctx, start)
	if err != nil {
		return control.Result{}, nil, err
	}
	if status.Result != nil {
		return *status.Result, outputOf(a, status.Result), nil
	}
	select {
	case result := <-ended:
		return result, outputOf(a, &result), nil
	case <-ctx.Done():
		return control.Result{}, nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted, "the command was interrupted")
	}
}

// forgetCommand drops a command at the supervisor, ending it first where it still runs. What is not
// dropped goes with the container.
func (a *attachment) forgetCommand(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := a.link.Forget(ctx, id); err != nil {
		a.s.log.Debug("a command is not forgotten by its supervisor", "command", id, "error", err)
	}
}

// outputOf is the end of what a command printed, stderr last.
func outputOf(a *attachment, r *control.Result) []byte {
	stdout, stderr := r.Stdout, r.Stderr
	if !r.Inline {
		for _, f := range []struct {
			name string
			size int64
			into *[]byte
		}{{control.StdoutName, r.StdoutBytes, &stdout}, {control.StderrName, r.StderrBytes, &stderr}} {
			file, err := supervise.OpenOutput(a.run, r.ID, f.name)
			if err != nil {
				continue // there is none
			}
			*f.into = output.ReadEnd(file, f.size)
			file.Close()
		}
	}
	return output.End(append(append([]byte(nil), stdout...), stderr...))
}
