package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds sandboxCommands) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain SANDBOX", Short: "Explain what a sandbox is waiting for and why each host rejects it",
		Args: takes("SANDBOX"), ValidArgsFunction: cmds.completeSandbox,
		Example: "  boxfleet sandbox explain web",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				x, err := c.Sandbox(args[0]).Explain(ctx)
				if err != nil {
					return err
				}
				return cmds.show(x, func(w io.Writer) { printExplanation(w, x) })
			})
		},
	}
}

func printExplanation(w io.Writer, x *protocol.Explanation) {
	why, idle := strings.CutPrefix(x.Waiting, "nothing")
	if idle {
		fmt.Fprintf(w, "%s is %s; it is waiting for nothing%s\n", x.Sandbox.ID, stateOf(x.Sandbox), why)
	} else {
		fmt.Fprintf(w, "%s is %s: %s\n", x.Sandbox.ID, stateOf(x.Sandbox), x.Waiting)
	}
	if !x.Since.IsZero() {
		fmt.Fprintf(w, "since %s", stamp(x.Since))
		if !x.Deadline.IsZero() {
			fmt.Fprintf(w, ", until %s", stamp(x.Deadline))
		}
		fmt.Fprintln(w)
	}
	if x.Position > 0 {
		fmt.Fprintf(w, "number %d in the queue\n", x.Position)
	}
	for _, h := range x.Hosts {
		reason := h.Reason
		if reason == "" {
			reason = "can take it"
		}
		fmt.Fprintf(w, "  %s: %s\n", h.Worker, reason)
	}
}
