package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

func (srv *servers) coordinatorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "coordinator --nats URL", Short: "Run a coordinator; a fleet may have several", Args: takes(),
		Example: "  boxfleet coordinator --nats nats://n1:4222,nats://n2:4222,nats://n3:4222 --replicas 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := srv.config.forCoordinator()
			if err != nil {
				return err
			}
			cfg.OnReady = func() {
				srv.say("ready: coordinator %s", cfg.Name)
				notify(daemon.SdNotifyReady)
			}
			return srv.role(cmd, "coordinator", cfg.Name, func(ctx context.Context, conn *jetstream.Conn, own *part) error {
				cfg.Conn, cfg.OnState, cfg.OnTurn = conn, own.say, own.turn
				return coordinator.Run(ctx, cfg)
			})
		},
	}
	srv.config.addFlags(cmd.Flags(), "coordinator")
	return cmd
}

// forCoordinator returns the configuration of a coordinator, without its connection.
func (c *config) forCoordinator() (coordinator.Config, error) {
	k := c.Coordinator
	if k.Name == "" {
		k.Name = machineName() + "-" + strings.ToLower(rand.Text()[:6])
	}
	defaults, err := readDefaults(k.Defaults)
	if err != nil {
		return coordinator.Config{}, err
	}
	quotas := quotasReader(k.Quotas)
	if quotas != nil {
		if _, err := quotas(); err != nil { // check the file before connecting, because connecting may take long
			return coordinator.Config{}, err
		}
	}
	keys, err := readSecretsKeys(k.SecretsKey)
	if err != nil {
		return coordinator.Config{}, err
	}
	return coordinator.Config{
		SecretsKeys: keys,
		Name:        k.Name, Build: version, CleanupTTL: k.CleanupTTL, HostForgetAfter: k.ForgetAfter, Defaults: defaults,
		ReadQuotas: quotas, MaxActiveExecs: k.MaxActiveExecs, UploadMaxBytes: k.UploadMaxBytes,
		Histories: coordinator.Histories{Keep: k.HistoryKeep, MinBatches: k.HistoryBatches, MinBytes: k.HistoryBytes,
			MaxAge: k.HistoryMaxAge},
		Output: coordinator.OutputBudget{Sandbox: k.OutputSandboxBytes, Tenant: k.OutputTenantBytes},
		Assets: c.assets(),
	}, nil
}

// readSecretsKeys reads the fleet's keys for secrets. There are none if no file is configured or the file is empty.
func readSecretsKeys(file string) (seal.Keys, error) {
	if file == "" {
		return nil, nil
	}
	const field = "coordinator.secrets_key"
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, protocol.Invalid(field, "%v", err)
	}
	defer clear(content)
	if len(bytes.TrimSpace(content)) == 0 { // the unit of systemd gives an empty file if there are no keys
		return nil, nil
	}
	keys, err := seal.ParseKeys(field, content)
	if err != nil {
		return nil, protocol.Invalid(field, "%s: %s; boxfleet auth secrets-key writes a file with the fleet's keys", file,
			protocol.AsError(err).Message)
	}
	return keys, nil
}

// assets returns the storage settings. If a setting is not set, the stream keeps its current value.
func (c *config) assets() jetstream.Assets {
	k := c.Coordinator
	return jetstream.Assets{Replicas: k.Replicas, LogMaxAge: k.LogMaxAge, LogMaxBytes: int64(k.LogMaxBytes),
		EventMaxBytes: int64(k.EventMaxBytes),
		BlobMaxAge:    k.BlobMaxAge, BlobMaxBytes: int64(k.BlobMaxBytes), ImageMaxBytes: int64(k.ImageMaxBytes),
		TableMaxBytes: int64(k.TableMaxBytes), SegmentMaxBytes: int64(k.SegmentMaxBytes),
		Requests: int64(k.Requests)}
}
