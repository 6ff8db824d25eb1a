package main

import (
	"context"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/seal"
)

// Directories in the data directory of a local fleet.
const (
	authorityDir   = "auth"          // the authority; `boxfleet auth` uses it unless --dir names another
	credentialsDir = "credentials"   // one file for each role of the fleet, and one for the user of this machine
	accountsDir    = "nats-accounts" // accounts that `boxfleet auth push` sent to the server
	natsDir        = "nats"          // the store of the NATS server
)

// unknownHostLife is how long credentials for auth.UnknownHost are accepted. They are replaced when the worker has
// learned the id of its host.
const unknownHostLife = time.Hour

// localRights hold the authority for the NATS server of a local fleet, and three credentials: for its coordinator, for
// its worker, and for the user of this machine, with the rights of an operator.
type localRights struct {
	authority               *auth.Authority
	dir                     string // data directory
	coordinator, user       rights.Identity
	worker                  rights.Identity // worker.Host is the host in the worker's present credentials
	server                  *embedded.Keeper
	trusted                 *auth.Trust // what the server trusts now
	coordinatorIn, workerIn string      // paths of the credentials files
	userIn                  string
}

// openRights opens or makes the authority of a data directory. It makes the credentials that are missing or no longer
// valid. coordinatorName and workerName are the names of the fleet's coordinator and worker.
func openRights(dir, coordinatorName, workerName string) (*localRights, error) {
	a, err := openAuthority(dir)
	if err != nil {
		return nil, err
	}
	in := filepath.Join(dir, credentialsDir)
	if err := os.MkdirAll(in, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "make the directory of credentials: %v", err)
	}
	r := &localRights{
		authority: a, dir: dir,
		coordinator:   rights.Identity{Role: rights.Coordinator, Name: coordinatorName},
		worker:        rights.Identity{Role: rights.Worker, Name: workerName, Host: auth.UnknownHost},
		user:          rights.Identity{Role: rights.Operator, Name: localUser()},
		coordinatorIn: filepath.Join(in, "coordinator.creds"), workerIn: filepath.Join(in, "worker.creds"),
		userIn: filepath.Join(in, "user.creds"),
	}
	if _, err := a.Refresh(); err != nil { // this version of Boxfleet may give other permissions than the previous one
		return nil, err
	}
	if has, ok, err := jetstream.CredentialsIdentity(r.workerIn); err == nil && ok && has.Name == workerName {
		r.worker.Host = has.Host
	}
	if _, err := a.Keep(r.coordinator, r.coordinatorIn, auth.IssueOptions{}); err != nil {
		return nil, err
	}
	if _, err := a.Keep(r.user, r.userIn, auth.IssueOptions{}); err != nil {
		return nil, err
	}
	var life time.Duration
	if r.worker.Host == auth.UnknownHost {
		life = unknownHostLife
	}
	if _, err := a.Keep(r.worker, r.workerIn, auth.IssueOptions{Life: life}); err != nil {
		return nil, err
	}
	r.trusted, err = a.Trust()
	return r, err
}

// openAuthority opens the authority of a data directory. If there is none, openAuthority makes one, unless the server's
// store shows that an authority was lost.
func openAuthority(dir string) (*auth.Authority, error) {
	in := filepath.Join(dir, authorityDir)
	const repair = "restore it from a backup; or move it away and run `boxfleet auth init %s`: sandboxes and histories " +
		"stay, and all credentials that you made for others have to be made again"
	a, err := auth.Open(in)
	switch protocol.CodeOf(err) {
	case "":
		return a, nil
	case protocol.NotFound:
	case protocol.Internal:
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "the authority in %s is damaged (%v): "+repair, in, err,
			in)
	default:
		return nil, err
	}
	owned, err := embedded.HasOperator(filepath.Join(dir, natsDir))
	if err != nil {
		return nil, err
	}
	if owned {
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "the authority in %s is lost: "+repair, in, in)
	}
	return auth.Init(in, false)
}

// localUser returns the name under which the user of this machine acts. The prefix local- sets it apart from the
// machine's name, which `up` gives to its worker.
func localUser() string {
	name := ""
	if u, err := user.Current(); err == nil {
		name = strings.Trim(notInID.ReplaceAllString(strings.ToLower(u.Username), "-"), "-")
	}
	name = strings.TrimSuffix("local-"+name, "-")
	return name[:min(len(name), 48)]
}

// secretsKeys returns the fleet's keys for secrets.
func (r *localRights) secretsKeys() (seal.Keys, error) {
	file, err := r.authority.SecretsKey()
	if err != nil {
		return nil, err
	}
	return readSecretsKeys(file)
}

// operators returns the operator, the accounts and their directory for the configuration of the server.
func (r *localRights) operators() *embedded.Operators {
	return &embedded.Operators{
		Operator: r.trusted.Operator, System: r.trusted.System, Streams: r.trusted.Streams, Accounts: r.trusted.Accounts,
		Dir: filepath.Join(r.dir, accountsDir),
	}
}

// onHost gives the worker's connection the credentials of its host. After an error, it can be called again.
func (r *localRights) onHost(ctx context.Context, conn *jetstream.Conn, host string) error {
	if r.worker.Host == host {
		return nil
	}
	worker := r.worker
	worker.Host = host
	if _, err := r.authority.Keep(worker, r.workerIn, auth.IssueOptions{}); err != nil {
		return err
	}
	if err := r.tellServer(); err != nil {
		return err
	}
	if err := conn.Reconnect(ctx); err != nil {
		return err
	}
	r.worker = worker
	return nil
}

// tellServer gives the server the accounts that have changed.
func (r *localRights) tellServer() error {
	now, err := r.authority.Trust()
	if err != nil {
		return err
	}
	for key, account := range now.Accounts {
		if account == r.trusted.Accounts[key] {
			continue
		}
		if err := r.server.SetAccount(account); err != nil {
			return err
		}
	}
	r.trusted.Accounts = maps.Clone(now.Accounts)
	return nil
}
