package auth

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// StaticUser is a user in the configuration of a server. It proves its identity with its key or, if Identity.Key is
// empty, with a user name and a password.
type StaticUser struct {
	rights.Identity

	// Password is the bcrypt hash of the password, as [HashPassword] makes it; empty with a key.
	Password string
}

// User returns the login name of a user with a password: the role, the tenant if the role has one, and the name, joined
// by dots.
func (u *StaticUser) User() string {
	if u.Tenant != "" {
		return string(u.Role) + "." + u.Tenant + "." + u.Name
	}
	return string(u.Role) + "." + u.Name
}

// HashPassword returns the bcrypt hash of a password. Error: invalid_argument with field password unless the password
// has 16 to 72 bytes; bcrypt ignores bytes after the 72nd.
func HashPassword(password string) (string, error) {
	if len(password) < 16 || len(password) > 72 {
		return "", protocol.Invalid("password", "must have 16 to 72 bytes, got %d", len(password))
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), 11)
	if err != nil {
		return "", internal("hash a password", err)
	}
	return string(hash), nil
}

// StaticConfig returns a part of a NATS server's configuration that lists users with their permissions, for deployments
// without an operator. Each user is in the account of its role, see [rights.Account]. Everybody else is refused. A
// change needs a reload of each server's configuration. Errors: those of [rights.Identity.Validate], and
// invalid_argument with field users, key or password.
func StaticConfig(users []StaticUser) (string, error) {
	if len(users) == 0 {
		return "", protocol.Invalid("users", "must not be empty: a server without users admits everybody")
	}
	members := map[rights.Account]string{}
	seen := map[string]bool{}
	for i := range users {
		u := &users[i]
		set, err := rights.Permissions(u.Identity)
		if err != nil {
			return "", err
		}
		login, err := u.login()
		if err != nil {
			return "", err
		}
		if seen[u.Key] || seen[u.User()] {
			return "", protocol.Invalid("users", "%s is listed twice", u.User())
		}
		if seen[u.Inbox()] {
			return "", protocol.Invalid("users", "another user would receive the answers of %s: give them different names",
				u.User())
		}
		seen[u.User()], seen[u.Inbox()], seen[u.Key] = true, true, u.Key != ""
		members[u.Role.Account()] += fmt.Sprintf("      { %s, allowed_connection_types: [ %s ], permissions: {\n"+
			"        publish: { allow: %s }\n        subscribe: { allow: %s }\n      } }\n", login,
			strings.Join(connections, ", "), list(set.Publish), list(set.Subscribe))
	}
	return "# Written by boxfleet. Hashes of passwords may be in it: let only the server read it.\n" +
		"accounts {\n" + staticAccounts(members) + "}\n", nil
}

// staticAccounts writes the accounts with their users and the subjects that they share.
func staticAccounts(members map[rights.Account]string) string {
	exports, imports := map[rights.Account]string{}, map[rights.Account]string{}
	exported := map[rights.Share]bool{}
	export := func(from rights.Account, share rights.Share) {
		responses := ""
		switch share.Way {
		case rights.AskedFor:
			responses = ", response: stream"
		case rights.Asked:
			responses = fmt.Sprintf(", response_threshold: %q", answeredWithin)
		case rights.Answers:
			responses = fmt.Sprintf(", response_threshold: %q", streamsAnsweredWithin)
		}
		if !exported[share] {
			exports[from] += fmt.Sprintf("      { %s: %q%s }\n", kindOf(share), share.Subject, responses)
		}
		exported[share] = true
	}
	importFrom := func(from, to rights.Account, share rights.Share) {
		imports[to] += fmt.Sprintf("      { %s: { account: %s, subject: %q } }\n", kindOf(share), accountName(from),
			share.Subject)
	}
	for _, account := range rights.Accounts() {
		for _, share := range account.Shared() {
			if !share.IsOwn() {
				export(rights.Streams, share)
				importFrom(rights.Streams, account, share)
				continue
			}
			export(account, share)
			for _, to := range rights.Accounts() {
				if share.Imports(to, account) {
					importFrom(account, to, share)
				}
			}
		}
	}
	text := ""
	for _, account := range rights.Accounts() {
		jetstream := ""
		if account == rights.Streams {
			jetstream = "    jetstream: enabled\n"
		}
		text += fmt.Sprintf("  %s {\n%s    users: [\n%s    ]\n    exports: [\n%s    ]\n    imports: [\n%s    ]\n  }\n",
			accountName(account), jetstream, members[account], exports[account], imports[account])
	}
	return text
}

// login returns the settings of a server's configuration with which a user proves its identity.
func (u *StaticUser) login() (string, error) {
	switch _, err := bcrypt.Cost([]byte(u.Password)); {
	case u.Key != "" && u.Password != "":
		return "", protocol.Invalid("password", "%s has a key: it must not have a password too", u.User())
	case u.Key != "":
		return "nkey: " + u.Key, nil
	case err != nil:
		return "", protocol.Invalid("password", "%s needs a key, or the bcrypt hash of a password", u.User())
	}
	return fmt.Sprintf("user: %s, password: %s", strconv.Quote(u.User()), strconv.Quote(u.Password)), nil
}

func list(subjects []string) string {
	quoted := make([]string, len(subjects))
	for i, s := range subjects {
		quoted[i] = strconv.Quote(s)
	}
	return "[\n          " + strings.Join(quoted, "\n          ") + "\n        ]"
}
