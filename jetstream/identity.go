package jetstream

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// CredentialsIdentity returns the identity that a credentials file names. ok is false if `boxfleet auth` did not make
// the file: then nothing is known about the user's name. Error: invalid_argument with field creds if the file cannot be
// read.
func CredentialsIdentity(file string) (id rights.Identity, ok bool, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return rights.Identity{}, false, unreadable("creds", file, err)
	}
	defer clear(text)
	id, ok = rights.FromCredentials(text)
	return id, ok, nil
}

// unreadable is the error for a file that cannot be read. field is the setting that names the file.
func unreadable(field, file string, err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	return protocol.Invalid(field, "cannot read %s: %v", file, err)
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

// explain turns the error of an attempt to connect into a *protocol.Error that says what to do. It says nothing about
// causes that the server keeps to itself.
func (cfg *Config) explain(err error, doing string) error {
	if problem := cfg.TLS.explain(err); problem != nil {
		explained := *problem
		explained.Message = doing + ": " + problem.Message
		return &explained
	}
	refusal := protocol.AsError(translate(err, doing))
	if refusal.Code != protocol.PermissionDenied {
		return refusal
	}
	explained := *refusal
	var why string
	explained.Field, why = cfg.whyRefused(err)
	explained.Message += ": " + why
	return &explained
}

// whyRefused returns the setting that a server refused, and what is known about the reason. A server that refuses a
// login does not say why; it gives a reason only when it ends a connection.
func (cfg *Config) whyRefused(err error) (field, why string) {
	const others = ": get others, which boxfleet auth add makes"
	switch {
	case cfg.Creds != "":
		the := "the credentials in " + cfg.Creds
		expired := expiry(cfg.Creds)
		switch {
		case errors.Is(err, nats.ErrAuthRevoked):
			return "creds", the + " were revoked" + others
		case errors.Is(err, nats.ErrAccountAuthExpired):
			return "creds", "the account of " + the + " has expired on the server"
		case !expired.IsZero() && time.Now().After(expired):
			return "creds", the + " expired on " + expired.Format(time.RFC3339) + others
		}
		return "creds", the + " were revoked or replaced, have expired by the server's clock, or are for other servers" +
			others
	case cfg.NKey != "":
		return "nkey", "no user of the server has the key in " + cfg.NKey + ", or that user may not connect in this way"
	case cfg.Login != nil:
		switch login, _ := cfg.Login(); { // an attempt to connect reports the error
		case login.User != "":
			return "login", "the user " + login.User + " does not exist, or has another password"
		case login.Token+login.TokenFile != "":
			return "token", "the server has another token, or none"
		}
	case cfg.Token != "":
		return "token", "the server has another token, or none"
	}
	if _, inURL, same := SplitLogin(cfg.URL); !same || inURL != (Login{}) {
		return "nats", "the server does not accept the login in the URL"
	}
	return "creds", "name a file with credentials, which boxfleet auth add makes"
}

// expiry returns when the credentials in a file expire; zero: never, or the file does not say so.
func expiry(file string) time.Time {
	text, err := os.ReadFile(file)
	if err != nil {
		return time.Time{} // the next attempt to connect reports the error
	}
	defer clear(text)
	_, expires := rights.Life(text)
	return expires
}
