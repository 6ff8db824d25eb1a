package main

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker"
)

func (p *program) coordinatorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "coordinator --nats URL", Short: "Run a coordinator; several may run", Args: takes(),
		Example: "  boxfleet coordinator --nats nats://n1:4222,nats://n2:4222,nats://n3:4222 --replicas 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.role(cmd.Context(), "coordinator", func(ctx context.Context, conn *jetstream.Conn) error {
				cfg, err := p.coordinator(conn)
				if err != nil {
					return err
				}
				cfg.OnReady = func() { p.say("ready: coordinator %s", cfg.Name) }
				return coordinator.Run(ctx, cfg)
			})
		},
	}
	p.config.addFlags(cmd.Flags(), "coordinator")
	return cmd
}

func (p *program) workerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "worker --nats URL", Short: "Run the worker of a Docker host", Args: takes(),
		Long:    "Run the worker of a Docker host. Sandboxes and execs go on without it; the next one adopts them.",
		Example: "  boxfleet worker --nats nats://n1:4222 --mounts-allow /srv/cache --labels zone=a",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.role(cmd.Context(), "worker", func(ctx context.Context, conn *jetstream.Conn) error {
				cfg, err := p.worker(conn)
				if err != nil {
					return err
				}
				cfg.OnReady = func() { p.say("ready: worker %s", cfg.Name) }
				return worker.Run(ctx, cfg)
			})
		},
	}
	p.config.addFlags(cmd.Flags(), "worker")
	return cmd
}

// role runs one role against the NATS that was named. It waits for NATS where that is away.
func (p *program) role(ctx context.Context, name string, run func(context.Context, *jetstream.Conn) error) error {
	where, err := p.whereNATS()
	if err != nil {
		return err
	}
	if where.URL == "" {
		return usage("--nats is missing: where is NATS?")
	}
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: where.URL, Token: where.Token, Creds: p.config.Creds, Name: "boxfleet-" + name})
	if err != nil {
		return err
	}
	defer conn.Close()
	return run(ctx, conn)
}

// coordinator is the configuration of a coordinator.
func (p *program) coordinator(conn *jetstream.Conn) (coordinator.Config, error) {
	k := p.config.Coordinator
	if k.Name == "" {
		k.Name = machineName() + "-" + strings.ToLower(rand.Text()[:6])
	}
	defaults, err := readDefaults(k.Defaults)
	if err != nil {
		return coordinator.Config{}, err
	}
	return coordinator.Config{
		Conn: conn, Name: k.Name, Build: version, CleanupTTL: k.CleanupTTL, Defaults: defaults,
		Assets: jetstream.Assets{Replicas: k.Replicas, LogMaxAge: k.LogMaxAge, LogMaxBytes: int64(k.LogMaxBytes),
			BlobMaxAge: k.BlobMaxAge, Requests: int64(k.Requests)},
	}, nil
}

// worker is the configuration of a worker.
func (p *program) worker(conn *jetstream.Conn) (worker.Config, error) {
	w := p.config.Worker
	if w.Name == "" {
		w.Name = machineName()
	}
	if w.StateDir == "" {
		w.StateDir = filepath.Join(p.config.DataDir, "worker")
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
		Conn: conn, Name: w.Name, Defaults: defaults, Build: version, StateDir: w.StateDir, Hidden: []string{p.config.DataDir}, Engine: w.Engine, Supervisor: w.Supervisor, Slots: w.Slots, Images: w.Images,
		CPU: w.CPU, Memory: w.Memory, Labels: labels, AllowMounts: w.AllowMounts, Tools: w.Tools, ToolsHome: w.ToolsHome, SSHAgent: os.Getenv("SSH_AUTH_SOCK"), Profiles: w.Profiles, ServiceProfiles: w.ServiceProfiles, Runtimes: w.Runtimes, Watermarks: w.Watermarks, NetworkPool: w.NetworkPool,
		Firewall: w.Firewall, DenyNetworks: w.DenyNetworks, DNS: w.DNS, ReapDryRun: w.ReapDryRun, CrashWindow: w.CrashWindow, CrashGuard: w.CrashGuard,
	}, nil
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// machineName is the machine's name in the form of an id.
func machineName() string {
	name, err := os.Hostname()
	if name = strings.Trim(notInID.ReplaceAllString(name, "-"), "-"); err != nil || name == "" {
		return "local"
	}
	return name[:min(len(name), 48)]
}
