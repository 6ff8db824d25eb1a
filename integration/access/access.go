// Package access gives the processes of test programs credentials for their NATS servers.
//
// It keeps an authority and the files of credentials in one directory, whose path a program passes to its processes. An
// empty path means that servers require no credentials. Then the paths of all files are empty, too.
package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/rights"
)

// Variable is the name of an environment variable. If the environment variable is not empty, tests run without
// credentials.
const Variable = "BOXFLEET_INSECURE"

// Dir is a directory with an authority and credentials files. If it is empty, there are no credentials.
type Dir string

// New makes an authority in a new directory below dir.
func New(dir string) (Dir, error) {
	d := filepath.Join(dir, "access")
	if err := os.MkdirAll(d, 0o700); err != nil {
		return "", err
	}
	_, err := auth.Init(authorityIn(d), false)
	return Dir(d), err
}

func authorityIn(dir string) string { return filepath.Join(dir, "auth") }

// Operators returns the operators that a server trusts; nil: the server asks for no credentials.
func (d Dir) Operators() (*embedded.Operators, error) {
	if d == "" {
		return nil, nil
	}
	a, err := auth.Open(authorityIn(string(d)))
	if err != nil {
		return nil, err
	}
	trust, err := a.Trust()
	if err != nil {
		return nil, err
	}
	return &embedded.Operators{Operator: trust.Operator, System: trust.System, Streams: trust.Streams,
		Accounts: trust.Accounts}, nil
}

// Of returns the file with the credentials of an identity.
func (d Dir) Of(id rights.Identity) (file string, err error) {
	if d == "" {
		return "", nil
	}
	file = filepath.Join(string(d), fmt.Sprintf("%s-%s-%s-%s.creds", id.Role, id.Tenant, id.Name, id.Host))
	return file, d.keep(id, file)
}

func (d Dir) keep(id rights.Identity, file string) error {
	a, err := auth.Open(authorityIn(string(d)))
	if err != nil {
		return err
	}
	var life time.Duration
	if id.Host == auth.UnknownHost {
		life = time.Hour
	}
	_, err = a.Keep(id, file, auth.IssueOptions{Life: life})
	return err
}

// Worker returns the file in which a worker on an engine keeps its credentials. Workers with the same name may run on
// several engines.
func (d Dir) Worker(name, engine string) (file string, err error) {
	if d == "" {
		return "", nil
	}
	at := strings.NewReplacer("/", "_", ":", "_").Replace(engine)
	file = filepath.Join(string(d), fmt.Sprintf("worker-%s-%s.creds", name, at))
	if _, err := os.Stat(file); err == nil {
		return file, nil // from an earlier call: the file may already name the worker's host
	}
	return file, d.keep(rights.Identity{Role: rights.Worker, Name: name, Host: auth.UnknownHost}, file)
}

// OnHost gives a worker the credentials of its host, in the way that worker.Config.OnHost requires. creds is the
// worker's file.
func (d Dir) OnHost(ctx context.Context, conn *jetstream.Conn, name, creds, host string) error {
	if d == "" {
		return nil
	}
	if has, ok, err := jetstream.CredentialsIdentity(creds); err != nil || ok && has.Host == host {
		return err
	}
	if err := d.keep(rights.Identity{Role: rights.Worker, Name: name, Host: host}, creds); err != nil {
		return err
	}
	return conn.Reconnect(ctx)
}

// Replace makes new credentials for the identity in a file, and puts them into the file. The old ones stay valid until
// servers take the accounts that revoke returns.
func (d Dir) Replace(file string) (revoke func() (accounts map[string]string, err error), err error) {
	id, ok, err := jetstream.CredentialsIdentity(file)
	if err == nil && !ok {
		err = fmt.Errorf("%s names no identity", file)
	}
	if err != nil {
		return nil, err
	}
	a, err := auth.Open(authorityIn(string(d)))
	if err != nil {
		return nil, err
	}
	old := id
	id.Key = ""
	c, err := a.Issue(id, auth.IssueOptions{Again: true})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file+".new", c.Text, 0o600); err != nil {
		return nil, err
	}
	return func() (map[string]string, error) {
		if _, err := a.Revoke(old); err != nil {
			return nil, err
		}
		trust, err := a.Trust()
		if err != nil {
			return nil, err
		}
		return trust.Accounts, nil
	}, os.Rename(file+".new", file)
}

// Unlimited returns the file with credentials that permit everything in the account of the streams. No role has such
// credentials. Tests use them to read and change the streams. To make them, Unlimited needs the keys of the authority.
func (d Dir) Unlimited() (file string, err error) {
	if d == "" {
		return "", nil
	}
	file = filepath.Join(string(d), "unlimited.creds")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	o, err := d.Operators()
	if err != nil {
		return "", err
	}
	text, err := unlimited(filepath.Join(authorityIn(string(d)), "seeds", o.Streams+".nk"))
	if err != nil {
		return "", err
	}
	return file, os.WriteFile(file, text, 0o600)
}

// unlimited makes credentials that are signed by the key of the account itself.
func unlimited(seedFile string) ([]byte, error) {
	seed, err := os.ReadFile(seedFile)
	if err != nil {
		return nil, err
	}
	account, err := nkeys.FromSeed(seed)
	if err != nil {
		return nil, err
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	public, err := user.PublicKey()
	if err != nil {
		return nil, err
	}
	claims := jwt.NewUserClaims(public)
	claims.Name = "test"
	token, err := claims.Encode(account)
	if err != nil {
		return nil, err
	}
	if seed, err = user.Seed(); err != nil {
		return nil, err
	}
	return jwt.FormatUserConfig(token, seed)
}
