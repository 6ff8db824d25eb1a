package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// controlsAtOnce is how many sandboxes a command stops, resumes or deletes at a time.
const controlsAtOnce = 8

// controlAll stops, resumes or deletes sandboxes in parallel. If one sandbox fails, it continues with the others. It
// prints each sandbox once, in the order of the arguments, by the first argument that names the sandbox. It prints
// every error except the last one, which it returns.
func (cmds sandboxCommands) controlAll(ctx context.Context, c *sdk.Client, verb string, ids []string, wait bool,
	do func(*sdk.Sandbox, context.Context, ...sdk.ChangeOption) error) error {
	ids = distinct(ids)
	done := cmds.progress(verb + " " + strings.Join(ids, " "))
	defer done()
	boxes, failures := make([]*sdk.Sandbox, len(ids)), make([]error, len(ids))
	var group errgroup.Group
	group.SetLimit(controlsAtOnce)
	for i, id := range ids {
		boxes[i] = c.Sandbox(id)
		cmds.unfinished.set("sandbox "+id,
			"the %s of %s continues if it was accepted: `boxfleet sandbox get %s` shows it", verb, id, id)
		group.Go(func() error {
			if failures[i] = do(boxes[i], ctx, sdk.WithWait(wait)); failures[i] == nil {
				cmds.unfinished.done("sandbox " + id)
			}
			return nil
		})
	}
	_ = group.Wait() // the goroutines store their errors in failures
	done()
	var last error
	printed := map[string]bool{} // ids of printed sandboxes: the arguments may contain a sandbox's name and its id
	for i, id := range ids {
		if err := failures[i]; err != nil {
			if len(ids) > 1 {
				e := *protocol.AsError(err)
				e.Message = "sandbox " + id + ": " + e.Message
				err = &e
			}
			if last != nil {
				cmds.complain(last)
			}
			last = err
			continue
		}
		if printed[boxes[i].ID()] {
			continue
		}
		printed[boxes[i].ID()] = true
		if err := cmds.show(boxes[i].Info(), func(w io.Writer) { fmt.Fprintln(w, id) }); err != nil {
			return err
		}
	}
	return last
}

func (cmds sandboxCommands) controlCommand(verb, short string, do func(*sdk.Sandbox, context.Context,
	...sdk.ChangeOption) error) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: verb + " SANDBOX...", Short: short, Args: takesSome("SANDBOX"), ValidArgsFunction: cmds.completeSandboxes,
		Example: "  boxfleet sandbox " + verb + " web\n  boxfleet sandbox " + verb + " web db",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return cmds.controlAll(ctx, c, verb, args, wait, do)
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the change is done, not just accepted")
	return cmd
}
