package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
)

// storageCommand changes how things are kept, as an operator asks: a starting coordinator never does
// that by itself.
func (p *program) storageCommand() *cobra.Command {
	return group("storage", "Change how the deployment keeps things", p.storageGrowCommand(), p.storageSetCommand())
}

func (p *program) storageGrowCommand() *cobra.Command {
	var replicas int
	cmd := &cobra.Command{
		Use: "grow", Short: "Replicate every stream to more servers, or restore lost replicas", Args: takes(),
		Long: `Have every stream kept by so many servers of a NATS cluster, and wait until all have everything. The
fleet goes on meanwhile; output comes a little later. It may be ended and run again at any time. Replicas are
never taken away.`,
		Example: "  boxfleet storage grow --nats nats://n1:4222,nats://n2:4222,nats://n3:4222 --replicas 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.operate(cmd, func(ctx context.Context, conn *jetstream.Conn) error {
				err := conn.Grow(ctx, replicas, func(step string) { fmt.Fprintln(p.plain(p.stderr), step) })
				if err == nil {
					p.say("every stream has %d replicas, in sync", replicas)
				}
				return err
			})
		},
	}
	cmd.Flags().IntVar(&replicas, "replicas", 3, "`copies` of each stream, 3 or 5")
	return cmd
}

func (p *program) storageSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set", Short: "Change how long and how much is kept; lower values remove what is over them", Args: takes(),
		Long: `Change how long and how much is kept. A coordinator raises these by itself where its configuration says so,
and refuses to lower them; this command lowers them too. Lower ages and sizes of output and uploads remove
what is beyond; the event log takes no size below what it has. Set what is changed here in the coordinators'
configuration too, or leave it out there.`,
		Example: "  boxfleet storage set --log-max-age 72h --event-max-bytes 16GiB",
		RunE: func(cmd *cobra.Command, _ []string) error {
			assets := p.config.assets()
			assets.Replicas = 0
			if assets == (jetstream.Assets{}) {
				return usage("nothing to change: give at least one flag")
			}
			return p.operate(cmd, func(ctx context.Context, conn *jetstream.Conn) error {
				if err := conn.Open(ctx); err != nil {
					return err
				}
				if err := conn.Change(ctx, assets); err != nil {
					return err
				}
				p.say("changed")
				return nil
			})
		},
	}
	p.config.addFlags(cmd.Flags(), "set")
	return cmd
}

// operate calls f with a connection to NATS itself: it needs no coordinator.
func (p *program) operate(cmd *cobra.Command, f func(context.Context, *jetstream.Conn) error) error {
	cfg, err := p.connectionOf(cmd, "storage")
	if err != nil {
		return err
	}
	cfg.Wait = false
	conn, err := jetstream.Connect(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(cmd.Context(), conn)
}
