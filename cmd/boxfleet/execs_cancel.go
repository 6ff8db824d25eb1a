package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds execsCommands) cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cancel SANDBOX EXEC", Short: "Cancel an exec and end its whole process tree",
		Args: takes("SANDBOX", "EXEC"), Example: "  boxfleet execs cancel web build",
		ValidArgsFunction: cmds.completeExec(protocol.ExecStateAccepted, protocol.ExecStateRunning),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return cmds.cancel(ctx, c.Sandbox(args[0]).ExecByID(args[1]))
			})
		},
	}
}

func (cmds execsCommands) cancel(ctx context.Context, x *sdk.Exec) error {
	if err := x.Cancel(ctx); err != nil {
		return err
	}
	if err := x.Refresh(ctx); err != nil {
		return err
	}
	return cmds.show(x.Info(), func(w io.Writer) { fmt.Fprintln(w, x.ID()) })
}
