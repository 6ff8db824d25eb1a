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

// User returns the name with which a user logs in who has a password: role and name, with the tenant between them for
// the roles of tenants, joined by dots.
func (u *StaticUser) User() string {
	if u.Tenant != "" {
		return string(u.Role) + "." + u.Tenant + "." + u.Name
	}
	return string(u.Role) + "." + u.Name
}

// HashPassword returns the bcrypt hash of a password. Error: invalid_argument with field password unless the password
// has 16 to 72 bytes; bcrypt ignores further ones.
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
// without an operator. Everybody else is refused. A change needs a reload of each server's configuration. Errors: those
// of [rights.Identity.Validate], and invalid_argument with field users, key or password.
func StaticConfig(users []StaticUser) (string, error) {
	if len(users) == 0 {
		return "", protocol.Invalid("users", "must not be empty: a server without users admits everybody")
	}
	var b strings.Builder
	b.WriteString("# Written by boxfleet. Hashes of passwords are in it: only the server should be able to read it.\n")
	b.WriteString("authorization {\n  users: [\n")
	seen := map[string]bool{}
	for i := range users {
		u := &users[i]
		set, err := rights.Permissions(u.Identity)
		if err != nil {
			return "", err
		}
		login := "nkey: " + u.Key
		switch _, err := bcrypt.Cost([]byte(u.Password)); {
		case u.Key != "" && u.Password != "":
			return "", protocol.Invalid("password", "%s has a key: it must not have a password too", u.User())
		case u.Key != "":
		case err != nil:
			return "", protocol.Invalid("password", "%s needs a key, or the bcrypt hash of a password", u.User())
		default:
			login = fmt.Sprintf("user: %s, password: %s", strconv.Quote(u.User()), strconv.Quote(u.Password))
		}
		if seen[login] || seen[u.User()] {
			return "", protocol.Invalid("users", "%s is listed twice", u.User())
		}
		seen[login], seen[u.User()] = true, true
		fmt.Fprintf(&b, "    { %s, permissions: {\n      publish: { allow: %s }\n      subscribe: { allow: %s }\n    } }\n",
			login, list(set.Publish), list(set.Subscribe))
	}
	b.WriteString("  ]\n}\n")
	return b.String(), nil
}

func list(subjects []string) string {
	quoted := make([]string, len(subjects))
	for i, s := range subjects {
		quoted[i] = strconv.Quote(s)
	}
	return "[\n        " + strings.Join(quoted, "\n        ") + "\n      ]"
}
