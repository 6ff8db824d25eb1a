package jetstream

import (
	"errors"
	"io/fs"
	"os"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// CredentialsIdentity returns the identity that a credentials file names. ok is false if `boxfleet auth` did not make
// the file: then nothing is known about the user's name. Error: invalid_argument with field creds if the file cannot be
// read.
func CredentialsIdentity(file string) (id rights.Identity, ok bool, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return rights.Identity{}, false, unreadable(file, err)
	}
	defer clear(text)
	id, ok = rights.FromCredentials(text)
	return id, ok, nil
}

// unreadable is the error for a credentials file that cannot be read.
func unreadable(file string, err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	return protocol.Invalid("creds", "cannot read %s: %v", file, err)
}

// identify takes the tenant and the user from the credentials file. It refuses a configured tenant or user that differs
// from the one in the file.
func (cfg *Config) identify() error {
	if cfg.Creds == "" {
		return nil
	}
	id, ok, err := CredentialsIdentity(cfg.Creds)
	if err != nil || !ok {
		return err
	}
	if cfg.User != "" && cfg.User != id.User() {
		return protocol.Invalid("user", "is %s, but the credentials in %s are those of %s: omit the setting, or name other "+
			"credentials", cfg.User, cfg.Creds, id.User())
	}
	cfg.User = id.User()
	if !id.Role.HasTenant() {
		return nil
	}
	if cfg.Tenant != "" && cfg.Tenant != id.Tenant {
		return protocol.Invalid("tenant", "is %s, but the credentials in %s are those of tenant %s: omit the setting, or "+
			"name other credentials", cfg.Tenant, cfg.Creds, id.Tenant)
	}
	cfg.Tenant = id.Tenant
	return nil
}

// explain adds to a server's refusal what to do about it. The server does not say why it refuses credentials.
func (cfg *Config) explain(err error) error {
	refusal := protocol.AsError(err)
	if refusal.Code != protocol.PermissionDenied {
		return err
	}
	explained := *refusal
	switch {
	case cfg.Creds != "":
		explained.Field = "creds"
		explained.Message += ": the credentials in " + cfg.Creds + " have expired, were revoked or replaced, or are for other " +
			"servers: get others, which boxfleet auth add makes"
	case cfg.Token == "" && cfg.Login == nil:
		explained.Field = "creds"
		explained.Message += ": name a file with credentials, which boxfleet auth add makes"
	}
	return &explained
}
