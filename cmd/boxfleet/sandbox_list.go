package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// listCommand returns a command that lists sandboxes. The first parameter is the command line of the parent command.
func (cmds sandboxCommands) listCommand(below, name string, aliases ...string) *cobra.Command {
	var labels, states []string
	var called string
	var quiet bool
	line := below + " " + name
	cmd := &cobra.Command{
		Use: name, Aliases: aliases, Short: "List sandboxes", Args: takes(),
		Example: "  " + line + " --label team=build\n  " + line + " --state deleted -o json\n  boxfleet sandbox delete " +
			"$(" + line + " -q --label team=build)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := []sdk.ListOption{sdk.WithPageSize(1000)}
			if cmd.Flags().Changed("name") {
				if err := protocol.ValidateName("--name", called); err != nil {
					return err
				}
				opts = append(opts, sdk.WithName(called))
			}
			var selector map[string]string
			if err := addPairs("--label", &selector, labels); err != nil {
				return err
			}
			selected, err := statesOf(states, sandboxStates)
			if err != nil {
				return err
			}
			opts = append(opts, sdk.WithLabels(selector), sdk.WithStates(selected...))
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error { return cmds.list(ctx, c, opts, quiet) })
		},
	}
	cmd.Flags().StringArrayVar(&labels, "label", nil,
		"only sandboxes with the label `K=V`; may be repeated, all must match")
	cmd.Flags().StringVar(&called, "name", "",
		"only sandboxes with this `name`: the one that has it now, and failed or deleted ones that had it before")
	cmd.Flags().StringSliceVar(&states, "state", nil,
		"only sandboxes in this `state`; may be repeated (default: all except deleted)")
	addQuiet(cmd, &quiet)
	completeValues(cmd, "state", namesOf(sandboxStates)...)
	return cmd
}

var sandboxStates = []protocol.SandboxState{protocol.StatePending, protocol.StateReady, protocol.StateStopped,
	protocol.StateFailed, protocol.StateDeleting, protocol.StateDeleted}

func (cmds sandboxCommands) list(ctx context.Context, c *sdk.Client, opts []sdk.ListOption, quiet bool) error {
	found := []protocol.Sandbox{}
	for s, err := range c.List(ctx, opts...) {
		if err != nil {
			return err
		}
		found = append(found, s.Info())
	}
	if quiet {
		ids := []string{}
		for i := range found {
			ids = append(ids, found[i].ID)
		}
		return cmds.showNames(ids)
	}
	return cmds.show(found, func(w io.Writer) {
		now := c.Now(ctx)
		rows := [][]any{{"SANDBOX", "NAME", "STATE", "IMAGE", "WORKER", "EXECS", "AGE"}}
		for i := range found {
			s := &found[i]
			rows = append(rows, []any{s.ID, s.Name, stateColour(stateOf(s)), s.Spec.Image, s.Worker,
				fmt.Sprintf("%d/%d", s.ActiveExecs, s.TotalExecs), ago(now, s.CreatedAt)})
		}
		table(w, rows...)
	})
}
