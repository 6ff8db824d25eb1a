package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker"
)

func (srv *servers) workerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "worker --nats URL", Short: "Run the worker of a Docker host", Args: takes(),
		Long: `Run the worker of a Docker host. Sandboxes and execs keep running when the worker ends; the next worker of
the host adopts them.`,
		Example: "  boxfleet worker --nats nats://n1:4222 --mounts-allow /srv/cache --labels zone=a",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := srv.config.forWorker()
			if err != nil {
				return err
			}
			cfg.OnReady = func() {
				srv.say("ready: worker %s", cfg.Name)
				notify(daemon.SdNotifyReady)
			}
			where, err := srv.config.whereNATS()
			if err != nil {
				return err
			}
			cfg.OnHost = func(_ context.Context, host string) error {
				return checkHost(where.Creds, cfg.Name, host)
			}
			if err := cfg.Check(); err != nil {
				return err
			}
			return srv.role(cmd, "worker", cfg.Name, func(ctx context.Context, conn *jetstream.Conn, own *part) error {
				cfg.Conn, cfg.OnState, cfg.OnTurn = conn, own.say, own.turn
				return worker.Run(ctx, cfg)
			})
		},
	}
	srv.config.addFlags(cmd.Flags(), "worker")
	completeValues(cmd, "firewall", firewallRequired, protocol.FirewallOff)
	cmd.AddCommand(srv.workerPurgeCommand())
	return cmd
}

// checkHost refuses a credentials file for another host than the worker's. Without this check, the server would refuse
// the lock of the host, and the worker would wait for the lock forever. A missing file is no error.
func checkHost(creds, name, host string) error {
	if creds == "" {
		return nil
	}
	id, ok, err := jetstream.CredentialsIdentity(creds)
	if err != nil || !ok || id.Host == host {
		return err
	}
	return protocol.Invalid("host", "is %s, but the credentials in %s are for the host %s: revoke them with "+
		"boxfleet auth revoke worker %s, remove the file, and make others with boxfleet auth add worker %s --host %s",
		host, creds, id.Host, name, name, host)
}

// forWorker returns the configuration of a worker, without its connection.
func (c *config) forWorker() (worker.Config, error) {
	w := c.Worker
	if w.Name == "" {
		w.Name = machineName()
	}
	if w.StateDir == "" {
		if c.DataDir == "" {
			return worker.Config{}, usage("no directory for sandboxes: set HOME, XDG_DATA_HOME, --data-dir or --state-dir")
		}
		w.StateDir = filepath.Join(c.DataDir, "worker")
	}
	if w.Supervisor == "" {
		binary, err := os.Executable()
		if err != nil {
			return worker.Config{}, protocol.Errorf(protocol.Internal, "", "find the supervisor: %v", err)
		}
		w.Supervisor = filepath.Join(filepath.Dir(binary), "boxfleet-supervisor")
	}
	if w.ToolsHome == "" {
		w.ToolsHome = home()
	}
	var labels map[string]string
	if err := addPairs("worker.labels", &labels, w.Labels); err != nil {
		return worker.Config{}, err
	}
	defaults, err := readWorkerDefaults(w.Defaults)
	if err != nil {
		return worker.Config{}, err
	}
	return worker.Config{
		Name: w.Name, Defaults: defaults, Build: version, StateDir: w.StateDir, Hidden: []string{c.DataDir},
		Engine: w.Engine, Supervisor: w.Supervisor,
		Slots: w.Slots, CPU: w.CPU, Memory: w.Memory, Labels: labels, Images: w.Images, Watermarks: w.Watermarks,
		AllowMounts: w.AllowMounts, Tools: w.Tools, ToolsHome: w.ToolsHome, SSHAgent: os.Getenv("SSH_AUTH_SOCK"),
		Profiles: w.Profiles, ServiceProfiles: w.ServiceProfiles, Runtimes: w.Runtimes,
		NetworkPool: w.NetworkPool, Firewall: w.Firewall, DenyNetworks: w.DenyNetworks, AllowNetworks: w.AllowNetworks,
		Ports: w.Ports, DNS: w.DNS,
		ReapDryRun: w.ReapDryRun, CrashWindow: w.CrashWindow, CrashGuard: w.CrashGuard,
		Connections: w.Connections, PIDs: int64(w.PIDs),
		DiskLow: w.DiskLow, DiskReserve: w.DiskReserve, OutputBurst: w.OutputBurst, OutputRate: w.OutputRate,
	}, nil
}
