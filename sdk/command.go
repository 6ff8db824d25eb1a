package sdk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// cancelMargin is how long an exec may take to end after its cancel, beyond its grace period.
	cancelMargin = 15 * time.Second
	// errorStderr is how many bytes from the end of stderr an [ExitError] of [Cmd.Output] holds.
	errorStderr = 32 << 10
)

// Cmd is a command that runs in a sandbox, in the shape of os/exec.Cmd. Make one with [Sandbox.Command], set its
// fields, and call Run, Output, CombinedOutput or Start. A Cmd runs once. Only one goroutine may use it.
//
// Differences from os/exec: Env is added to the environment of the sandbox. Wait does not wait for a Read of Stdin that
// is still blocked when the command ends; see [WithStdin]. Pipes can be read after Wait.
type Cmd struct {
	Args    []string // the program and its arguments; no shell reads them
	Env     []string // variables KEY=VALUE, added to the sandbox's environment; the last value of a key counts
	Dir     string   // working directory, absolute; default: the sandbox's
	User    string   // default: the sandbox's user
	Service string   // run in the container of this service; default: the sandbox's own container

	Timeout     time.Duration // the fleet ends the command after this time, even if this client is gone; 0: never
	Grace       time.Duration // time from TERM to KILL when the command is ended early; default 5 s
	OutputLimit Bytes         // bytes that the fleet keeps of each of stdout and stderr; default 256 MiB

	// ID is the id of the exec and of its request. A caller that lost its connection or was restarted can start the same
	// command with the same ID again: the command runs once, and Wait returns its outcome and its whole output. Default:
	// a new id.
	ID string

	Stdin io.Reader // nil: the command reads an empty stdin

	// Stdout and Stderr get the output as it arrives; nil drops it. Each is written by one goroutine at a time: if both
	// are the same writer, that goroutine writes the output in the order in which it arrives. A slow writer delays neither
	// the command nor the other stream.
	Stdout, Stderr io.Writer

	Result *Result // how the exec ended, without output; set by Wait, nil if the end is not known

	ctx       context.Context
	sandbox   *Sandbox
	exec      *Exec
	stdinPipe *io.PipeReader
	pipes     map[string]*io.PipeWriter
	copies    sync.WaitGroup // copies to Stdout and Stderr
	failure   copyFailure
	running   context.Context // ends when Wait has given up
	giveUp    context.CancelFunc
	ended     chan struct{} // closed when result and err are set
	result    *Result
	err       error
	waited    bool
}

// copyFailure keeps the first error of the goroutines that copy output.
type copyFailure struct {
	mu  sync.Mutex
	err error
}

func (f *copyFailure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *copyFailure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// ExitError says that a command ended with an exit code other than 0. It also matches *[Error], with the code
// failed_precondition and the reason command_exited.
type ExitError struct {
	Result *Result
	Stderr []byte // the last 32 KiB of stderr; only from [Cmd.Output] without a Stderr
	what   string
}

// ExitCode returns the exit code: 128+n if signal n killed the command, -1 if the code is not known.
func (e *ExitError) ExitCode() int {
	if e.Result.ExitCode == nil {
		return -1
	}
	return *e.Result.ExitCode
}

// Error says how the command ended.
func (e *ExitError) Error() string { return e.what }

// Unwrap returns the *Error.
func (e *ExitError) Unwrap() error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCommandExited, "%s", e.what)
}

// Command returns a [Cmd] that runs a program in the sandbox. When ctx ends before the command does, the exec is
// cancelled: its whole process tree gets TERM and, after the grace period, KILL.
func (s *Sandbox) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Args: append([]string{name}, args...), ctx: ctx, sandbox: s, pipes: map[string]*io.PipeWriter{}}
}

// String returns the program and its arguments, for messages.
func (c *Cmd) String() string { return strings.Join(c.Args, " ") }

// Exec returns the handle of the exec, or nil before Start has succeeded.
func (c *Cmd) Exec() *Exec { return c.exec }

// Run starts the command and waits for its end. Errors are those of [Cmd.Start] and [Cmd.Wait].
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its stdout, all in memory. If Stderr is nil, an [ExitError] holds the end of
// stderr. Errors are those of [Cmd.Run]; invalid_argument if Stdout is set.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, protocol.Invalid("Stdout", "must not be set for Output")
	}
	var stdout bytes.Buffer
	var last *lastBytes
	c.Stdout = &stdout
	if c.Stderr == nil && c.pipes[Stderr] == nil {
		last = &lastBytes{}
		c.Stderr = last
	}
	err := c.Run()
	var exit *ExitError
	if errors.As(err, &exit) && last != nil {
		exit.Stderr = last.data[max(0, len(last.data)-errorStderr):]
	}
	return stdout.Bytes(), err
}

// lastBytes keeps the last bytes that are written to it.
type lastBytes struct{ data []byte }

func (l *lastBytes) Write(data []byte) (int, error) {
	l.data = append(l.data, data...)
	if len(l.data) > 4*errorStderr {
		l.data = append([]byte(nil), l.data[len(l.data)-errorStderr:]...)
	}
	return len(data), nil
}

