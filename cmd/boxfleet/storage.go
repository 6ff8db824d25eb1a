package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
)

// storageCommands are the commands of `boxfleet storage`, which change how the deployment stores data. Only an operator
// can make these changes: a starting coordinator never replicates streams or lowers limits by itself.
type storageCommands struct{ *servers }

func (cmds storageCommands) group() *cobra.Command {
	return group("storage", "Change how the deployment stores data", cmds.growCommand(), cmds.setCommand())
}

// operate calls f with a direct connection to NATS. It needs no coordinator.
func (cmds storageCommands) operate(cmd *cobra.Command, f func(context.Context, *jetstream.Conn) error) error {
	cfg, err := cmds.connectionOf(cmd, "storage")
	if err != nil {
		return err
	}
	cfg.Wait, cfg.User = false, cmds.config.NATSUser
	conn, err := jetstream.Connect(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(cmd.Context(), conn)
}
