package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

func (srv *servers) upCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "up", Short: "Run a complete fleet on this machine", Args: takes(),
		Long: `Run a complete fleet on this machine: NATS with JetStream, one coordinator, and one worker on the local
Docker engine. It stores its state in the data directory and continues from it after a restart. Commands of the same
user connect to it without further settings: the user has the rights of an operator. boxfleet auth makes credentials
for others. Ctrl-C ends up; sandboxes and execs keep running.`,
		Example: "  boxfleet up\n  boxfleet up --listen 127.0.0.1:4333 --mounts-allow /srv/cache,/srv/shared:rw",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if srv.config.DataDir == "" {
				return usage("no data directory: set HOME, XDG_DATA_HOME, or --data-dir")
			}
			dir, err := filepath.Abs(srv.config.DataDir)
			if err != nil {
				return err
			}
			srv.config.DataDir = dir
			return srv.up(cmd, dir)
		},
	}
	srv.config.addFlags(cmd.Flags(), "up")
	completeValues(cmd, "firewall", firewallRequired, protocol.FirewallOff)
	return cmd
}

// up runs the fleet until the command's context ends.
func (srv *servers) up(cmd *cobra.Command, dir string) error {
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	if srv.config.TLS != (jetstream.TLS{}) {
		slog.Warn("up ignores the settings tls.*, because its NATS has no TLS; clients with such settings cannot connect",
			"do", "remove the settings, or run a NATS server with TLS, a coordinator and a worker")
	}
	host, port, err := listenAt(srv.config.Listen, !srv.config.ListenGiven, srv.config.ListenInsecurely)
	if err != nil {
		return err
	}
	h := &health{}
	stop, err := srv.serveHealth(cmd.Context(), h)
	if err != nil {
		return err
	}
	defer stop()
	done := srv.progress("starting")
	defer done()
	// Write the connection file as soon as NATS listens. A client that cannot read the credentials named in the file
	// would conclude that this NATS server belongs to another user.
	listens := func(where connection) error {
		if err := where.write(dir); err != nil {
			return protocol.Errorf(protocol.Internal, "", "write %s: %v", connectionFile, err)
		}
		return nil
	}
	defer os.Remove(filepath.Join(dir, connectionFile))
	fleet, err := srv.startLocal(cmd.Context(), dir, embedded.Config{Name: "boxfleet", Host: host, Port: port}, listens,
		false, h)
	done()
	if err != nil {
		if cmd.Context().Err() != nil && errors.Is(err, cmd.Context().Err()) {
			return nil
		}
		return err
	}
	srv.say("ready: %s, data in %s", fleet.server.ClientURL(), dir)
	if found := hostfiles.FoundTools(home(), os.Getenv("SSH_AUTH_SOCK")); len(found) > 0 &&
		len(srv.config.Worker.Tools) == 0 {
		fmt.Fprintf(srv.plain(srv.stderr),
			"this machine has tools that sandboxes could use; to offer them, or some of them, run `boxfleet up --tools %s`\n",
			strings.Join(found, ","))
	}
	select {
	case <-cmd.Context().Done():
		defer srv.progress("ending")()
		return fleet.end()
	case <-fleet.ended:
		return errors.Join(protocol.Errorf(protocol.Internal, "", "part of the fleet ended: %v", fleet.err), fleet.end())
	}
}