// CombinedOutput runs the command and returns its stdout and stderr, all in memory, in the order in which they arrived.
// Errors are those of [Cmd.Run]; invalid_argument if Stdout or Stderr is set.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, protocol.Invalid("Stdout", "and Stderr must not be set for CombinedOutput")
	}
	var both bytes.Buffer
	c.Stdout, c.Stderr = &both, &both
	err := c.Run()
	return both.Bytes(), err
}

// StdoutPipe returns a reader of stdout. Call it before Start. The reader returns io.EOF after the whole output, also
// after Wait; close it to stop earlier. Error: invalid_argument if Stdout is set or the command was started.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.pipe(Stdout, &c.Stdout) }

// StderrPipe returns a reader of stderr; see [Cmd.StdoutPipe].
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.pipe(Stderr, &c.Stderr) }

// StdinPipe returns a writer to the command's stdin. Call it before Start, and close the writer to end the stdin. The
// end of the command ends writes with an error. Error: invalid_argument if Stdin is set or the command was started.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	switch {
	case c.Stdin != nil:
		return nil, protocol.Invalid("Stdin", "already has a reader or a pipe")
	case c.ended != nil:
		return nil, protocol.Invalid("Stdin", "the command was started: ask for the pipe before Start")
	}
	r, w := io.Pipe()
	c.Stdin, c.stdinPipe = r, r
	return w, nil
}

func (c *Cmd) pipe(stream string, w *io.Writer) (io.ReadCloser, error) {
	if *w != nil || c.pipes[stream] != nil {
		return nil, protocol.Invalid(stream, "already has a writer or a pipe")
	}
	if c.ended != nil {
		return nil, protocol.Invalid(stream, "the command was started: ask for the pipe before Start")
	}
	r, pw := io.Pipe()
	c.pipes[stream] = pw
	return r, nil
}

// Start starts the command. It returns once the request is accepted; an accepted request is durable and will be carried
// out. If ctx ends first, the request may still be carried out; the exec is then cancelled.
//
// Errors: invalid_argument naming the field; the errors of [Sandbox.Start].
func (c *Cmd) Start() error {
	err := c.start()
	if err != nil {
		for _, w := range c.pipes {
			w.CloseWithError(err)
		}
	}
	return err
}

func (c *Cmd) start() error {
	if c.ended != nil {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInvalidState, "the command was already started")
	}
	c.ended = make(chan struct{})
	spec, err := c.spec()
	if err != nil {
		return err
	}
	if c.ID == "" {
		c.ID = NewID()
	}
	c.exec, err = c.sandbox.Start(c.ctx, spec, WithRequestID(c.ID), WithStdin(c.Stdin))
	if err != nil {
		c.exec = nil
		if c.ctx.Err() != nil { // the request may be stored
			c.sandbox.client.cancelLater(c.sandbox.ExecByID(c.ID))
		}
		return err
	}
	c.running, c.giveUp = context.WithCancel(context.WithoutCancel(c.ctx))
	c.copyOutput()
	go c.follow()
	return nil
}

func (c *Cmd) spec() (ExecSpec, error) {
	s := ExecSpec{Command: c.Args, Cwd: c.Dir, User: c.User, Service: c.Service, Timeout: Duration(c.Timeout),
		Grace: Duration(c.Grace), OutputLimit: c.OutputLimit}
	for i, variable := range c.Env {
		key, value, ok := strings.Cut(variable, "=")
		if !ok {
			return s, protocol.Invalid(fmt.Sprintf("Env[%d]", i), "must be KEY=VALUE")
		}
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		s.Env[key] = value
	}
	return s, s.Validate()
}

// copyOutput starts the goroutines that copy output to the writers and the pipes.
func (c *Cmd) copyOutput() {
	for stream, w := range c.pipes {
		go func() {
			// A reader may have stopped reading. Its pipe must not keep this goroutine when the client is closed.
			defer context.AfterFunc(c.sandbox.client.ctx, func() { w.CloseWithError(context.Canceled) })()
			w.CloseWithError(c.copyTo(&outputCopy{writers: map[string]io.Writer{stream: w}})) // nil: io.EOF
		}()
	}
	var copies []map[string]io.Writer
	if c.Stdout != nil && sameWriter(c.Stdout, c.Stderr) {
		copies = append(copies, map[string]io.Writer{Stdout: c.Stdout, Stderr: c.Stderr})
	} else {
		for stream, w := range map[string]io.Writer{Stdout: c.Stdout, Stderr: c.Stderr} {
			if w != nil {
				copies = append(copies, map[string]io.Writer{stream: w})
			}
		}
	}
	for _, writers := range copies {
		c.copies.Go(func() {
			if err := c.copyTo(&outputCopy{writers: writers}); err != nil {
				c.failure.set(err)
			}
		})
	}
}

// sameWriter reports whether two writers are equal. Writers of a type that Go cannot compare count as different.
func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }() // the comparison of such types panics
	return a == b
}

