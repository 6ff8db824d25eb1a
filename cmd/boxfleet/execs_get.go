package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds execsCommands) getCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "get SANDBOX EXEC",
		Short:             "Show an exec",
		Args:              takes("SANDBOX", "EXEC"),
		ValidArgsFunction: cmds.completeExec(),
		Example:           "  boxfleet execs get web build",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				x, err := c.Sandbox(args[0]).GetExec(ctx, args[1])
				if err != nil {
					return err
				}
				info := x.Info()
				return cmds.show(info, func(w io.Writer) { printExec(w, &info) })
			})
		},
	}
}

func printExec(w io.Writer, x *protocol.Exec) {
	rows := [][]any{{"id", x.ID}, {"state", stateColour(string(x.State))}, {"command", fmt.Sprintf("%q", x.Spec.Command)},
		{"accepted", stamp(x.AcceptedAt)}}
	if x.Spec.Service != "" {
		rows = append(rows, []any{"service", x.Spec.Service})
	}
	if !x.StartedAt.IsZero() {
		rows = append(rows, []any{"started", stamp(x.StartedAt)})
	}
	if !x.EndedAt.IsZero() {
		rows = append(rows, []any{"ended", stamp(x.EndedAt)})
	}
	if x.ExitCode != nil {
		rows = append(rows, []any{"exit code", *x.ExitCode})
	}
	rows = append(rows, []any{"output", fmt.Sprintf("%d bytes of stdout, %d of stderr", x.StdoutBytes, x.StderrBytes)})
	if x.StdoutSHA256 != "" {
		rows = append(rows, []any{"stdout sha256", x.StdoutSHA256})
	}
	if x.StderrSHA256 != "" {
		rows = append(rows, []any{"stderr sha256", x.StderrSHA256})
	}
	if x.Truncated {
		rows = append(rows, []any{"", "truncated at the output limit"})
	}
	if x.OutputError != nil {
		rows = append(rows, []any{"", "output is incomplete: " + x.OutputError.Message})
	}
	if x.OOMKills > 0 {
		rows = append(rows,
			[]any{"", fmt.Sprintf("the kernel killed %d processes of the sandbox because it was out of memory",
				x.OOMKills)})
	}
	for i := range x.Signals {
		rows = append(rows, []any{"signal", signalRow(&x.Signals[i])})
	}
	if x.Reason != "" {
		rows = append(rows, []any{"reason", x.Reason})
	}
	if x.Error != nil {
		rows = append(rows, []any{"error", x.Error})
	}
	table(w, rows...)
}
