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
		Use: "coordinator --nats URL", Short: "Run a coordinator; a fleet may have several", Args: takes(),
		Example: "  boxfleet coordinator --nats nats://n1:4222,nats://n2:4222,nats://n3:4222 --replicas 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := p.coordinator()
			if err != nil {
				return err
			}
			cfg.OnReady = func() { p.say("ready: coordinator %s", cfg.Name) }
			return p.role(cmd, "coordinator", func(ctx context.Context, conn *jetstream.Conn, say func(bool, string)) error {
				cfg.Conn, cfg.OnState = conn, say
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
		Long: "Run the worker of a Docker host. Sandboxes and execs keep running when it ends; the next worker " +
			"adopts them.",
		Example: "  boxfleet worker --nats nats://n1:4222 --mounts-allow /srv/cache --labels zone=a",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := p.worker()
			if err != nil {
				return err
			}
			cfg.OnReady = func() { p.say("ready: worker %s", cfg.Name) }
			if err := cfg.Check(); err != nil {
				return err
			}
			return p.role(cmd, "worker", func(ctx context.Context, conn *jetstream.Conn, say func(bool, string)) error {
				cfg.Conn, cfg.OnState = conn, say
				return worker.Run(ctx, cfg)
			})
		},
	}
	p.config.addFlags(cmd.Flags(), "worker")
	completeValues(cmd, "firewall", firewallRequired, protocol.FirewallOff)
	return cmd
}

// role runs one role against the configured NATS. It waits for NATS if that is unreachable, and re-reads the
// credentials for every connection attempt.
func (p *program) role(cmd *cobra.Command, name string, run func(ctx context.Context, conn *jetstream.Conn,
	say func(well bool, text string)) error) error {
	cfg, err := p.connectionOf(cmd, name)
	if err != nil {
		return err
	}
	h := &health{}
	natsSays, roleSays := h.part("NATS"), h.part(name)
	stop, err := p.serveHealth(h)
	if err != nil {
		return err
	}
	defer stop()
	natsSays(false, "unreachable, waiting for it")
	roleSays(false, "waiting for NATS")
	ctx, end := context.WithCancel(cmd.Context())
	defer end()
	conn, err := jetstream.Connect(ctx, cfg)
	if ctx.Err() != nil && err != nil {
		return nil // told to end while waiting
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	h.connection(conn)
	go func() { // a role cannot work once its connection is closed
		select {
		case <-conn.Closed():
			end()
		case <-ctx.Done():
		}
	}()
	err = run(ctx, conn, roleSays)
	if err == nil && cmd.Context().Err() == nil {
		return protocol.Errorf(protocol.Unavailable, "",
			"the connection to NATS is closed and will not be retried; restart this %s",
			name)
	}
	return err
}

// connectionOf returns how a role connects to NATS.
func (p *program) connectionOf(cmd *cobra.Command, name string) (jetstream.Config, error) {
	where, err := p.config.whereNATS()
	if err != nil {
		return jetstream.Config{}, err
	}
	if where.URL == "" {
		return jetstream.Config{}, usage("--nats is missing: the URL of the NATS server")
	}
	cfg := jetstream.Config{URL: where.URL, Token: where.Token, Creds: p.config.Creds, Name: "boxfleet-" + name,
		Wait: true, LoginFrom: p.config.loginFrom()}
	if without, _, same := jetstream.SplitLogin(where.URL); same {
		cfg.URL, cfg.Login = without, func() (jetstream.Login, error) { return p.login(cmd) }
	} // otherwise the servers have different credentials in their URLs, which stay fixed
	return cfg, nil
}

// coordinator returns the configuration of a coordinator, without its connection.
func (p *program) coordinator() (coordinator.Config, error) {
	k := p.config.Coordinator
	if k.Name == "" {
		k.Name = machineName() + "-" + strings.ToLower(rand.Text()[:6])
	}
	defaults, err := readDefaults(k.Defaults)
	if err != nil {
		return coordinator.Config{}, err
	}
	return coordinator.Config{
		Name: k.Name, Build: version, CleanupTTL: k.CleanupTTL, HostForgetAfter: k.ForgetAfter, Defaults: defaults,
		MaxActiveExecs: k.MaxActiveExecs,
		Histories: coordinator.Histories{Keep: k.HistoryKeep, MinBatches: k.HistoryBatches, MinBytes: k.HistoryBytes,
			MaxAge: k.HistoryMaxAge},
		Output: coordinator.OutputBudget{Sandbox: k.OutputSandboxBytes, Tenant: k.OutputTenantBytes},
		Assets: p.config.assets(),
	}, nil
}

// assets returns the storage settings. Those that are not set stay unchanged in the store.
func (c *config) assets() jetstream.Assets {
	k := c.Coordinator
	return jetstream.Assets{Replicas: k.Replicas, LogMaxAge: k.LogMaxAge, LogMaxBytes: int64(k.LogMaxBytes),
		EventMaxBytes: int64(k.EventMaxBytes),
		BlobMaxAge:    k.BlobMaxAge, BlobMaxBytes: int64(k.BlobMaxBytes), ImageMaxBytes: int64(k.ImageMaxBytes),
		TableMaxBytes: int64(k.TableMaxBytes), SegmentMaxBytes: int64(k.SegmentMaxBytes),
		Requests: int64(k.Requests)}
}

// worker returns the configuration of a worker, without its connection.
func (p *program) worker() (worker.Config, error) {
	w := p.config.Worker
	if w.Name == "" {
		w.Name = machineName()
	}
	if w.StateDir == "" {
		if p.config.DataDir == "" {
			return worker.Config{}, usage("no directory for sandboxes: set HOME, XDG_DATA_HOME, --data-dir or --state-dir")
		}
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
		Name: w.Name, Defaults: defaults, Build: version, StateDir: w.StateDir, Hidden: []string{p.config.DataDir},
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

var notInID = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// machineName returns the machine's name, changed to a valid id.
func machineName() string {
	name, err := os.Hostname()
	if name = strings.Trim(notInID.ReplaceAllString(name, "-"), "-"); err != nil || name == "" {
		return "local"
	}
	return name[:min(len(name), 48)]
}
