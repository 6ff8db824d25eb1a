package auth

import (
	"reflect"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/rights"
)

// name is what servers and tools show as the name of the operator and of the account.
const name = "boxfleet"

// signOperator signs the operator by itself, and the system account.
func (a *Authority) signOperator(s *state) error {
	pair, err := a.key(s.Operator)
	if err != nil {
		return err
	}
	defer pair.Wipe()
	operator := jwt.NewOperatorClaims(s.Operator)
	operator.Name, operator.SystemAccount = name, s.System
	if s.OperatorJWT, err = operator.Encode(pair); err != nil {
		return internal("sign the operator", err)
	}
	system := jwt.NewAccountClaims(s.System)
	system.Name, system.Limits.DisallowBearer = "SYS", true
	if s.SystemJWT, err = system.Encode(pair); err != nil {
		return internal("sign the system account", err)
	}
	return nil
}

// signAccount signs the account with the signing keys and revocations that the state lists, unless the stored one has
// them already.
func (a *Authority) signAccount(s *state) error {
	account, err := s.accountClaims()
	if err != nil {
		return err
	}
	var issuedAt int64
	if s.AccountJWT != "" {
		old, err := jwt.DecodeAccountClaims(s.AccountJWT)
		if err != nil {
			return internal("read the account", err)
		}
		if sameAccount(old, account) {
			return nil
		}
		issuedAt = old.IssuedAt
	}
	pair, err := a.key(s.Operator)
	if err != nil {
		return err
	}
	defer pair.Wipe()
	// Servers that missed a change take the account with the later second from the others.
	for time.Now().Unix() <= issuedAt {
		time.Sleep(time.Until(time.Unix(issuedAt+1, 0)))
	}
	if s.AccountJWT, err = account.Encode(pair); err != nil {
		return internal("sign the account", err)
	}
	return nil
}

func (s *state) accountClaims() (*jwt.AccountClaims, error) {
	account := jwt.NewAccountClaims(s.Account)
	account.Name = name
	account.Limits.DisallowBearer = true
	account.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
	}
	for _, k := range s.Signing {
		set, err := rights.Template(k.Role)
		if err != nil {
			return nil, err
		}
		scope := jwt.NewUserScope()
		scope.Key, scope.Role = k.Key, string(k.Role)
		scope.Template.Permissions = jwt.Permissions{
			Pub: jwt.Permission{Allow: set.Publish}, Sub: jwt.Permission{Allow: set.Subscribe},
		}
		account.SigningKeys.AddScopedSigner(scope)
	}
	for _, c := range s.Issued {
		if !c.Revoked.IsZero() {
			account.RevokeAt(c.Key, c.Revoked)
		}
	}
	return account, nil
}

// sameAccount reports whether two accounts have the same signing keys, permissions and revocations.
func sameAccount(a, b *jwt.AccountClaims) bool {
	if len(a.Revocations) != len(b.Revocations) || len(a.SigningKeys) != len(b.SigningKeys) {
		return false
	}
	for key, at := range a.Revocations {
		if b.Revocations[key] != at {
			return false
		}
	}
	for key, scope := range a.SigningKeys {
		other, has := b.SigningKeys[key]
		if !has || !reflect.DeepEqual(permissionsOf(scope), permissionsOf(other)) {
			return false
		}
	}
	return true
}

func permissionsOf(scope jwt.Scope) rights.Set {
	user, isUser := scope.(*jwt.UserScope)
	if !isUser {
		return rights.Set{}
	}
	return rights.Set{Publish: user.Template.Pub.Allow, Subscribe: user.Template.Sub.Allow}
}

// addSigningKey gives a role a new signing key.
func (a *Authority) addSigningKey(s *state, role rights.Role) error {
	public, err := a.newKey(nkeys.PrefixByteAccount)
	if err != nil {
		return err
	}
	s.Signing = append(s.Signing, SigningKey{Role: role, Key: public, Created: a.now().UTC()})
	return nil
}

// signer returns the present signing key of a role.
func (s *state) signer(role rights.Role) string {
	for _, k := range s.Signing {
		if k.Role == role && k.AcceptedUntil.IsZero() {
			return k.Key
		}
	}
	return ""
}

// accepts reports whether servers accept credentials that a key signed.
func (s *state) accepts(signer string) bool {
	return slices.ContainsFunc(s.Signing, func(k SigningKey) bool { return k.Key == signer })
}
