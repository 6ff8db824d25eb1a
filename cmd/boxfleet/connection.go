package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

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
	where, err := p.whereNATS()
	if err != nil {
		return nil, err
	}
	c, err := sdk.Connect(ctx, sdk.Options{URL: where.URL, Token: where.Token, Creds: p.config.Creds, Tenant: p.config.Tenant, Name: "boxfleet-cli"})
	if protocol.CodeOf(err) == protocol.Unavailable && p.config.NATS == "" {
		e := *protocol.AsError(err)
		e.Message += "; start one with `boxfleet up`, or name another with --nats"
		return nil, &e
	}
	return c, err
}

func (p *program) whereNATS() (connection, error) {
	c := connection{URL: p.config.NATS, Token: p.config.Token}
	if c.URL != "" {
		return c, nil
	}
	file := filepath.Join(p.config.DataDir, connectionFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	var found connection
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err != nil {
		return c, protocol.Errorf(protocol.Internal, "", "read %s: %v", file, err)
	}
	if c.Token != "" {
		found.Token = c.Token
	}
	return found, nil
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
