package attach

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// The worker runs hooks and health tests in containers. The supervisor treats them as execs, so that a timeout kills
// the whole process tree. They are not in the log.

// commandOutput is how many bytes are kept of each output stream of such a command.
const commandOutput = 64 << 10

// Command runs a command, and returns its result and the end of its output. If the supervisor knows the id, the
// command is not run again, and the result of the first run is returned. An error means that the outcome is not known,
// or, with reason lease_lost, that the command was not started.
func (a *Attachment) Command(ctx context.Context, start control.Start) (control.Result, []byte, error) {
	if err := a.cfg.Fence(); err != nil {
		return control.Result{}, nil, err
	}
	ctx, cancel := a.During(ctx)
	defer cancel()
	ended := make(chan control.Result, 1)
	a.mu.Lock()
	a.commands[start.ID] = ended
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.commands, start.ID)
	}()
	start.Boot, start.OutputLimit, start.InlineLimit = a.Boot, commandOutput, 2*commandOutput
	status, err := a.Link.Start(ctx, start)
	if err != nil {
		return control.Result{}, nil, err
	}
	if status.Result != nil {
		return *status.Result, a.outputOf(status.Result), nil
	}
	select {
	case result := <-ended:
		return result, a.outputOf(&result), nil
	case <-ctx.Done():
		return control.Result{}, nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted,
			"the command was interrupted")
	}
}

// Runs reports whether the worker waits for a command with this id.
func (a *Attachment) Runs(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.commands[id] != nil
}

// ForgetCommand has the supervisor drop a command, and end it first if it still runs. If that fails, the command goes
// with the container.
func (a *Attachment) ForgetCommand(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := a.Link.Forget(ctx, id); err != nil {
		a.cfg.Log.Debug("the supervisor did not forget a command", "command", id, "error", err)
	}
}

// outputOf is the end of what a command printed, stderr last.
func (a *Attachment) outputOf(r *control.Result) []byte {
	stdout, stderr := r.Stdout, r.Stderr
	if !r.Inline {
		stdout = a.readEnd(r.ID, control.StdoutName, r.StdoutBytes)
		stderr = a.readEnd(r.ID, control.StderrName, r.StderrBytes)
	}
	return LastOutput(append(append([]byte(nil), stdout...), stderr...))
}

// readEnd reads the end of an output file of this size, nil if there is none.
func (a *Attachment) readEnd(id, name string, size int64) []byte {
	file, err := supervise.OpenOutput(a.Run, id, name)
	if err != nil {
		return nil
	}
	defer file.Close()
	return endOf(file, size)
}

func endOf(f *os.File, size int64) []byte {
	from := max(0, size-protocol.MaxLastOutput)
	data := make([]byte, size-from)
	n, err := f.ReadAt(data, from)
	if err != nil && err != io.EOF {
		return nil
	}
	return data[:n]
}

// LastOutput is the end of some output, as much as an event carries.
func LastOutput(output []byte) []byte { return output[max(0, len(output)-protocol.MaxLastOutput):] }
