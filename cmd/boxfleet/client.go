package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
)

// client holds what the client commands of one invocation share. Each group of commands embeds it.
type client struct {
	*console
	*interrupts
	config *config
}

// withFleet connects to the fleet and calls f. The context of f ends at the client's deadline.
func (cl *client) withFleet(cmd *cobra.Command, f func(ctx context.Context, c *sdk.Client) error) error {
	cl.connecting.Store(true)
	ctx := cmd.Context()
	if cl.config.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cl.config.Deadline)
		defer cancel()
	}
	c, err := cl.connect(ctx)
	if err != nil {
		return cl.ended(ctx, err)
	}
	defer c.Close()
	return cl.ended(ctx, f(ctx, c))
}
