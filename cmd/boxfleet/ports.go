package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// portCommands are the commands that show on which ports a sandbox has servers.
type portCommands struct{ *client }

// shownPort is a port of the answer of `boxfleet ports`.
type shownPort struct {
	Port      int      `json:"port"`
	Addresses []string `json:"addresses"`
}

func (cmds portCommands) portsCommand() *cobra.Command {
	var service string
	var follow bool
	cmd := &cobra.Command{
		Use: "ports SANDBOX", Short: "Show on which TCP ports of a sandbox a server listens",
		Args: takes("SANDBOX"), ValidArgsFunction: cmds.completeSandbox,
		Long: `Show on which TCP ports of a sandbox a server listens, and on which of its addresses. The ports need not be
published: boxfleet forward reaches them.

With --follow, print one line for each port that gets or loses a server, until you end it; the sandbox's worker looks
once a second. A line "watching" follows the ports that have a server already.`,
		Example: "  boxfleet ports web\n  boxfleet ports web --follow\n  boxfleet ports web --service db -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if service != "" {
				if err := protocol.ValidateID("--service", service); err != nil {
					return err
				}
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				box := c.Sandbox(args[0])
				if follow {
					return cmds.followPorts(ctx, box, service)
				}
				return cmds.listPorts(ctx, box, service)
			})
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "`name` of the service whose ports to show")
	cmd.Flags().BoolVar(&follow, "follow", false, "print changes as they happen")
	return cmd
}

func (cmds portCommands) followPorts(ctx context.Context, box *sdk.Sandbox, service string) error {
	for e, err := range box.WatchPorts(ctx, sdk.WithService(service)) {
		if err != nil {
			return ignoreInterrupt(ctx, true, err)
		}
		err := cmds.show(e, func(w io.Writer) {
			line := string(e.Kind)
			if e.Port != 0 {
				line += " " + strconv.Itoa(e.Port)
			}
			if len(e.Addresses) > 0 {
				line += " " + strings.Join(e.Addresses, ",")
			}
			fmt.Fprintln(w, plainLine(line))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (cmds portCommands) listPorts(ctx context.Context, box *sdk.Sandbox, service string) error {
	ports := []shownPort{}
	for e, err := range box.WatchPorts(ctx, sdk.WithService(service)) {
		if err != nil {
			return err
		}
		if e.Kind == protocol.PortWatching {
			break
		}
		ports = append(ports, shownPort{e.Port, e.Addresses})
	}
	return cmds.show(ports, func(w io.Writer) {
		rows := [][]any{{"PORT", "ADDRESSES"}}
		for _, p := range ports {
			rows = append(rows, []any{p.Port, strings.Join(p.Addresses, ",")})
		}
		table(w, rows...)
	})
}
