package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
)

func (cmds storageCommands) setCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set", Short: "Change retention times and size limits; lower values delete data beyond them", Args: takes(),
		Long: `Change retention times and size limits. A coordinator raises them itself if its configuration says so, but
refuses to lower them; this command also lowers them. Lower ages and sizes of output and uploads delete the data
beyond them. The event log cannot be made smaller than its contents. Make the same change in the configuration of the
coordinators, or remove the setting there.`,
		Example: "  boxfleet storage set --log-max-age 72h --event-max-bytes 16GiB",
		RunE: func(cmd *cobra.Command, _ []string) error {
			assets := cmds.config.assets()
			assets.Replicas = 0
			if assets == (jetstream.Assets{}) {
				return usage("nothing to change: give at least one flag")
			}
			return cmds.operate(cmd, func(ctx context.Context, conn *jetstream.Conn) error {
				if err := conn.Open(ctx); err != nil {
					return err
				}
				if err := conn.Change(ctx, assets); err != nil {
					return err
				}
				cmds.say("changed")
				return nil
			})
		},
	}
	cmds.config.addFlags(cmd.Flags(), "set")
	return cmd
}
