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

const (
	pingWithin = 10 * time.Second       // bounds one try
	pingPause  = 100 * time.Millisecond // between tries
)

func (p *program) pingCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "ping", Short: "Ask who is there, and what the deployment promises", Args: takes(),
		Long: `Ask who is there, and what the deployment promises. With --wait it asks again while nobody is there,
for a fleet that has just been started.`,
		Example: "  boxfleet ping\n  boxfleet ping -o json\n  boxfleet up & boxfleet ping --wait 1m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.config.Deadline > 0 {
				wait = min(wait, p.config.Deadline)
			}
			for until := time.Now().Add(wait); ; {
				err := p.client(cmd, p.ping)
				if !isAway(err) || !time.Now().Add(pingPause).Before(until) {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return err
				case <-time.After(pingPause):
				}
			}
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "ask again for so `long` while nobody answers (default: ask once)")
	return cmd
}

// isAway says whether an error may be over once somebody is there.
func isAway(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.Unavailable || code == protocol.DeadlineExceeded
}

func (p *program) ping(ctx context.Context, c *sdk.Client) error {
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
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
