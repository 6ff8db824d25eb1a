package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// ownDeadline is an annotation. It marks a command with a --deadline flag that is not the client timeout.
const ownDeadline = "own-deadline"

func (cmds hostCommands) drainCommand() *cobra.Command {
	var deadline time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Stop placing work on a host and empty it", Args: oneHost,
		ValidArgsFunction: cmds.completeHost,
		Annotations:       map[string]string{ownDeadline: "true"},
		Long: `Stop placing work on a host and empty it. A sandbox with on_host_loss replace is created again on another host,
once it has no active execs and a host can take it. The drain waits for all other sandboxes. After --deadline,
everything that still runs is ended with reason drained: a sandbox with on_host_loss replace is created again
elsewhere, one with fail fails, and one with wait is stopped. Stopped and failed sandboxes stay where they are.

The drain continues if this command is interrupted; run it again to wait for the drain. "boxfleet host uncordon"
ends the drain.`,
		Example: "  boxfleet host drain w1\n  boxfleet host drain w1 --deadline 10m",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return cmds.drain(ctx, c, args[0], deadline, wait)
			})
		},
	}
	cmd.Flags().DurationVar(&deadline, "deadline", 0,
		"end everything that still runs on the host after this time (default: wait until it ends by itself)")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until nothing runs on the host")
	return cmd
}

func (cmds hostCommands) drain(
	ctx context.Context, c *sdk.Client, name string, deadline time.Duration, wait bool,
) error {
	if err := c.Hosts().Drain(ctx, name, deadline); err != nil {
		return err
	}
	if !wait {
		return cmds.showResult(name, "draining")
	}
	cmds.unfinished.set("drain",
		"the drain of %s continues: `boxfleet host list` shows its progress, `boxfleet host uncordon %s` ends it", name, name)
	tell, done := cmds.progressing("draining " + name)
	defer done()
	err := c.Hosts().WaitDrained(ctx, name, func(h *protocol.Host) {
		left := fmt.Sprintf("draining %s: %d sandboxes and %d execs left", name, h.Sandboxes, h.Execs)
		if h.State != protocol.HostReady {
			left += fmt.Sprintf("; the host is %s", h.State)
		}
		if tell(left); !cmds.watched() && !cmds.json() {
			cmds.note("%s", left)
		}
	})
	done()
	if err != nil {
		return err
	}
	cmds.unfinished.done("drain")
	return cmds.showResult(name, "drained")
}
