package main

import (
	"context"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// servers holds what the server commands of one invocation share.
type servers struct {
	*console
	config *config
}

// role runs a coordinator or a worker; kind says which. It waits while the configured NATS servers are unreachable, and
// reads the credentials again for every connection attempt.
func (srv *servers) role(cmd *cobra.Command, kind, name string, run func(ctx context.Context, conn *jetstream.Conn,
	own *part) error) error {
	cfg, err := srv.connectionOf(cmd, kind)
	if err != nil {
		return err
	}
	if err := protocol.ValidateID("name", name); err != nil {
		return err
	}
	if cfg.Creds != srv.config.Creds {
		return usage("--creds is missing: make credentials with boxfleet auth add %s", kind)
	}
	if err := checkRole(&cfg, kind, name); err != nil {
		return err
	}
	cfg.User = "@" + name // the @ marks a name that belongs to no tenant
	h := &health{}
	link, own := h.part("NATS"), h.part(kind)
	stop, err := srv.serveHealth(cmd.Context(), h)
	if err != nil {
		return err
	}
	defer stop()
	link.say(false, "unreachable, waiting for it")
	own.say(false, "waiting for NATS")
	defer notifyHealth(cmd.Context(), h)()
	ctx, end := context.WithCancel(cmd.Context())
	defer end()
	conn, err := jetstream.Connect(ctx, cfg)
	if ctx.Err() != nil && err != nil {
		return nil // the role was stopped while it waited
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
	err = run(ctx, conn, own)
	if err == nil && cmd.Context().Err() == nil {
		return protocol.Errorf(protocol.Unavailable, "",
			"the connection to NATS was closed and will not be opened again; restart this %s", kind)
	}
	return err
}

// checkRole refuses credentials of another role, or for another name.
func checkRole(cfg *jetstream.Config, kind, name string) error {
	if cfg.Creds == "" {
		return nil
	}
	id, ok, err := jetstream.CredentialsIdentity(cfg.Creds)
	switch {
	case err != nil || !ok:
		return err
	case string(id.Role) != kind:
		return protocol.Invalid("creds", "%s has credentials for the role %s, not %s: make others with boxfleet auth add "+
			"%s %s", cfg.Creds, id.Role, kind, kind, name)
	case id.Name != name:
		return protocol.Invalid("name", "is %s, but the credentials in %s are for %s: run under that name, or make "+
			"credentials with boxfleet auth add %s %s", name, cfg.Creds, id.Name, kind, name)
	}
	return nil
}

// connectionOf returns how a role connects to NATS.
func (srv *servers) connectionOf(cmd *cobra.Command, name string) (jetstream.Config, error) {
	where, err := srv.config.whereNATS()
	if err != nil {
		return jetstream.Config{}, err
	}
	if where.URL == "" {
		return jetstream.Config{}, usage("--nats is missing: the URL of the NATS server")
	}
	cfg := jetstream.Config{URL: where.URL, Token: where.Token, Creds: where.Creds, NKey: where.NKey,
		TLS: srv.config.TLS, Name: "boxfleet-" + name, Wait: true, LoginFrom: srv.config.loginFrom()}
	// The login is read again at each attempt to connect, unless the URLs contain different logins.
	if without, _, same := jetstream.SplitLogin(where.URL); same {
		cfg.URL, cfg.Login = without, func() (jetstream.Login, error) { return srv.login(cmd) }
	}
	return cfg, nil
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
