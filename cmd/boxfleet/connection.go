package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// connection holds the address and the credentials with which clients on this machine reach a running `boxfleet up`.
type connection struct {
	URL   string `json:"url"`
	Token string `json:"token,omitempty"`
	Creds string `json:"creds,omitempty"` // path of a credentials file

	// settings of the client; `up` never writes them
	NKey  string          `json:"-"`
	Login jetstream.Login `json:"-"` // without the token in Token
}

const connectionFile = "connection.json"

// connect connects to the configured NATS servers, or else to the NATS server of the `boxfleet up` on this machine.
func (cl *client) connect(ctx context.Context) (*sdk.Client, error) {
	where, err := cl.config.whereNATS()
	if err != nil {
		return nil, err
	}
	if cl.looksForUp() {
		if err := where.lost(); err != nil {
			return nil, err
		}
	}
	tenant := ""
	if cl.config.TenantGiven {
		tenant = cl.config.Tenant
	}
	c, err := sdk.Connect(ctx, sdk.Options{URL: where.URL, Token: where.Token, TokenFile: where.Login.TokenFile,
		Creds: where.Creds, NKey: where.NKey, Login: where.Login.User, Password: where.Login.Password,
		PasswordFile: where.Login.PasswordFile, TLS: cl.config.TLS,
		Tenant: tenant, User: cl.config.NATSUser, Name: "boxfleet-cli", IDPrefixes: true})
	if e := protocol.AsError(err); err != nil && e.Field == "user" {
		named := *e
		named.Field = "nats_user" // the user knows the setting, not the field of Options
		return nil, &named
	}
	switch code := protocol.CodeOf(err); {
	case cl.config.NATS != "" || err == nil:
	case code == protocol.Unavailable:
		e := *protocol.AsError(err)
		e.Message += "; start a fleet with `boxfleet up`, or give the URL of NATS with --nats"
		return nil, &e
	case code == protocol.PermissionDenied && cl.looksForUp():
		return nil, notOurs(listenerOf(cmp.Or(where.URL, sdk.DefaultURL)))
	}
	return c, err
}

// looksForUp reports whether the client uses the `up` on this machine, because neither a URL nor credentials are
// configured.
func (cl *client) looksForUp() bool {
	return cl.config.NATS == "" && !cl.config.hasLogin()
}

// hasLogin reports whether credentials of any kind are configured.
func (c *config) hasLogin() bool {
	return c.Creds+c.NKey+c.Token+c.TokenFile+c.Login+c.Password+c.PasswordFile != ""
}

// whereNATS returns the URL, the token and the credentials of the configured NATS servers or, if none are configured,
// of the NATS server that `boxfleet up` runs on this machine.
func (c *config) whereNATS() (connection, error) {
	where := connection{URL: c.NATS, Token: c.Token, Creds: c.Creds, NKey: c.NKey, Login: jetstream.Login{
		User: c.Login, Password: c.Password, PasswordFile: c.PasswordFile, TokenFile: c.TokenFile}}
	if where.URL != "" || c.DataDir == "" {
		return where, nil
	}
	data, err := os.ReadFile(c.connectionFile())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return where, nil
	case errors.Is(err, fs.ErrPermission):
		return where, notOurs(ownerOf(c.connectionFile()))
	}
	var found connection
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err != nil {
		return where, protocol.Errorf(protocol.Internal, "", "read %s: %v", c.connectionFile(), err)
	}
	if c.hasLogin() {
		where.URL = found.URL
		return where, nil
	}
	return found, nil
}

func (c *config) connectionFile() string { return filepath.Join(c.DataDir, connectionFile) }

// login reads the configuration of a command again and returns the credentials for NATS.
func (srv *servers) login(cmd *cobra.Command) (jetstream.Login, error) {
	now := config{file: srv.config.file}
	if err := now.read(cmd); err != nil {
		return jetstream.Login{}, err
	}
	where, err := now.whereNATS()
	if err != nil {
		return jetstream.Login{}, err
	}
	where.Login.Token = where.Token
	_, login, _ := jetstream.SplitLogin(where.URL)
	switch {
	case login == jetstream.Login{}:
		return where.Login, nil
	case where.Login != jetstream.Login{}:
		return login, protocol.Invalid("nats", "contains a login, which must not be set together with login or token")
	}
	return login, nil
}

// loginFrom names the sources from which credentials are read again. Operators who rotate credentials need to know
// these sources.
func (c *config) loginFrom() string {
	file := c.file
	if file == "" {
		file = usualFile()
	}
	var from []string
	if file != "" {
		from = append(from, "configuration file "+file)
	}
	for _, f := range []struct{ key, file string }{
		{"creds", c.Creds}, {"nkey", c.NKey}, {"password_file", c.PasswordFile}, {"token_file", c.TokenFile},
		{"tls.ca", c.TLS.CA}, {"tls.cert", c.TLS.Cert}, {"tls.key", c.TLS.Key},
	} {
		overridden := f.key == "token_file" && c.Token != "" || f.key == "password_file" && c.Password != ""
		if f.file != "" && !overridden {
			from = append(from, f.key+" "+f.file)
		}
	}
	if c.NATS == "" && c.DataDir != "" {
		from = append(from, c.connectionFile())
	}
	return strings.Join(from, ", ") + "; flags and environment variables are fixed until a restart"
}

// lost returns an error if the credentials that `up` leaves for clients of this machine are missing.
func (c connection) lost() error {
	if c.Creds == "" {
		return nil
	}
	if _, err := os.Stat(c.Creds); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return protocol.Errorf(protocol.FailedPrecondition, "", "the credentials of this user, %s, are missing: restart "+
		"`boxfleet up`, which makes them again", c.Creds)
}

// write stores the connection in the file that clients read. Only this user can read the file.
func (c connection) write(dir string) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return writePrivate(filepath.Join(dir, connectionFile), data)
}

// writePrivate writes a file atomically. Only this user can read the file.
func writePrivate(file string, data []byte) error {
	temporary := file + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, file)
}
