package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds hostCommands) forgetCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "forget NAME", Short: "Give up a lost host and everything on it", Args: oneHost,
		ValidArgsFunction: cmds.completeHost,
		Long: `Give up a lost host that will not come back, and everything on it, for all tenants. Sandboxes that were
being deleted become deleted; those with on_host_loss replace are created again elsewhere; all others, including
stopped ones, fail with reason host_forgotten. Only a host whose lock is free can be forgotten. If the host comes
back after all, it removes its leftovers before it takes work. The command asks; without a terminal it needs --yes.`,
		Example: "  boxfleet host forget w1\n  boxfleet host forget w1 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return cmds.forget(ctx, c, args[0], yes)
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func (cmds hostCommands) forget(ctx context.Context, c *sdk.Client, name string, yes bool) error {
	h, err := c.Hosts().Get(ctx, name)
	if err != nil {
		return err
	}
	if h.State != protocol.HostLost { // the fleet will refuse to forget this host, so do not ask the user
		return c.Hosts().Forget(ctx, name)
	}
	fmt.Fprintf(cmds.plain(cmds.stderr), "the host %s of worker %s is lost and was last seen %s ago; on it %s\n",
		h.HostID, h.Worker, ago(c.Now(ctx), h.SeenAt), onHost(h))
	if !yes {
		if err := cmds.confirm("forget the host and give up everything on it?"); err != nil {
			return err
		}
	}
	done := cmds.progress("forgetting " + name)
	defer done()
	cmds.unfinished.set("forget", "the fleet continues to forget %s: `boxfleet host list` shows it until that is done",
		name)
	if err := c.Hosts().Forget(ctx, name); err != nil {
		return err
	}
	cmds.unfinished.done("forget")
	done()
	return cmds.showResult(name, "forgotten")
}

// onHost describes the sandboxes of a host.
func onHost(h *protocol.Host) string {
	if len(h.Holds) == 0 {
		return "is no sandbox"
	}
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(h.Holds)) {
		parts = append(parts, fmt.Sprintf("%d %s", h.Holds[state], state))
	}
	return fmt.Sprintf("are sandboxes: %s, with %d active execs", strings.Join(parts, ", "), h.Execs)
}
