package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
)

// storageCommand changes how the deployment stores data. Only an operator can; a starting coordinator never replicates
// streams or lowers limits by itself.
func (p *program) storageCommand() *cobra.Command {
	return group("storage", "Change how the deployment stores data", p.storageGrowCommand(), p.storageSetCommand())
}

func (p *program) storageGrowCommand() *cobra.Command {
	var replicas int
	cmd := &cobra.Command{
		Use: "grow", Short: "Replicate every stream to more servers or restore lost replicas", Args: takes(),
		Long: `Replicate every stream to the given number of servers of a NATS cluster, and wait until all replicas are
in sync. The fleet keeps working; output arrives a little later. The command can be interrupted and run again at any
time. It never removes replicas.`,
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
	cmd.Flags().IntVar(&replicas, "replicas", 3, "number of `replicas` of each stream, 3 or 5")
	return cmd
}

func (p *program) storageSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set", Short: "Change retention times and size limits; lower values delete data beyond them", Args: takes(),
		Long: `Change retention times and size limits. A coordinator raises them itself if its configuration says so, but
refuses to lower them; this command also lowers them. Lower ages and sizes of output and uploads delete the data
beyond them. The event log cannot be made smaller than its contents. Make the same change in the configuration of the
coordinators, or remove the setting there.`,
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

// operate calls f with a direct connection to NATS. It needs no coordinator.
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
