package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
)

func (p *program) logsCommand(name string) *cobra.Command {
	var service string
	var follow bool
	cmd := &cobra.Command{
		Use: "logs SANDBOX", Short: "Print what the own command of a sandbox printed, or a service of it", Args: takes("SANDBOX"), ValidArgsFunction: p.completeSandbox,
		Long: `Print what the own command of a sandbox printed, or with --service what that service printed, over all of
its restarts: its stdout on stdout, its stderr on stderr. With -o json each chunk is a line with stream,
offset and data in base64. The output of an exec is printed by boxfleet exec logs.`,
		Example: "  " + name + " web --follow\n  " + name + " web --service db",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				box := c.Sandbox(args[0])
				chunks := box.Logs(ctx, follow)
				if cmd.Flags().Changed("service") {
					chunks = box.ServiceLogs(ctx, service, follow)
				}
				for k, err := range chunks {
					if err != nil {
						return ignoreInterrupt(ctx, follow, err)
					}
					if err := p.printChunk(k); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "`name` of the service (default: the sandbox's own command)")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with what comes, until the sandbox has failed or is deleted")
	return cmd
}
