package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
)

// deleteCommand returns a command that deletes sandboxes. The first parameter is the command line of the parent
// command.
func (cmds sandboxCommands) deleteCommand(below, name string, aliases ...string) *cobra.Command {
	var wait bool
	var labels []string
	cmd := &cobra.Command{
		Use: name + " SANDBOX... | --label K=V", Aliases: aliases,
		Short:             "Delete sandboxes: end their execs and remove everything except their history",
		ValidArgsFunction: cmds.completeSandboxes,
		Example:           "  " + below + " " + name + " web db\n  " + below + " " + name + " --label team=build",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(labels) > 0 {
				return takes()(cmd, args)
			}
			return takesSome("SANDBOX")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var selector map[string]string
			if err := addPairs("--label", &selector, labels); err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if len(args) > 0 {
					return cmds.controlAll(ctx, c, "delete", args, wait, (*sdk.Sandbox).Delete)
				}
				done := cmds.progress("deleting sandboxes")
				defer done()
				deleted, err := c.DeleteByLabels(ctx, selector, sdk.WithWait(wait))
				done()
				ids := make([]string, len(deleted))
				for i, s := range deleted {
					ids[i] = s.ID()
				}
				slices.Sort(ids)
				showErr := cmds.show(ids, func(w io.Writer) {
					for _, id := range ids {
						fmt.Fprintln(w, id)
					}
				})
				if err == nil {
					err = showErr
				}
				return err
			})
		},
	}
	cmd.Flags().StringArrayVar(&labels, "label", nil,
		"delete every sandbox with the label `K=V`; may be repeated, all must match")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the sandboxes are deleted, not just until the delete is accepted")
	return cmd
}
