package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (p *program) pingCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ping", Short: "Ask who is there, and what the deployment promises", Args: takes(),
		Example: "  boxfleet ping\n  boxfleet ping -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				started := time.Now()
				ping, err := c.Ping(ctx)
				if err != nil {
					return err
				}
				took := time.Since(started).Round(10 * time.Microsecond)
				return p.show(ping, func(w io.Writer) {
					table(w, []any{"answered by", ping.Coordinator + " " + ping.Version}, []any{"in", took}, []any{"deployment", ping.Deployment},
						[]any{"hosts", ping.Hosts}, []any{"durability", ping.Durability})
				})
			})
		},
	}
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: takes(),
		Example: "  boxfleet version",
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Wire    int    `json:"wire"`
				Go      string `json:"go"`
			}{version, protocol.Version, runtime.Version()}
			return p.show(v, func(w io.Writer) { fmt.Fprintf(w, "boxfleet %s, wire version %d, %s\n", v.Version, v.Wire, v.Go) })
		},
	}
}
