package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// controlsAtOnce is how many sandboxes a command stops, resumes or deletes at a time.
const controlsAtOnce = 8

// controlAll stops, resumes or deletes sandboxes in parallel and prints their ids in the given order. A failure does
// not stop the others. It prints every error except the last, which it returns.
func (p *program) controlAll(ctx context.Context, c *sdk.Client, verb string, ids []string, wait bool,
	do func(*sdk.Sandbox, context.Context, ...sdk.ChangeOption) error) error {
	ids = distinct(ids)
	done := p.progress(verb + " " + strings.Join(ids, " "))
	defer done()
	boxes, failures := make([]*sdk.Sandbox, len(ids)), make([]error, len(ids))
	var group errgroup.Group
	group.SetLimit(controlsAtOnce)
	for i, id := range ids {
		boxes[i] = c.Sandbox(id)
		p.unfinished.set("sandbox "+id, "the %s of %s continues if it was accepted: `boxfleet sandbox get %s` shows it", verb,
			id, id)
		group.Go(func() error {
			if failures[i] = do(boxes[i], ctx, sdk.WithWait(wait)); failures[i] == nil {
				p.unfinished.done("sandbox " + id)
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in failures
	done()
	var last error
	for i, id := range ids {
		if err := failures[i]; err != nil {
			if len(ids) > 1 {
				e := *protocol.AsError(err)
				e.Message = "sandbox " + id + ": " + e.Message
				err = &e
			}
			if last != nil {
				p.complain(last)
			}
			last = err
			continue
		}
		if err := p.show(boxes[i].Info(), func(w io.Writer) { fmt.Fprintln(w, id) }); err != nil {
			return err
		}
	}
	return last
}

// distinct returns texts without duplicates, in the same order.
func distinct(texts []string) []string {
	each := []string{}
	for _, text := range texts {
		if !slices.Contains(each, text) {
			each = append(each, text)
		}
	}
	return each
}
