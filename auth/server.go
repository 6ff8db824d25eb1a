package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/boxfleet/boxfleet/protocol"
)

// Trust is the data with which a server checks credentials. It contains no secrets.
type Trust struct {
	Operator string            // the operator as a JWT
	System   string            // public key of the system account
	Streams  string            // public key of the account with the streams
	Accounts map[string]string // all accounts as JWTs, by public key
}

// Trust returns the present data for checking credentials.
func (a *Authority) Trust() (*Trust, error) {
	s, err := a.load()
	if err != nil {
		return nil, err
	}
	t := &Trust{Operator: s.OperatorJWT, System: s.System, Streams: s.Accounts[0].Key,
		Accounts: map[string]string{s.System: s.SystemJWT}}
	for _, account := range s.Accounts {
		t.Accounts[account.Key] = account.JWT
	}
	return t, nil
}

// Config returns a part of a NATS server's configuration, to be included in its configuration file. The server stores
// accounts in resolverDir, takes changes from [Authority.Push], and hands them on to the other servers of its cluster.
// After a change, the accounts that the server has stored are newer than the accounts in the text, and the server
// ignores the accounts in the text. Error: invalid_argument with field resolver_dir unless it is an absolute path.
func (t *Trust) Config(resolverDir string) (string, error) {
	if !filepath.IsAbs(resolverDir) {
		return "", protocol.Invalid("resolver_dir", "must be an absolute path, got %q", resolverDir)
	}
	return t.config(fmt.Sprintf("resolver {\n  type: full\n  dir: %s\n  allow_delete: false\n  interval: \"2m\"\n}\n",
		strconv.Quote(resolverDir))), nil
}

// MemoryConfig is like Config, for a server that stores no accounts. After each change, write the text again and reload
// the server's configuration.
func (t *Trust) MemoryConfig() string { return t.config("resolver: MEMORY\n") }

func (t *Trust) config(resolver string) string {
	var b strings.Builder
	b.WriteString("# Written by boxfleet auth. It contains no secrets.\n")
	fmt.Fprintf(&b, "operator: %s\nsystem_account: %s\n%s", t.Operator, t.System, resolver)
	b.WriteString("resolver_preload {\n")
	for _, key := range slices.Sorted(maps.Keys(t.Accounts)) {
		fmt.Fprintf(&b, "  %s: %s\n", key, t.Accounts[key])
	}
	b.WriteString("}\n")
	return b.String()
}

// pushLife is how long the credentials of one push are accepted.
const pushLife = 5 * time.Minute

// claimsUpdate is the subject on which servers take changed accounts from users of the system account.
const claimsUpdate = "$SYS.REQ.CLAIMS.UPDATE"

// lookupSubject is the subject on which servers say which version of an account they have stored.
func lookupSubject(account string) string { return "$SYS.REQ.ACCOUNT." + account + ".CLAIMS.LOOKUP" }

// SystemCredentials makes credentials of the system account, for connections that push changes. They are accepted for
// five minutes, permit nothing else, and are not listed.
func (a *Authority) SystemCredentials() ([]byte, error) {
	s, err := a.load()
	if err != nil {
		return nil, err
	}
	u, err := a.newUser(s.System)
	if err != nil {
		return nil, err
	}
	defer u.wipe()
	claims := jwt.NewUserClaims(u.public)
	claims.Name, claims.Expires = name, a.now().Add(pushLife).Unix()
	claims.Pub.Allow.Add(claimsUpdate, lookupSubject("*"))
	claims.Sub.Allow.Add("_INBOX.>")
	return u.credentials(claims)
}

// Asker sends a request to all servers. It returns at least one answer or an error.
type Asker interface {
	AskServers(ctx context.Context, subject string, data []byte) (answers [][]byte, err error)
}

// Push calls [Authority.Refresh] and sends the accounts to the running servers. It returns the names of the servers
// that took them. A server that is away gets the accounts from the other servers later. Push needs a connection with
// [Authority.SystemCredentials].
//
// Errors: the errors of AskServers; unavailable if no server answered, because servers that store no accounts do not
// answer; failed_precondition if a server refused an account, or if a server knows of a change that this authority does
// not: the authority is an old copy, and its accounts would make servers accept revoked credentials again.
func (a *Authority) Push(ctx context.Context, to Asker) (servers []string, err error) {
	if _, err := a.Refresh(); err != nil {
		return nil, err
	}
	s, err := a.load()
	if err != nil {
		return nil, err
	}
	for _, account := range s.Accounts {
		stored, err := to.AskServers(ctx, lookupSubject(account.Key), nil)
		if err != nil {
			return nil, err
		}
		if err := refuseOld(a.dir, s, account, stored); err != nil {
			return nil, err
		}
	}
	for _, account := range s.Accounts {
		answers, err := to.AskServers(ctx, claimsUpdate, []byte(account.JWT))
		if err != nil {
			return nil, err
		}
		if servers, err = takenBy(answers); err != nil {
			return nil, err
		}
	}
	return servers, nil
}

// refuseOld returns an error for an authority in dir if a stored version of an account is newer than the authority's,
// or if the stored version revokes credentials that the authority issued and did not revoke.
func refuseOld(dir string, s *state, own account, stored [][]byte) error {
	mine, err := jwt.DecodeAccountClaims(own.JWT)
	if err != nil {
		return internal("read an account", err)
	}
	const old = "NATS servers %s: %s is an old copy of the authority: use the newest one, because servers would accept " +
		"credentials that were revoked after the copy was made. If the newest one is lost, revoke those credentials in " +
		"this copy, and push"
	for _, text := range stored {
		if len(text) == 0 { // the server has no version
			continue
		}
		theirs, err := jwt.DecodeAccountClaims(string(text))
		if err != nil {
			return internal("read the account of a server", err)
		}
		for i := range s.Issued {
			c := &s.Issued[i]
			if _, revoked := theirs.Revocations[c.Key]; revoked && c.Revoked.IsZero() {
				return protocol.Errorf(protocol.FailedPrecondition, "", old,
					fmt.Sprintf("refuse credentials of %s %s, which were revoked", c.Role, c.Name), dir)
			}
		}
		if theirs.IssuedAt > mine.IssuedAt {
			return protocol.Errorf(protocol.FailedPrecondition, "", old, "have a newer version of an account", dir)
		}
	}
	return nil
}

// takenBy returns the servers that took an account.
func takenBy(answers [][]byte) (servers []string, err error) {
	for _, data := range answers {
		var answer struct {
			Server struct {
				Name string `json:"name"`
			} `json:"server"`
			Error *struct {
				Description string `json:"description"`
			} `json:"error"`
		}
		if err := json.Unmarshal(data, &answer); err != nil {
			return nil, internal("read a server's answer", err)
		}
		if answer.Error != nil {
			return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerSettings,
				"NATS server %s did not take an account: %s", answer.Server.Name, answer.Error.Description)
		}
		servers = append(servers, answer.Server.Name)
	}
	if len(servers) == 0 {
		return nil, protocol.Errorf(protocol.Unavailable, "", "no NATS server answered")
	}
	return servers, nil
}
