package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/worker"
)

func (srv *servers) workerPurgeCommand() *cobra.Command {
	var yes bool
	var dir string
	cmd := &cobra.Command{
		Use: "purge", Short: "Remove everything that a worker left on this host", Args: takes(),
		Long: `Remove everything that the workers of this machine left on their Docker host when the host leaves the fleet for
good: the volume with the host's id, networks, firewall rules, and the workers' directory. Images stay. The command is
refused while a worker runs on this machine, and while the engine has containers of sandboxes, stopped ones too. It
says what it would remove and asks; without a terminal it needs --yes.

It uses worker.engine and worker.firewall of the configuration, and worker.state_dir without --state-dir. It does not
need NATS: forget the host with boxfleet host forget.`,
		Example: "  boxfleet worker purge\n  boxfleet worker purge --state-dir /var/lib/boxfleet/worker --yes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := srv.config.forWorker()
			if err != nil {
				return err
			}
			if dir != "" {
				cfg.StateDir = dir
			}
			found, err := worker.FindRemains(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			for _, r := range found {
				defer r.Close()
			}
			if len(found) == 0 {
				srv.say("nothing to remove: %s has no directory of a deployment", cfg.StateDir)
				return nil
			}
			what := make([]string, len(found))
			for i, r := range found {
				what[i] = r.String()
			}
			if !yes {
				if err := srv.confirm("remove " + strings.Join(what, "; ") + "?"); err != nil {
					return err
				}
			}
			for i, r := range found {
				if err := r.Remove(cmd.Context()); err != nil {
					return err
				}
				srv.say("removed %s", what[i])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "state-dir", "", "state directory of the worker (default: worker.state_dir)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}
