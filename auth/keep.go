package auth

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/nats-io/jwt/v2"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// UnknownHost is the host in the credentials of a worker that has not learned the id of its Docker host. No host has
// this id.
const UnknownHost = "-"

// Keep makes sure that a file has credentials that servers accept for an identity. It makes new credentials if the file
// does not exist, or if the credentials in the file are no longer accepted, belong to another identity, or were signed
// by a key that has been replaced. It then also revokes the credentials in the file and all other credentials of the
// holder, except credentials with an expiry, and returns true. [Authority.Push] tells running servers of the
// revocations.
//
// Errors: failed_precondition if the file has no credentials, or if users other than its owner have access to it; the
// errors of [Authority.Issue].
func (a *Authority) Keep(id rights.Identity, file string, o IssueOptions) (made bool, err error) {
	if err := id.Validate(); err != nil {
		return false, err
	}
	has, err := readCredentials(file)
	if err != nil {
		return false, err
	}
	s, err := a.load()
	if err != nil {
		return false, err
	}
	if has.Key != "" && s.isValid(id, has, a) {
		return false, nil
	}
	// Revoke before Issue, because all credentials of a worker must be for the same host.
	if err := a.revokeAll(id, has.Key); err != nil {
		return false, err
	}
	o.Again = true
	c, err := a.Issue(id, o)
	if err != nil {
		return false, err
	}
	return true, writeFile(file, c.Text)
}

// readCredentials returns the identity that a credentials file names, after a check that the file has the secret key of
// that identity. Without a file, it returns the zero value.
func readCredentials(file string) (rights.Identity, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return rights.Identity{}, nil
	}
	if err != nil {
		return rights.Identity{}, internal("read credentials", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return rights.Identity{}, protocol.Errorf(protocol.FailedPrecondition, "",
			"%s holds a secret key, and users other than its owner have access to it: run chmod 600 %s", file, file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return rights.Identity{}, internal("read credentials", err)
	}
	defer clear(text)
	damaged := protocol.Errorf(protocol.FailedPrecondition, "",
		"%s has no usable credentials: remove the file and start again; the start makes new ones and revokes the old ones",
		file)
	id, ok := rights.FromCredentials(text)
	if !ok {
		return rights.Identity{}, damaged
	}
	pair, err := jwt.ParseDecoratedUserNKey(text)
	if err != nil {
		return rights.Identity{}, damaged
	}
	defer pair.Wipe()
	if public, err := pair.PublicKey(); err != nil || public != id.Key {
		return rights.Identity{}, damaged
	}
	return id, nil
}

// isValid reports whether a credentials file needs no replacement. held is the identity in the file. It must equal
// wanted, servers must accept the credentials, and the present signing key of the role must have signed them.
func (s *state) isValid(wanted, held rights.Identity, a *Authority) bool {
	wanted.Key = held.Key
	return wanted == held && slices.ContainsFunc(s.Issued, func(c Issued) bool {
		return c.Identity() == held && c.Signer == s.signer(held.Role) && c.Status(a.now()) == "valid"
	})
}

// revokeAll revokes the valid credentials of a holder, and valid credentials with the given public key. It leaves
// credentials with an expiry.
func (a *Authority) revokeAll(holder rights.Identity, key string) error {
	all, err := a.List()
	if err != nil {
		return err
	}
	for i := range all {
		c := &all[i]
		if c.Key != key && !c.isOf(holder) || !c.Expires.IsZero() || c.Status(a.now()) != "valid" {
			continue
		}
		if _, err := a.Revoke(c.Identity()); err != nil {
			return err
		}
	}
	return nil
}
