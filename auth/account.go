package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// name is the name of the operator and of the account of the streams, as servers and tools show it.
const name = "boxfleet"

// signOperator signs the operator and the system account with the operator's key.
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

// signAccounts signs each account with its signing keys, its revocations and the subjects that it shares. A stored
// account with the same content is not signed again.
func (a *Authority) signAccounts(s *state) error {
	signed := make([]*jwt.AccountClaims, len(s.Accounts))
	for i, of := range s.Accounts {
		var err error
		if signed[i], err = s.claims(of, a.now()); err != nil {
			return err
		}
	}
	streams, exported := signed[0], map[rights.Share]bool{}
	streams.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
	}
	for i, of := range s.Accounts {
		for _, share := range of.Account.Shared() {
			if share.IsOwn() {
				export(signed[i], share)
				for k, to := range s.Accounts {
					if share.Imports(to.Account, of.Account) {
						importFrom(signed[i], signed[k], share)
					}
				}
				continue
			}
			if !exported[share] {
				export(streams, share)
			}
			exported[share] = true
			importFrom(streams, signed[i], share)
		}
	}
	for i := range s.Accounts {
		if err := a.signAccount(s, signed[i], &s.Accounts[i].JWT); err != nil {
			return err
		}
	}
	return nil
}

func kindOf(share rights.Share) jwt.ExportType {
	switch share.Way {
	case rights.Heard, rights.Told, rights.Shown:
		return jwt.Stream
	}
	return jwt.Service
}

// answeredWithin is how long a server remembers that a message from another account awaits its answer. Each unanswered
// message takes about a kilobyte of the server's memory for this time. No caller waits longer than 10 s for an answer.
const answeredWithin = 30 * time.Second

// streamsAnsweredWithin is the same for requests for streams, whose callers may wait longer.
const streamsAnsweredWithin = protocol.MaxStreamTimeout + answeredWithin

func export(from *jwt.AccountClaims, share rights.Share) {
	e := &jwt.Export{Name: share.Subject, Subject: jwt.Subject(share.Subject), Type: kindOf(share)}
	switch share.Way {
	case rights.AskedFor:
		e.ResponseType = jwt.ResponseTypeStream
	case rights.Asked:
		e.ResponseThreshold = answeredWithin
	case rights.Answers:
		e.ResponseThreshold = streamsAnsweredWithin
	}
	from.Exports.Add(e)
}

func importFrom(from, to *jwt.AccountClaims, share rights.Share) {
	to.Imports.Add(&jwt.Import{
		Name: share.Subject, Subject: jwt.Subject(share.Subject), Type: kindOf(share), Account: from.Subject,
	})
}

// signAccount signs an account, unless the stored account has the same content.
func (a *Authority) signAccount(s *state, account *jwt.AccountClaims, stored *string) error {
	var issuedAt int64
	if *stored != "" {
		old, err := jwt.DecodeAccountClaims(*stored)
		if err != nil {
			return internal("read an account", err)
		}
		same, err := sameAccount(old, account)
		if same || err != nil {
			return err
		}
		issuedAt = old.IssuedAt
	}
	wrong := jwt.CreateValidationResults()
	account.Validate(wrong)
	if wrong.IsBlocking(true) {
		return internal("sign an account", errors.Join(wrong.Errors()...))
	}
	pair, err := a.key(s.Operator)
	if err != nil {
		return err
	}
	defer pair.Wipe()
	// Servers prefer the version of an account that was signed later, so a server that missed a change gets the newest
	// version from the other servers. The time of signing is in whole seconds, so each change needs a later second.
	next := time.Unix(issuedAt+1, 0)
	if wait := time.Until(next); wait > clockWithin {
		return protocol.Errorf(protocol.FailedPrecondition, "", "this machine's clock is before %s, when the authority was "+
			"last changed, so servers would not take a change: set the clock", next.UTC().Format(time.RFC3339))
	} else if wait > 0 {
		time.Sleep(wait)
	}
	text, err := account.Encode(pair)
	if err != nil {
		return internal("sign an account", err)
	}
	if len(text) > accountMost {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge, "the account would have %d KiB with %d "+
			"revocations, and servers take at most %d KiB: replace a signing key, which ends the revocations of its role: "+
			"boxfleet auth rotate ROLE --overlap 0s", len(text)>>10, len(account.Revocations), accountMost>>10)
	}
	*stored = text
	return nil
}

const (
	// accountMost is the size limit of a signed account. Servers receive an account as one message of at most 1 MiB.
	accountMost = 1000 << 10
	// clockWithin is the longest wait until the clock has passed the time of the last change.
	clockWithin = 10 * time.Second
	// revokedStays is how long a revocation is kept after the credentials have expired, because the clocks of servers
	// may be slow.
	revokedStays = 24 * time.Hour
)

// claims returns an account with the signing keys and revocations of its roles. It leaves out revocations of
// credentials that servers refuse anyway, because an account has room for only about ten thousand revocations.
func (s *state) claims(of account, now time.Time) (*jwt.AccountClaims, error) {
	account := jwt.NewAccountClaims(of.Key)
	account.Name = accountName(of.Account)
	account.Limits.DisallowBearer = true
	has := func(r rights.Role) bool { return r.Account() == of.Account }
	for _, k := range s.Signing {
		if !has(k.Role) {
			continue
		}
		set, err := rights.Template(k.Role)
		if err != nil {
			return nil, err
		}
		scope := jwt.NewUserScope()
		scope.Key, scope.Role = k.Key, string(k.Role)
		scope.Template.Permissions = jwt.Permissions{
			Pub: jwt.Permission{Allow: set.Publish}, Sub: jwt.Permission{Allow: set.Subscribe},
		}
		scope.Template.AllowedConnectionTypes = connections
		account.SigningKeys.AddScopedSigner(scope)
	}
	for _, c := range s.Issued {
		expired := !c.Expires.IsZero() && now.After(c.Expires.Add(revokedStays))
		if has(c.Role) && !c.Revoked.IsZero() && s.accepts(c.Signer) && !expired {
			account.RevokeAt(c.Key, c.Revoked)
		}
	}
	return account, nil
}

// connections are the kinds of connections that credentials are accepted on. A leaf node would learn the subscriptions
// of all clients in its account, and could let its own clients into the account. MQTT would make streams that Boxfleet
// does not know.
var connections = jwt.StringList{jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket, jwt.ConnectionTypeInProcess}

// sameAccount reports whether two accounts have the same content. It ignores the time of signing.
func sameAccount(a, b *jwt.AccountClaims) (bool, error) {
	texts := [2][]byte{}
	for i, account := range []*jwt.AccountClaims{a, b} {
		content := jwt.Account{
			Imports: account.Imports, Exports: account.Exports, Limits: account.Limits, SigningKeys: account.SigningKeys,
			Revocations: account.Revocations,
		}
		sort.Sort(content.Imports)
		sort.Sort(content.Exports)
		var err error
		if texts[i], err = json.Marshal(&content); err != nil {
			return false, internal("compare accounts", err)
		}
	}
	return bytes.Equal(texts[0], texts[1]), nil
}

// accountName returns the name of an account as servers and tools show it.
func accountName(a rights.Account) string {
	if a == rights.Streams {
		return name
	}
	return name + "-" + string(a)
}

// accountOf returns the public key of the account that a role belongs to.
func (s *state) accountOf(role rights.Role) string {
	for _, a := range s.Accounts {
		if a.Account == role.Account() {
			return a.Key
		}
	}
	return ""
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
