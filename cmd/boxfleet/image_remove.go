package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds imageCommands) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME[:TAG]", Aliases: []string{"rm"}, ValidArgsFunction: cmds.completeImported,
		Short: "Remove an imported image from the hosts once nothing uses it", Example: "  boxfleet image remove tools:1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("NAME is missing; see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := c.Images().Remove(ctx, args[0]); err != nil {
					return err
				}
				removed := struct {
					Ref string `json:"ref"`
				}{args[0]}
				return cmds.show(removed, func(w io.Writer) { fmt.Fprintln(w, removed.Ref) })
			})
		},
	}
}