// copyTo copies the output of the exec until the exec has ended. It also ends when the client is closed.
func (c *Cmd) copyTo(s *outputCopy) error {
	ctx, cancel := context.WithCancel(c.running)
	defer cancel()
	defer context.AfterFunc(c.sandbox.client.ctx, cancel)()
	err := c.exec.output(ctx, settingsOf([]OutputOption{WithFollow(true)}, OutputOption.forOutput), s)
	return failed(ctx, err, "read the output of exec "+c.ID)
}

// outputCopy is a sink that writes each stream to its writer, and takes no stream without a writer.
type outputCopy struct{ writers map[string]io.Writer }

func (s *outputCopy) wants(stream string) bool { return s.writers[stream] != nil }

func (s *outputCopy) write(stream string, _ int64, data []byte) error {
	w := s.writers[stream]
	if w == nil {
		return nil
	}
	_, err := w.Write(data)
	if err != nil {
		return &typedError{protocol.Errorf(protocol.Cancelled, "", "write output: %v", err), err}
	}
	return nil
}

// follow waits for the end of the exec. When the context of the command ends, it cancels the exec first.
func (c *Cmd) follow() {
	defer close(c.ended)
	waiting, ended := context.WithCancel(c.running)
	defer ended()
	stop := context.AfterFunc(c.ctx, func() {
		grace := c.Grace
		if grace == 0 {
			grace = protocol.DefaultGrace.Std()
		}
		_ = c.sandbox.client.cancel(waiting, c.exec) // if it fails, the wait below gives up
		if backoff.Sleep(waiting, grace+cancelMargin) {
			c.giveUp()
		}
	})
	defer stop()
	c.result, c.err = c.exec.Wait(waiting, WithCollect(0))
	if c.stdinPipe != nil {
		c.stdinPipe.CloseWithError(protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
			"the command has ended, so it takes no more input"))
	}
}

// cancel cancels an exec. It repeats the cancel while the exec does not exist, because its request may still wait.
func (c *Client) cancel(ctx context.Context, x *Exec) error {
	ctx, cancel := context.WithTimeout(ctx, c.giveUpAfter())
	defer cancel()
	for {
		err := x.Cancel(ctx)
		if protocol.CodeOf(err) != protocol.NotFound || !backoff.Sleep(ctx, retryPause) {
			return err
		}
	}
}

// cancelLater cancels an exec in the background, until the client is closed.
func (c *Client) cancelLater(x *Exec) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		_ = c.cancel(c.ctx, x) // nobody waits for it; the exec's own timeout still applies
	}()
}

// Wait waits for the end of a command that Start started, and until Stdout and Stderr have the whole output. It does
// not wait for the pipes. It sets Result.
//
// Wait returns nil if the command ended with exit code 0. Otherwise it returns, in this order:
//   - the error of ctx, with the code cancelled or deadline_exceeded, if ctx ended and the command did not succeed. If
//     the fleet has not confirmed the end of the exec within the grace period and 15 s, Result is nil;
//   - an [*ExitError] if the command ended with another exit code;
//   - the error of [Result.Err] if the exec did not end by itself: deadline_exceeded with reason timeout after Timeout,
//     cancelled if somebody else cancelled it, and the exec's own error, for example with reason host_lost;
//   - the first error of a writer, or of reading the output; such an error does not end the command;
//   - out_of_range with reason output_truncated, or the error that stopped the output, if the fleet does not have the
//     whole output and Stdout or Stderr is set.
func (c *Cmd) Wait() error {
	if c.exec == nil || c.waited {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInvalidState,
			"the command was not started, or Wait was called before")
	}
	c.waited = true
	<-c.ended
	c.Result = c.result
	if c.result == nil {
		c.giveUp()
	}
	c.copies.Wait()
	if len(c.pipes) == 0 {
		c.giveUp()
	}
	return c.outcome()
}

func (c *Cmd) outcome() error {
	r := c.result
	succeeded := r != nil && r.State == protocol.ExecStateFinished && r.ExitCode != nil && *r.ExitCode == 0
	switch {
	case c.ctx.Err() != nil && !succeeded:
		return ctxEnded(c.ctx.Err(), c.sandbox.ID()+": "+c.String())
	case r == nil:
		return c.err
	case r.State == protocol.ExecStateFinished && !succeeded:
		e := &ExitError{Result: r}
		e.what = fmt.Sprintf("the command ended with exit code %d", e.ExitCode())
		return e
	case c.err != nil:
		return c.err
	case c.failure.get() != nil:
		return c.failure.get()
	case c.Stdout != nil || c.Stderr != nil:
		return cutError(r)
	}
	return nil
}

// cutError returns an error if the fleet does not have the whole output of an exec that has ended.
func cutError(r *Result) error {
	switch {
	case r.OutputError != nil:
		return r.OutputError
	case r.Truncated:
		return protocol.Errorf(protocol.OutOfRange, protocol.ReasonOutputTruncated,
			"exec %s printed more than its output limit: set a greater limit", r.ID)
	}
	return nil
}
