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

func (cmds execsCommands) listCommand() *cobra.Command {
	var states []string
	var quiet bool
	cmd := &cobra.Command{
		Use: "list SANDBOX", Aliases: []string{"ls", "ps"}, Short: "List the execs of a sandbox", Args: takes("SANDBOX"),
		ValidArgsFunction: cmds.completeSandbox,
		Example:           "  boxfleet execs list web --state running",
		RunE: func(cmd *cobra.Command, args []string) error {
			selected, err := statesOf(states, execStates)
			if err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				found := []protocol.Exec{}
				for x, err := range c.Sandbox(args[0]).Execs(ctx, sdk.WithExecStates(selected...), sdk.WithPageSize(1000)) {
					if err != nil {
						return err
					}
					found = append(found, x.Info())
				}
				if quiet {
					return cmds.showNames(execIDs(found))
				}
				return cmds.show(found, func(w io.Writer) { printExecs(w, c.Now(ctx), found) })
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only execs in this `state`; may be repeated")
	addQuiet(cmd, &quiet)
	completeValues(cmd, "state", namesOf(execStates)...)
	return cmd
}

var execStates = []protocol.ExecState{protocol.ExecStateAccepted, protocol.ExecStateRunning, protocol.ExecStateFinished,
	protocol.ExecStateFailed, protocol.ExecStateCancelled, protocol.ExecStateTimedOut}

func execIDs(execs []protocol.Exec) []string {
	ids := []string{}
	for i := range execs {
		ids = append(ids, execs[i].ID)
	}
	return ids
}

// commandWidth is the maximum width of a command in a list.
const commandWidth = 60

func printExecs(w io.Writer, now time.Time, execs []protocol.Exec) {
	rows := [][]any{{"EXEC", "STATE", "EXIT", "AGE", "TOOK", "COMMAND"}}
	for i := range execs {
		x := &execs[i]
		exit, took := "-", "-"
		if x.ExitCode != nil {
			exit = fmt.Sprint(*x.ExitCode)
		}
		if !x.EndedAt.IsZero() && !x.StartedAt.IsZero() {
			took = x.EndedAt.Sub(x.StartedAt).Round(time.Millisecond).String()
		}
		rows = append(rows, []any{x.ID, stateColour(string(x.State)), exit, ago(now, x.AcceptedAt), took,
			cut(fmt.Sprintf("%q", x.Spec.Command), commandWidth)})
	}
	table(w, rows...)
}
