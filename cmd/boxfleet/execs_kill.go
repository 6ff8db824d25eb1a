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

func (cmds execsCommands) killCommand() *cobra.Command {
	var signal, request string
	var tree bool
	cmd := &cobra.Command{
		Use: "kill SANDBOX EXEC", Short: "Cancel an exec, or send it a signal with --signal",
		Args: takes("SANDBOX", "EXEC"),
		Long: `Without --signal, kill does what boxfleet execs cancel does: it ends the exec and its whole process tree.
With --signal, it sends one signal to the exec's main process, or to all of its processes with --tree, and waits until
the worker says whether the signal was delivered. The exec continues unless the signal ends it. The history of the
sandbox records who sent which signal, and the outcome.`,
		Example: "  boxfleet execs kill web build\n  boxfleet execs kill web build --signal INT\n" +
			"  boxfleet execs kill web build --signal USR1 --tree",
		ValidArgsFunction: cmds.completeExec(protocol.ExecStateAccepted, protocol.ExecStateRunning),
		RunE: func(cmd *cobra.Command, args []string) error {
			signals := cmd.Flags().Changed("signal")
			if signals {
				if _, err := protocol.ParseSignal("--signal", signal); err != nil {
					return err
				}
			}
			for _, flag := range []string{"tree", "request-id"} {
				if cmd.Flags().Changed(flag) && !signals {
					return protocol.Invalid("--"+flag, "needs --signal: without a signal, the whole process tree is ended")
				}
			}
			opts := []sdk.SignalOption{}
			if tree {
				opts = append(opts, sdk.WithTree())
			}
			if cmd.Flags().Changed("request-id") {
				opts = append(opts, sdk.WithRequestID(request))
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				x := c.Sandbox(args[0]).ExecByID(args[1])
				if !signals {
					return cmds.cancel(ctx, x)
				}
				sent, err := x.Signal(ctx, signal, opts...)
				if err != nil {
					return err
				}
				return cmds.show(sent, func(w io.Writer) { printSignal(w, sent) })
			})
		},
	}
	cmd.Flags().StringVar(&signal, "signal", "", "send this `signal`, a name or a number such as INT, SIGINT or 2")
	cmd.Flags().BoolVar(&tree, "tree", false, "send the signal to all processes of the exec, not only to its main process")
	cmd.Flags().StringVar(&request, "request-id", "", "`ID` of the request; repeating an ID asks for the outcome again")
	completeValues(cmd, "signal", "HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "KILL", "STOP", "CONT")
	return cmd
}

func printSignal(w io.Writer, g *sdk.ExecSignal) {
	to := "the main process"
	if g.Tree {
		to = fmt.Sprintf("%d of its processes", g.Processes)
	}
	fmt.Fprintf(w, "%s was delivered to %s\n", protocol.SignalName(g.Number), to)
	if g.Error != nil {
		fmt.Fprintf(w, "but not to all: %s\n", g.Error.Message)
	}
}

// signalRow describes a signal in the table of an exec.
func signalRow(g *protocol.ExecSignal) string {
	text := protocol.SignalName(g.Number)
	if g.Tree {
		text += " to all processes"
	}
	if g.Actor != "" {
		text += " by " + g.Actor
	}
	switch g.Outcome {
	case protocol.SignalPending:
		text += ": no outcome yet"
	case protocol.SignalDelivered:
		text += ": delivered"
	case protocol.SignalNotDelivered:
		text += ": not delivered"
	default:
		text += ": nobody knows whether it was delivered"
	}
	return text + " (" + g.RequestedAt.UTC().Format(time.RFC3339) + ")"
}
