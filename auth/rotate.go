package auth

import (
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// Rotation is the result of [Authority.Rotate].
type Rotation struct {
	Old, New SigningKey

	// Replace lists the valid credentials that the old key signed. Issue new credentials to their holders before
	// Old.AcceptedUntil.
	Replace []Issued
}

// Rotate gives a role a new signing key. Credentials that the old key signed stay valid for the overlap; 0 ends them at
// once. Call [Authority.Push] before new credentials are used: servers refuse these credentials until they know the new
// key. Servers accept the old key until Push is called again after the overlap. Error: invalid_argument with field role
// or overlap.
func (a *Authority) Rotate(role rights.Role, overlap time.Duration) (*Rotation, error) {
	if _, err := rights.Template(role); err != nil {
		return nil, err
	}
	if overlap < 0 {
		return nil, protocol.Invalid("overlap", "must not be negative, got %s", overlap)
	}
	r := &Rotation{}
	err := a.change(func(s *state) error {
		old := s.signer(role)
		now := a.now().UTC().Truncate(time.Second)
		for i := range s.Signing {
			if k := &s.Signing[i]; k.Key == old {
				k.AcceptedUntil = now.Add(overlap)
				r.Old = *k
			}
		}
		if err := a.addSigningKey(s, role); err != nil {
			return err
		}
		r.New = s.Signing[len(s.Signing)-1]
		for _, c := range s.Issued {
			if c.Signer == old && c.Status(now) == "valid" {
				r.Replace = append(r.Replace, c)
			}
		}
		a.retire(s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// retire removes the signing keys whose overlap has ended.
func (a *Authority) retire(s *state) {
	now := a.now()
	s.Signing = slices.DeleteFunc(s.Signing, func(k SigningKey) bool {
		return !k.AcceptedUntil.IsZero() && !now.Before(k.AcceptedUntil)
	})
}

// SigningKeys returns the signing keys that servers accept, in the order in which they were made.
func (a *Authority) SigningKeys() ([]SigningKey, error) {
	s, err := a.load()
	if err != nil {
		return nil, err
	}
	return s.Signing, nil
}
