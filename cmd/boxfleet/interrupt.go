package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
)

// Three things end a client command early: a signal, a closed output pipe, or the client's deadline. Each cancels the
// command's context, with the reason as the cause. If a request of the command may continue in the fleet, the error
// names commands that show the progress of the request or undo the request.

// leaveWithin is how long a client may continue after TERM, HUP or QUIT, or after its output was closed: 2 s, minus the
// time that a process takes to exit. After Ctrl-C there is no time limit; a second Ctrl-C ends the client.
const leaveWithin = 1700 * time.Millisecond

// interruption is the signal that ended a client's context. SIGPIPE means that the client's output was closed.
type interruption syscall.Signal

func (i interruption) Error() string {
	if i == interruption(syscall.SIGPIPE) {
		return "the output was closed"
	}
	if i == interruption(syscall.SIGINT) {
		return "interrupted"
	}
	return syscall.Signal(i).String()
}

// exitCode returns the exit code that a shell reports for the signal.
func (i interruption) exitCode() int { return 128 + int(i) }

// interrupts records what has ended a client command early, and which requests of the command continue in the fleet.
type interrupts struct {
	ownsProcess bool                    // the program owns its process, so it handles signals
	end         context.CancelCauseFunc // cancels the command's context
	connecting  atomic.Bool             // the command has started to connect to the fleet
	unread      atomic.Bool             // the reader of stdout or stderr is gone
	unwritten   atomic.Bool             // some output could not be written
	unfinished  unfinished
}

// handleSignals makes signals and a broken pipe end a client command. If HUP is ignored at the start, as under nohup,
// it stays ignored.
func (cl *client) handleSignals(cmd *cobra.Command) {
	if roleOf(cmd) != roleClient {
		return
	}
	parent := cmd.Context()
	if cl.ownsProcess { // main's context does not tell which signal ended it
		parent = context.WithoutCancel(parent)
	}
	ctx, end := context.WithCancelCause(parent)
	cmd.SetContext(ctx)
	cl.end = end
	cl.stdout = cl.guarded(cl.stdout)
	if !cl.ownsProcess {
		return
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	go cl.endOnSignals(signals)
	// A write to a closed pipe then fails, and does not end the process. A process that ignores SIGPIPE handles the other
	// signals already.
	signal.Ignore(syscall.SIGPIPE)
}

// endOnSignals cancels the context on the first signal. It ends the process on the second signal, or when leaveWithin
// has passed.
func (cl *client) endOnSignals(signals <-chan os.Signal) {
	last := interruption((<-signals).(syscall.Signal))
	cl.end(last)
	var expired <-chan time.Time
	if last != interruption(syscall.SIGINT) {
		expired = time.After(leaveWithin)
	} else if !cl.connecting.Load() { // the client may be blocked reading stdin
		expired = time.After(0)
	}
	select {
	case second := <-signals:
		last = interruption(second.(syscall.Signal))
	case <-expired:
	}
	cl.complain(cl.unfinished.appendTo(protocol.Errorf(protocol.Cancelled, "", "%v", last)))
	os.Exit(last.exitCode())
}

// guarded wraps w. When nobody reads the pipe any more, guarded cancels the client's context and drops further output.
// It records any other write error, such as a full disk, because most callers ignore write errors.
func (i *interrupts) guarded(w io.Writer) io.Writer { return &pipe{w, i} }

type pipe struct {
	io.Writer
	interrupts *interrupts
}

func (g *pipe) Write(data []byte) (int, error) {
	if g.interrupts.unread.Load() {
		return len(data), nil
	}
	n, err := g.Writer.Write(data)
	if errors.Is(err, syscall.EPIPE) && g.interrupts.end != nil {
		g.interrupts.unread.Store(true)
		g.interrupts.end(interruption(syscall.SIGPIPE))
		return len(data), nil
	}
	if err != nil {
		g.interrupts.unwritten.Store(true)
	}
	return n, err
}

// interruptionOf returns the interruption that ended a client's context. It returns false if there was no interruption.
func interruptionOf(ctx context.Context) (interruption, bool) {
	var i interruption
	ok := errors.As(context.Cause(ctx), &i)
	return i, ok
}

// overdue reports whether ctx ended because the client's deadline passed.
func overdue(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// unfinished collects the requests that a client has sent and that may not have ended, each with a hint for the user.
type unfinished struct {
	mu    sync.Mutex
	keys  []string
	hints map[string]string
}

// set records a hint: what happens to a request if the client ends now, and what the user can do about the request.
func (u *unfinished) set(key, format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.hints == nil {
		u.hints = map[string]string{}
	}
	if _, known := u.hints[key]; !known {
		u.keys = append(u.keys, key)
	}
	u.hints[key] = fmt.Sprintf(format, args...)
}

// done removes the hint of a request.
func (u *unfinished) done(key string) { u.set(key, "") }

// text returns all hints, to append to a message.
func (u *unfinished) text() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all strings.Builder
	for _, key := range u.keys {
		if hint := u.hints[key]; hint != "" {
			all.WriteString("; " + hint)
		}
	}
	return all.String()
}

// appendTo appends the hints to an error.
func (u *unfinished) appendTo(err error) error {
	text := u.text()
	if text == "" {
		return err
	}
	e := *protocol.AsError(err)
	e.Message += text
	return &e
}

// ended returns the error with which a client command ends. err is the command's own error; ctx may have ended.
func (cl *client) ended(ctx context.Context, err error) error {
	i, interrupted := interruptionOf(ctx)
	var code exitCode
	known := errors.As(err, &code)
	switch {
	case ctx.Err() == nil:
		return err
	case interrupted && i == interruption(syscall.SIGPIPE):
		if text := cl.unfinished.text(); text != "" {
			return exitCode{i.exitCode(), cl.unfinished.appendTo(protocol.Errorf(protocol.Cancelled, "", "%v", i))}
		}
		return exitCode{i.exitCode(), nil}
	case err == nil:
		return nil
	case known && code.cause == nil:
		return err
	case known:
		return exitCode{code.code, cl.unfinished.appendTo(cl.withCause(ctx, code.cause))}
	case interrupted:
		return exitCode{i.exitCode(), cl.unfinished.appendTo(cl.withCause(ctx, err))}
	}
	return cl.unfinished.appendTo(cl.withCause(ctx, err))
}

// withCause replaces an error that says only that the client's context has ended. The new error names the signal or the
// deadline that ended the context.
func (cl *client) withCause(ctx context.Context, err error) error {
	e := *protocol.AsError(err)
	if i, interrupted := interruptionOf(ctx); interrupted && e.Code == protocol.Cancelled &&
		strings.Contains(e.Message, context.Canceled.Error()) {
		e.Message = i.Error()
		return &e
	}
	if doing, only := strings.CutSuffix(e.Message, ": "+context.DeadlineExceeded.Error()); only && overdue(ctx) {
		e.Message = fmt.Sprintf("%s: not done within --deadline %s", doing, cl.config.Deadline)
		return &e
	}
	return err
}

// ignoreInterrupt returns nil if an interruption ended a command with --follow, because such a command usually ends by
// an interruption.
func ignoreInterrupt(ctx context.Context, follow bool, err error) error {
	if follow && ctx.Err() != nil && !overdue(ctx) {
		return nil
	}
	return err
}
