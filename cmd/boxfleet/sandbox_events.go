package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds sandboxCommands) eventsCommand() *cobra.Command {
	var from uint64
	var follow bool
	cmd := &cobra.Command{
		Use: "events SANDBOX", Short: "Print the numbered history of a sandbox", Args: takes("SANDBOX"),
		ValidArgsFunction: cmds.completeSandbox,
		Example:           "  boxfleet sandbox events web\n  boxfleet sandbox events web --from 12 --follow -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				for e, err := range c.Sandbox(args[0]).Events(ctx, sdk.WithFrom(from), sdk.WithFollow(follow)) {
					if err != nil {
						return ignoreInterrupt(ctx, follow, err)
					}
					if err := cmds.show(e, func(w io.Writer) { printEvent(w, &e) }); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().Uint64Var(&from, "from", 1, "sequence number of the first event")
	cmd.Flags().BoolVar(&follow, "follow", false, "keep printing new events until the sandbox is deleted")
	return cmd
}

func printEvent(w io.Writer, e *protocol.Event) {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if d := e.Exec; d != nil {
		note("%s", d.ID)
		if d.Spec != nil {
			note("%q", d.Spec.Command)
		}
		if d.ExitCode != nil {
			note("exit code %d", *d.ExitCode)
		}
		if n := d.StdoutBytes + d.StderrBytes; n > 0 {
			note("%d bytes of output", n)
		}
	}
	if d := e.Primary; d != nil {
		if d.Restarts > 0 {
			note("restart %d", d.Restarts)
		}
		if d.ExitCode != nil {
			note("exit code %d", *d.ExitCode)
		}
	}
	if d := e.Service; d != nil {
		note("%s", d.Name)
		if d.Hook > 0 {
			note("hook %d", d.Hook)
		}
		if d.ExitCode != nil {
			note("exit code %d", *d.ExitCode)
		}
	}
	if d := e.Details; d != nil {
		if d.Phase != "" {
			note("%s", d.Phase)
		}
		if d.Spec != nil && e.Kind == protocol.SandboxAccepted {
			note("%s", d.Spec.Image)
		}
		if d.Worker != "" {
			note("to %s", d.Worker)
		}
		if d.Spec != nil && e.Kind == protocol.SandboxAssigned {
			note("with its defaults")
		}
		if d.Subnet != "" {
			note("%s, %s", d.Isolation, d.Subnet)
		}
	}
	if e.Actor != "" {
		note("by %s", e.Actor)
	}
	if e.Reason != "" {
		note("%s", e.Reason)
	}
	if e.Error != nil {
		note("%s", e.Error.Error())
	}
	fmt.Fprintf(w, "%4d  %s  %-8s  %-26s  %s\n", e.Sequence, stamp(e.Time), e.State, e.Kind, strings.Join(notes, "  "))
}
