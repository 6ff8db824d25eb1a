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

// The worker's own commands are hooks and health tests. The supervisor treats them as execs, so a timeout kills the
// whole process tree. Unlike execs, they are not in the log.

// commandOutput limits how many bytes the supervisor keeps of each output stream of one of the worker's own commands.
const commandOutput = 64 << 10

// Command runs a command, and returns its result and the last part of its output. If the supervisor has already run a
// command with this id, Command returns the result of the first run. An error with reason lease_lost means that the
// command was not started; any other error means that the outcome is not known.
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

// Runs reports whether a call of Command with this id is in progress.
func (a *Attachment) Runs(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.commands[id] != nil
}

// ForgetCommand tells the supervisor to drop a command and its files. If the command still runs, the supervisor ends it
// first. If the supervisor does not answer, the command ends with the container.
func (a *Attachment) ForgetCommand(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := a.Link.Forget(ctx, id); err != nil {
		a.cfg.Log.Debug("the supervisor did not drop a hook or health test", "command", id, "error", err)
	}
}

// outputOf returns the last part of a command's output. The output is stdout followed by stderr.
func (a *Attachment) outputOf(r *control.Result) []byte {
	stdout, stderr := r.Stdout, r.Stderr
	if !r.Inline {
		stdout = a.readEnd(r.ID, control.StdoutName, r.StdoutBytes)
		stderr = a.readEnd(r.ID, control.StderrName, r.StderrBytes)
	}
	return LastOutput(append(append([]byte(nil), stdout...), stderr...))
}

// readEnd returns the last part of an output file, or nil if the file cannot be read. size is the size of the file.
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

// LastOutput returns the last part of some output, at most protocol.MaxLastOutput bytes.
func LastOutput(output []byte) []byte { return output[max(0, len(output)-protocol.MaxLastOutput):] }
