package main

import (
	"context"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds execsCommands) logsCommand() *cobra.Command {
	var follow bool
	var fromStdout, fromStderr int64
	var tail int
	cmd := &cobra.Command{
		Use: "logs SANDBOX EXEC", Short: "Print the output of a running or ended exec", Args: takes("SANDBOX", "EXEC"),
		ValidArgsFunction: cmds.completeExec(),
		Long: `Print the output of an exec: its stdout to stdout, its stderr to stderr. With -o json, each chunk is a
line with the stream, the offset and the data in base64. With --follow, boxfleet exits with the exec's exit
code, as boxfleet exec does.`,
		Example: "  boxfleet execs logs web build --follow\n  boxfleet execs logs web build --from-offset 4096",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTail(cmd, tail); err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				x, err := c.Sandbox(args[0]).GetExec(ctx, args[1])
				if err != nil {
					return err
				}
				read := func(follow bool) iter.Seq2[sdk.Chunk, error] {
					return x.Output(ctx, sdk.WithFollow(follow), sdk.WithOffset(sdk.Stdout, fromStdout),
						sdk.WithOffset(sdk.Stderr, fromStderr))
				}
				if err := cmds.printLogs(read, follow, tail, time.Time{}); err != nil {
					return ignoreInterrupt(ctx, follow, err)
				}
				if !follow {
					return nil
				}
				result, err := x.Wait(ctx, sdk.WithCollect(0))
				if result == nil {
					return ignoreInterrupt(ctx, true, err)
				}
				return exitOf(result, err)
			})
		},
	}
	cmd.Flags().BoolVar(&follow, "follow", false,
		"keep printing output until the exec ends; interrupting boxfleet does not end the exec")
	cmd.Flags().Int64Var(&fromStdout, "from-offset", 0, "start at this `byte` of stdout")
	cmd.Flags().Int64Var(&fromStderr, "from-offset-stderr", 0, "start at this `byte` of stderr")
	addTail(cmd, &tail)
	return cmd
}
