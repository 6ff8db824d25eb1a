package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds execsCommands) inputCommand() *cobra.Command {
	return &cobra.Command{
		Use: "input SANDBOX EXEC", Short: "Continue the stdin of a running exec",
		Long: `Pass stdin to a running exec that was started with boxfleet exec -i, without --detach. It begins after the
bytes that the exec has taken before. If an earlier client still writes, it ends and says that another client has taken
over. The end of stdin is passed on; Ctrl-C is not the end of stdin, so another client can continue.`,
		Args: takes("SANDBOX", "EXEC"), Example: "  cat more | boxfleet execs input web import",
		ValidArgsFunction: cmds.completeExec(protocol.ExecStateAccepted, protocol.ExecStateRunning),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return c.Sandbox(args[0]).ExecByID(args[1]).CopyStdin(ctx, cmds.stdin)
			})
		},
	}
}
