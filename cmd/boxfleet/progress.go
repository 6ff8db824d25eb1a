package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// progress shows a progress line until done is called. If stderr is not a terminal, it prints nothing.
func (con *console) progress(what string) (done func()) {
	_, done = con.progressing(what)
	return done
}

// progressing does the same as progress. Calling tell changes the text of the line.
func (con *console) progressing(what string) (tell func(what string), done func()) {
	if !con.watched() {
		return func(string) {}, func() {}
	}
	var text atomic.Value
	text.Store(what)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		started, tick := time.Now(), time.NewTicker(120*time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				fmt.Fprint(con.stderr, "\r\x1b[K")
				return
			case <-tick.C:
				spinner := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10]
				line := fmt.Sprintf("%c %s (%.0fs)", spinner, plainLine(text.Load().(string)), time.Since(started).Seconds())
				fmt.Fprintf(con.stderr, "\r\x1b[K%s", cut(line, con.width()-1))
			}
		}
	})
	var once sync.Once
	return func(what string) { text.Store(what) }, func() { once.Do(func() { close(stop); wg.Wait() }) }
}

// width returns the width of the terminal on stderr. A longer progress line would wrap and fill the screen.
func (con *console) width() int {
	if f, ok := con.stderr.(interface{ Fd() uintptr }); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// watched reports whether stderr is a terminal.
func (con *console) watched() bool { return isTerminal(con.stderr) }

// bar draws a progress bar.
func bar(done, total int64) string {
	const width = 24
	full := int(width * done / max(total, 1))
	return fmt.Sprintf("[%s%s] %d%% of %s", strings.Repeat("█", full), strings.Repeat("░", width-full),
		100*done/max(total, 1), protocol.Bytes(total))
}

const (
	explainAfter = 2 * time.Second // after this time a create explains what it waits for
	explainAgain = 2 * time.Second
	mostReasons  = 3 // a message shows the reasons of at most this many hosts
)

// creating shows the progress of a create until done is called. If wait is true, it also shows why the sandbox is
// pending.
func (cl *client) creating(ctx context.Context, c *sdk.Client, id string, wait bool) (done func()) {
	const what = "creating the sandbox"
	tell, shown := cl.progressing(what)
	explained := func() {}
	if wait {
		explained = cl.explainWait(ctx, c, id, func(why string) { tell(what + ": " + why) })
	}
	return func() { explained(); shown() }
}

// explainWait explains, until done is called, why a sandbox is pending. On a terminal it calls tell repeatedly.
// Otherwise it prints one note to stderr if no host can take the sandbox.
func (cl *client) explainWait(ctx context.Context, c *sdk.Client, id string, tell func(why string)) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for pause := explainAfter; ; pause = explainAgain {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			x, err := c.Sandbox(id).Explain(ctx)
			switch {
			case err != nil || x.Sandbox.State != protocol.StatePending: // the create may not be accepted yet
			case cl.watched():
				tell(reasons(x))
			case x.Position > 0:
				cl.note("sandbox %s is waiting: %s", id, reasons(x))
				return
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// reasons describes on one line what a sandbox waits for.
func reasons(x *protocol.Explanation) string {
	text, said, left := x.Waiting, 0, 0
	for _, h := range x.Hosts {
		switch {
		case h.Reason == "":
		case said == mostReasons:
			left++
		default:
			text += "; " + h.Worker + ": " + h.Reason
			said++
		}
	}
	if left > 0 {
		text += fmt.Sprintf("; and %d more", left)
	}
	return strings.ReplaceAll(text, "\n", " ")
}
