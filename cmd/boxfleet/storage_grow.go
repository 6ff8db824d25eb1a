package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
)

func (cmds storageCommands) growCommand() *cobra.Command {
	var replicas int
	cmd := &cobra.Command{
		Use: "grow", Short: "Replicate every stream to more servers or restore lost replicas", Args: takes(),
		Long: `Replicate every stream to the given number of servers of a NATS cluster, and wait until all replicas are
in sync. The fleet keeps working; output arrives a little later. The command can be interrupted and run again at any
time. It never removes replicas.`,
		Example: "  boxfleet storage grow --nats nats://n1:4222,nats://n2:4222,nats://n3:4222 --replicas 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmds.operate(cmd, func(ctx context.Context, conn *jetstream.Conn) error {
				err := conn.Grow(ctx, replicas, func(step string) { fmt.Fprintln(cmds.plain(cmds.stderr), step) })
				if err == nil {
					cmds.say("every stream has %d replicas, in sync", replicas)
				}
				return err
			})
		},
	}
	cmd.Flags().IntVar(&replicas, "replicas", 3, "number of `replicas` of each stream, 3 or 5")
	return cmd
}
