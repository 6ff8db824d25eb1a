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
	explainAfter = 2 * time.Second // a create that takes longer says what it waits for
	explainAgain = 2 * time.Second
	mostReasons  = 3 // hosts whose reasons are said
)

// creating shows that a sandbox is created, and what it waits for, until done is called.
func (p *program) creating(ctx context.Context, c *sdk.Client, id string, wait bool) (done func()) {
	const what = "creating the sandbox"
	tell, shown := p.progressing(what)
	explained := func() {}
	if wait {
		explained = p.explainWait(ctx, c, id, func(why string) { tell(what + ": " + why) })
	}
	return func() { explained(); shown() }
}

// explainWait tells a terminal what a sandbox waits for that is not there in a moment, as long as done is not
// called. Elsewhere it says once, on stderr, that no host takes the sandbox, and why.
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
			case err != nil || x.Sandbox.State != protocol.StatePending: // it may not be accepted yet
			case p.watched():
				tell(reasons(x))
			case x.Position > 0:
				p.note("sandbox %s waits: %s", id, reasons(x))
				return
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// reasons says in one line what a sandbox waits for.
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
