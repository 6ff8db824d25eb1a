package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds hostCommands) cordonCommand(verb, result, short, long string,
	do func(*sdk.Hosts, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Long: long, Args: oneHost, ValidArgsFunction: cmds.completeHost,
		Example: "  boxfleet host " + verb + " w1",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := do(c.Hosts(), ctx, args[0]); err != nil {
					return err
				}
				return cmds.showResult(args[0], result)
			})
		},
	}
}
