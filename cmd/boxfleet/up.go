package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker"
)

func (p *program) upCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "up", Short: "Run a whole fleet on this machine", Args: takes(),
		Long: `Run a whole fleet on this machine: NATS with JetStream, one coordinator, and one worker on the local
Docker engine. What it keeps is in the data directory, and is found again on the next start. The
client's commands find it by themselves. Ctrl-C ends it; sandboxes and execs go on without it.`,
		Example: "  boxfleet up\n  boxfleet up --listen 127.0.0.1:4333 --mounts-allow /srv/cache,/srv/shared:rw",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := filepath.Abs(p.config.DataDir)
			if err != nil {
				return err
			}
			p.config.DataDir = dir
			return p.up(cmd, dir)
		},
	}
	p.config.addFlags(cmd.Flags(), "up")
	return cmd
}

func (p *program) up(cmd *cobra.Command, dir string) error {
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	token, err := keptToken(dir)
	if err != nil {
		return err
	}
	host, port, err := listenAt(p.config.Listen, p.config.Listen == defaultListen)
	if err != nil {
		return err
	}
	h := &health{}
	stop, err := p.serveHealth(h)
	if err != nil {
		return err
	}
	defer stop()
	done := p.progress("starting")
	defer done()
	fleet, err := p.startLocal(cmd.Context(), embedded.Config{Dir: filepath.Join(dir, "nats"), Name: "boxfleet", Host: host, Port: port, Token: token}, false, h)
	done()
	if err != nil {
		if cmd.Context().Err() != nil && errors.Is(err, cmd.Context().Err()) {
			return nil
		}
		return err
	}
	if err := fleet.connection().write(dir); err != nil {
		return errors.Join(protocol.Errorf(protocol.Internal, "", "write %s: %v", connectionFile, err), fleet.end())
	}
	defer os.Remove(filepath.Join(dir, connectionFile))
	p.say("ready: %s, data in %s", fleet.server.ClientURL(), dir)
	if found := worker.FoundTools(home(), os.Getenv("SSH_AUTH_SOCK")); len(found) > 0 && len(p.config.Worker.Tools) == 0 {
		fmt.Fprintf(p.stderr, "tools here, which sandboxes get with --tools, or a part of it: %s\n", strings.Join(found, ","))
	}
	select {
	case <-cmd.Context().Done():
		defer p.progress("ending")()
		return fleet.end()
	case <-fleet.ended:
		return errors.Join(protocol.Errorf(protocol.Internal, "", "a part of the fleet ended: %v", fleet.err), fleet.end())
	}
}
