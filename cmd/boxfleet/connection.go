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

// connection is how clients on this machine reach a running `boxfleet up`.
type connection struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

const connectionFile = "connection.json"

// connect connects to the NATS that was named, or to the `boxfleet up` of this machine.
func (p *program) connect(ctx context.Context) (*sdk.Client, error) {
	where, err := p.config.whereNATS()
	if err != nil {
		return nil, err
	}
	c, err := sdk.Connect(ctx, sdk.Options{URL: where.URL, Token: where.Token, Creds: p.config.Creds,
		Tenant: p.config.Tenant, Name: "boxfleet-cli", IDPrefixes: true})
	switch code := protocol.CodeOf(err); {
	case p.config.NATS != "" || err == nil:
	case code == protocol.Unavailable:
		e := *protocol.AsError(err)
		e.Message += "; start one with `boxfleet up`, or name another with --nats"
		return nil, &e
	case code == protocol.PermissionDenied && p.looksForUp():
		return nil, notOurs(listenerOf(cmp.Or(where.URL, sdk.DefaultURL)))
	}
	return c, err
}

// looksForUp says whether a client was told neither a NATS nor who it is: it looks for the `up` of this machine.
func (p *program) looksForUp() bool {
	return p.config.NATS+p.config.Token+p.config.TokenFile+p.config.Creds == ""
}

// whereNATS is the NATS that was named, or the one of the `boxfleet up` of this machine.
func (c *config) whereNATS() (connection, error) {
	where := connection{URL: c.NATS, Token: c.Token}
	if where.Token == "" && c.TokenFile != "" {
		data, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return where, protocol.Invalid("token_file", "%v", err)
		}
		if where.Token = strings.TrimSpace(string(data)); where.Token == "" {
			return where, protocol.Invalid("token_file", "%s is empty", c.TokenFile)
		}
	}
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
	if where.Token != "" {
		found.Token = where.Token
	}
	return found, nil
}

func (c *config) connectionFile() string { return filepath.Join(c.DataDir, connectionFile) }

// login reads the configuration of a command again, and returns who it says that the process is.
func (p *program) login(cmd *cobra.Command) (jetstream.Login, error) {
	now := config{file: p.config.file}
	if err := now.read(cmd); err != nil {
		return jetstream.Login{}, err
	}
	where, err := now.whereNATS()
	if err != nil {
		return jetstream.Login{}, err
	}
	_, login, _ := jetstream.SplitLogin(where.URL)
	if login == (jetstream.Login{}) { // what the URL says goes before
		login.Token = where.Token
	}
	return login, nil
}

// loginFrom says where credentials are read again, for those who have to change them.
func (c *config) loginFrom() string {
	file := c.file
	if file == "" {
		file = usualFile()
	}
	var from []string
	if file != "" {
		from = append(from, "configuration file "+file)
	}
	if c.Creds != "" {
		from = append(from, "creds "+c.Creds)
	}
	if c.Token == "" && c.TokenFile != "" {
		from = append(from, "token_file "+c.TokenFile)
	}
	if c.NATS == "" && c.DataDir != "" {
		from = append(from, c.connectionFile())
	}
	return strings.Join(from, ", ") + "; what flags and environment say stays as it is until a restart"
}

// write leaves the connection where clients look for it, readable by this user only.
func (c connection) write(dir string) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return writePrivate(filepath.Join(dir, connectionFile), data)
}

// writePrivate writes a whole file or nothing.
func writePrivate(file string, data []byte) error {
	temporary := file + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, file)
}
