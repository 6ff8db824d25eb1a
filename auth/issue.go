package auth

import (
	"cmp"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// Issued describes credentials that were issued. The authority does not store the secret key of credentials: only the
// holder has it.
type Issued struct {
	Role   rights.Role `json:"role"`
	Name   string      `json:"name"`
	Tenant string      `json:"tenant,omitempty"`
	Host   string      `json:"host,omitempty"`
	Key    string      `json:"key"`    // public key of the user; every file of credentials has its own key
	Signer string      `json:"signer"` // public key of the role's key that signed these credentials

	IssuedAt time.Time `json:"issued"`
	Expires  time.Time `json:"expires,omitzero"` // zero: never
	Revoked  time.Time `json:"revoked,omitzero"` // zero: not revoked

	// Retired is true if servers no longer accept the signing key that signed these credentials.
	Retired bool `json:"-"`
}

// Identity returns the identity that the credentials prove.
func (c *Issued) Identity() rights.Identity {
	return rights.Identity{Role: c.Role, Name: c.Name, Tenant: c.Tenant, Host: c.Host, Key: c.Key}
}

// Status says whether servers accept the credentials at a time: "valid", "expired", "revoked", or "retired" if the key
// that signed them is no longer accepted.
func (c *Issued) Status(now time.Time) string {
	switch {
	case !c.Revoked.IsZero():
		return "revoked"
	case c.Retired:
		return "retired"
	case !c.Expires.IsZero() && !now.Before(c.Expires):
		return "expired"
	}
	return "valid"
}

// Credentials are newly issued credentials, with their secret key.
type Credentials struct {
	Issued

	// Text is the content of a NATS credentials file. It contains the secret key.
	Text []byte
}

// IssueOptions configures [Authority.Issue].
type IssueOptions struct {
	Life time.Duration // how long the credentials are accepted, rounded to seconds; 0: forever

	// Again permits a second file for a holder whose credentials are still valid. Both files stay valid.
	Again bool
}

// Issue makes a new key, and credentials for an identity with this key. id.Key must be empty. Servers accept the
// credentials at once.
//
// Errors: those of [rights.Identity.Validate]; invalid_argument with field key, or with field expires if o.Life is less
// than a second and not 0; already_exists if the holder has valid credentials and o.Again is false, or if the name has
// valid credentials for another role or another host. A name is unique among the users and viewers of a tenant, and
// among the holders of all other roles.
func (a *Authority) Issue(id rights.Identity, o IssueOptions) (*Credentials, error) {
	if err := id.Validate(); err != nil {
		return nil, err
	}
	if id.Key != "" {
		return nil, protocol.Invalid("key", "must be empty: credentials get a new key")
	}
	if o.Life != 0 && o.Life < time.Second {
		return nil, protocol.Invalid("expires", "must be at least 1s, got %s", o.Life)
	}
	var c *Credentials
	err := a.change(func(s *state) (err error) {
		if err := s.mayIssue(id, o.Again, a.now()); err != nil {
			return err
		}
		if c, err = a.sign(s.signer(id.Role), s.accountOf(id.Role), id, o.Life); err == nil {
			s.Issued = append(s.Issued, c.Issued)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// mayIssue refuses credentials that would let two holders act under one name.
func (s *state) mayIssue(id rights.Identity, again bool, now time.Time) error {
	for i := range s.Issued {
		c := s.Issued[i]
		c.Retired = !s.accepts(c.Signer)
		if c.Name != id.Name || c.Tenant != id.Tenant || c.Status(now) != "valid" {
			continue
		}
		switch {
		case c.Role != id.Role:
			e := protocol.Errorf(protocol.AlreadyExists, "", "%s is the name of a %s: choose another one, or revoke its "+
				"credentials first", id.Name, c.Role)
			e.Field = "name"
			return e
		case c.Host == UnknownHost && id.Host != UnknownHost:
		case c.Host != id.Host:
			e := protocol.Errorf(protocol.AlreadyExists, "", "worker %s has credentials for host %s: revoke them first",
				id.Name, c.Host)
			e.Field = "host"
			return e
		case !again:
			e := protocol.Errorf(protocol.AlreadyExists, "", "%s %s has valid credentials: revoke them first, or ask for "+
				"further ones with --again", id.Role, id.Name)
			e.Field = "name"
			return e
		}
	}
	return nil
}

// newUser has the key of a user whose credentials are being made, and the key that signs these credentials.
type newUser struct {
	signer, key nkeys.KeyPair
	public      string
}

// newUser makes a key of a user. The caller must wipe the result.
func (a *Authority) newUser(signer string) (*newUser, error) {
	u := &newUser{}
	var err error
	if u.signer, err = a.key(signer); err != nil {
		return nil, err
	}
	if u.key, err = nkeys.CreateUser(); err == nil {
		u.public, err = u.key.PublicKey()
	}
	if err != nil {
		u.wipe()
		return nil, internal("make a key", err)
	}
	return u, nil
}

func (u *newUser) wipe() {
	u.signer.Wipe()
	if u.key != nil {
		u.key.Wipe()
	}
}

// sign makes a key and credentials for this key. A scoped signing key carries the permissions, so the credentials list
// none.
func (a *Authority) sign(signer, account string, id rights.Identity, life time.Duration) (*Credentials, error) {
	u, err := a.newUser(signer)
	if err != nil {
		return nil, err
	}
	defer u.wipe()
	now := a.now().UTC().Truncate(time.Second)
	c := &Credentials{Issued: Issued{Role: id.Role, Name: id.Name, Tenant: id.Tenant, Host: id.Host, Key: u.public,
		Signer: signer, IssuedAt: now}}
	claims := jwt.NewUserClaims(u.public)
	claims.SetScoped(true)
	claims.Name, claims.IssuerAccount = id.Name, account
	// Append the tags without TagList.Add, which would turn them into lower case: hosts' ids have upper case.
	claims.Tags = append(claims.Tags, rights.TagRole+":"+string(id.Role))
	if id.Tenant != "" {
		claims.Tags = append(claims.Tags, rights.TagTenant+":"+id.Tenant)
	}
	if id.Host != "" {
		claims.Tags = append(claims.Tags, rights.TagHost+":"+id.Host)
	}
	if life != 0 {
		c.Expires = now.Add(life).Truncate(time.Second)
		claims.Expires = c.Expires.Unix()
	}
	if c.Text, err = u.credentials(claims); err != nil {
		return nil, err
	}
	return c, nil
}

// credentials signs claims and returns a credentials file.
func (u *newUser) credentials(claims *jwt.UserClaims) ([]byte, error) {
	token, err := claims.Encode(u.signer)
	if err != nil {
		return nil, internal("sign credentials", err)
	}
	seed, err := u.key.Seed()
	if err != nil {
		return nil, internal("sign credentials", err)
	}
	text, err := jwt.FormatUserConfig(token, seed)
	clear(seed)
	if err != nil {
		return nil, internal("write credentials", err)
	}
	return text, nil
}

// List returns all issued credentials, sorted by role, tenant, name and time.
func (a *Authority) List() ([]Issued, error) {
	s, err := a.load()
	if err != nil {
		return nil, err
	}
	for i := range s.Issued {
		s.Issued[i].Retired = !s.accepts(s.Issued[i].Signer)
	}
	slices.SortStableFunc(s.Issued, func(x, y Issued) int {
		return cmp.Or(cmp.Compare(x.Role, y.Role), cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Name, y.Name),
			x.IssuedAt.Compare(y.IssuedAt))
	})
	return s.Issued, nil
}

// Find returns the credentials of one holder, oldest first. Only Role, Name and Tenant of id count. Error: not_found.
func (a *Authority) Find(id rights.Identity) ([]Issued, error) {
	all, err := a.List()
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(all, func(c Issued) bool { return !c.isOf(id) })
	if len(found) == 0 {
		return nil, unknownHolder(id)
	}
	return found, nil
}

func (c *Issued) isOf(id rights.Identity) bool {
	return c.Role == id.Role && c.Name == id.Name && c.Tenant == id.Tenant
}

func unknownHolder(id rights.Identity) error {
	of := ""
	if id.Tenant != "" {
		of = " of tenant " + id.Tenant
	}
	return protocol.Errorf(protocol.NotFound, "", "no credentials were issued for %s %s%s", id.Role, id.Name, of)
}

// Revoke revokes the credentials of one holder: all of them, or only those with the public key id.Key. Once
// [Authority.Push] has told the servers, they refuse these credentials and end their connections. Revoke returns the
// newly revoked credentials. Only Role, Name, Tenant and Key of id count. Error: not_found.
func (a *Authority) Revoke(id rights.Identity) (revoked []Issued, err error) {
	err = a.change(func(s *state) error {
		known := false
		for i := range s.Issued {
			c := &s.Issued[i]
			if !c.isOf(id) || id.Key != "" && c.Key != id.Key {
				continue
			}
			known = true
			if c.Revoked.IsZero() {
				c.Revoked = a.now().UTC().Truncate(time.Second)
				revoked = append(revoked, *c)
			}
		}
		if !known {
			return unknownHolder(id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return revoked, nil
}
