package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds sandboxCommands) extendCommand() *cobra.Command {
	return &cobra.Command{
		Use: "extend SANDBOX DURATION", Short: "Set when a sandbox is deleted: this long from now, instead of its ttl",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := counts(cmd, args, "SANDBOX", "DURATION"); err != nil {
				return err
			}
			return protocol.ValidateID("SANDBOX", args[0])
		},
		ValidArgsFunction: cmds.completeSandbox, Example: "  boxfleet sandbox extend web 2h",
		RunE: func(cmd *cobra.Command, args []string) error {
			ttl, err := time.ParseDuration(args[1])
			if err != nil {
				return usage("DURATION: must be %s, got %.40q", kinds["duration"], args[1])
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				s := c.Sandbox(args[0])
				if err := s.Extend(ctx, ttl); err != nil {
					return err
				}
				return cmds.show(s.Info(), func(w io.Writer) { fmt.Fprintln(w, args[0]) })
			})
		},
	}
}
