package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

const (
	explainAfter = 2 * time.Second // a create that takes longer explains what it waits for
	explainAgain = 2 * time.Second
	mostReasons  = 3 // maximum number of hosts whose reasons are shown
)

// creating shows the progress of a create, and what it waits for, until done is called.
func (p *program) creating(ctx context.Context, c *sdk.Client, id string, wait bool) (done func()) {
	const what = "creating the sandbox"
	tell, shown := p.progressing(what)
	explained := func() {}
	if wait {
		explained = p.explainWait(ctx, c, id, func(why string) { tell(what + ": " + why) })
	}
	return func() { explained(); shown() }
}

// explainWait explains what a pending sandbox waits for, until done is called. On a terminal it keeps calling tell.
// Elsewhere it prints one note to stderr if no host can take the sandbox.
func (p *program) explainWait(ctx context.Context, c *sdk.Client, id string, tell func(why string)) (done func()) {
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
			case p.watched():
				tell(reasons(x))
			case x.Position > 0:
				p.note("sandbox %s is waiting: %s", id, reasons(x))
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
