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
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
)

// What ends a client's command before it is done: a signal, a reader of its output that is gone, or its
// deadline. Each ends its context, with the reason as the cause. What the command asked of the fleet may
// go on; then its error says so, and what to do about it.

// leaveWithin bounds how long a client goes on after a signal that asks for its end, whatever the fleet
// does: 2 s, less what the end of a process takes. Ctrl-C has no bound: a second one ends the client.
const leaveWithin = 1700 * time.Millisecond

// interruption says what ended a client's context, if not its deadline: a signal, or PIPE when nobody
// reads the client's output any more.
type interruption syscall.Signal

func (i interruption) Error() string {
	if i == interruption(syscall.SIGPIPE) {
		return "nobody reads the output any more"
	}
	if i == interruption(syscall.SIGINT) {
		return "interrupted"
	}
	return syscall.Signal(i).String()
}

// exitCode is the one by which a shell shows the signal.
func (i interruption) exitCode() int { return 128 + int(i) }

// heed makes signals and a broken pipe end a client's command. HUP is ignored if the caller ignores it,
// as nohup does.
func (p *program) heed(cmd *cobra.Command) {
	if topOf(cmd).GroupID != groupClient {
		return
	}
	parent := cmd.Context()
	if p.process { // its signals tell which it was; what main makes of them does not
		parent = context.WithoutCancel(parent)
	}
	ctx, end := context.WithCancelCause(parent)
	cmd.SetContext(ctx)
	p.end = end
	p.stdout = p.guarded(p.stdout)
	if !p.process {
		return
	}
	signal.Ignore(syscall.SIGPIPE) // the write fails instead
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	go p.heedSignals(signals)
}

// topOf is the command below the root that a command belongs to.
func topOf(cmd *cobra.Command) *cobra.Command {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return cmd
}

// heedSignals ends the context with the first signal, and the process with the second, or when the first
// leaves it no more time.
func (p *program) heedSignals(signals <-chan os.Signal) {
	last := interruption((<-signals).(syscall.Signal))
	p.end(last)
	var over <-chan time.Time
	if last != interruption(syscall.SIGINT) {
		over = time.After(leaveWithin)
	} else if !p.connecting.Load() { // it may be reading stdin
		over = time.After(0)
	}
	select {
	case second := <-signals:
		last = interruption(second.(syscall.Signal))
	case <-over:
	}
	p.complain(p.unfinished(protocol.Errorf(protocol.Cancelled, "", "%v", last)))
	os.Exit(last.exitCode())
}

// guarded is w. When nobody reads the pipe behind it any more, it ends the client's context and drops
// what is written. Any other failure, such as a full disk, is kept: most of what writes does not look.
func (p *program) guarded(w io.Writer) io.Writer { return &pipe{w, p} }

type pipe struct {
	io.Writer
	p *program
}

func (g *pipe) Write(data []byte) (int, error) {
	if g.p.unread.Load() {
		return len(data), nil
	}
	n, err := g.Writer.Write(data)
	if errors.Is(err, syscall.EPIPE) && g.p.end != nil {
		g.p.unread.Store(true)
		g.p.end(interruption(syscall.SIGPIPE))
		return len(data), nil
	}
	if err != nil {
		g.p.unwritten.Store(true)
	}
	return n, err
}

// interruptionOf says what interruption ended the context of a client, if one did.
func interruptionOf(ctx context.Context) (interruption, bool) {
	var i interruption
	ok := errors.As(context.Cause(ctx), &i)
	return i, ok
}

// overdue says whether it was the client's deadline that ended its context.
func overdue(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// inHand is what a client has asked for and not seen the end of: for each thing, what to say about it.
type inHand struct {
	mu    sync.Mutex
	about []string
	says  map[string]string
}

// goesOn notes what becomes of something when the client ends now, and what its user can do about it.
func (h *inHand) goesOn(about, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.says == nil {
		h.says = map[string]string{}
	}
	if _, known := h.says[about]; !known {
		h.about = append(h.about, about)
	}
	h.says[about] = fmt.Sprintf(format, args...)
}

// done notes that there is no more to say about it.
func (h *inHand) done(about string) { h.goesOn(about, "") }

// text is everything, as the end of a message.
func (h *inHand) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all strings.Builder
	for _, about := range h.about {
		if says := h.says[about]; says != "" {
			all.WriteString("; " + says)
		}
	}
	return all.String()
}

// unfinished adds to an error what goes on.
func (p *program) unfinished(err error) error {
	text := p.inHand.text()
	if text == "" {
		return err
	}
	e := *protocol.AsError(err)
	e.Message += text
	return &e
}

// ended is the error that a client's command ends with, once its context may have ended. err is its own.
func (p *program) ended(ctx context.Context, err error) error {
	i, interrupted := interruptionOf(ctx)
	var code exitCode
	known := errors.As(err, &code)
	switch {
	case ctx.Err() == nil:
		return err
	case interrupted && i == interruption(syscall.SIGPIPE):
		if text := p.inHand.text(); text != "" {
			return exitCode{i.exitCode(), p.unfinished(protocol.Errorf(protocol.Cancelled, "", "%v", i))}
		}
		return exitCode{i.exitCode(), nil}
	case err == nil:
		return nil
	case known && code.cause == nil:
		return err
	case known:
		return exitCode{code.code, p.unfinished(p.byWhat(ctx, code.cause))}
	case interrupted:
		return exitCode{i.exitCode(), p.unfinished(p.byWhat(ctx, err))}
	}
	return p.unfinished(p.byWhat(ctx, err))
}

// byWhat is err, but where it only says that the client's context ended, what ended that.
func (p *program) byWhat(ctx context.Context, err error) error {
	e := *protocol.AsError(err)
	if i, interrupted := interruptionOf(ctx); interrupted && e.Code == protocol.Cancelled &&
		strings.Contains(e.Message, context.Canceled.Error()) {
		e.Message = i.Error()
		return &e
	}
	if doing, only := strings.CutSuffix(e.Message, ": "+context.DeadlineExceeded.Error()); only && overdue(ctx) {
		e.Message = fmt.Sprintf("%s: it is not done within --deadline %s", doing, p.config.Deadline)
		return &e
	}
	return err
}
