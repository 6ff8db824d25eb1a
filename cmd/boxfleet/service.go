package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (p *program) sandboxLogs() *cobra.Command {
	var service string
	var follow bool
	cmd := &cobra.Command{
		Use: "logs SANDBOX --service NAME", Short: "Print what a service of a sandbox printed itself", Args: takes("SANDBOX"), ValidArgsFunction: p.completeSandbox,
		Long:    "Print what a service of a sandbox printed itself, over all of its restarts: its stdout on stdout, its\nstderr on stderr. With -o json each chunk is a line with stream, offset and data in base64.",
		Example: "  boxfleet sandbox logs web --service db --follow",
		RunE: func(cmd *cobra.Command, args []string) error {
			if service == "" {
				return usage("--service: name the service; the output of an exec is printed by boxfleet exec logs")
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				for k, err := range c.Sandbox(args[0]).ServiceLogs(ctx, service, follow) {
					if err != nil {
						return ignoreInterrupt(cmd.Context(), follow, err)
					}
					if err := p.printChunk(k); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "`name` of the service")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with what comes, until the sandbox is deleted")
	return cmd
}

// serviceRows are the rows about the services of a sandbox.
func serviceRows(s *protocol.Sandbox) [][]any {
	names, required := s.Spec.Services()
	slices.Sort(names)
	var rows [][]any
	for _, name := range names {
		v, _ := s.Spec.Service(name)
		status := s.Services[name]
		text := fmt.Sprintf("%s, %s, of %s", name, status.State, v.Image)
		if required[name] {
			text += ", required"
		}
		if v.Profile == protocol.ProfileHardened {
			text += ", hardened"
		}
		if status.Reason != "" {
			text += ", " + status.Reason
		}
		rows = append(rows, []any{"service", text})
	}
	return rows
}
