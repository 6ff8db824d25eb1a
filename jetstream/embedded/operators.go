package embedded

import (
	"maps"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/protocol"
)

// Operators is what a server in operator mode trusts. It contains no secrets.
type Operators struct {
	Operator string            // the operator as a JWT
	System   string            // public key of the system account
	Streams  string            // public key of the account with the streams; see [Config.Operators]
	Accounts map[string]string // all accounts, including the system account, as JWTs by public key

	// Dir is the directory in which the server stores accounts, so that `boxfleet auth push` can change them. The
	// server stores Accounts there if they are newer. If Dir is empty, accounts change only through
	// [Server.SetAccount].
	Dir string
}

// apply checks the operator and its accounts, and puts them into a server's options. A nil o leaves the options alone.
// Error: invalid_argument with field token, operator or accounts.
func (o *Operators) apply(opts *server.Options) error {
	if o == nil {
		return nil
	}
	if opts.Authorization != "" {
		return protocol.Invalid("token", "must be empty for a server in operator mode")
	}
	operator, err := jwt.DecodeOperatorClaims(o.Operator)
	if err != nil {
		return protocol.Invalid("operator", "is not the JWT of an operator: %v", err)
	}
	resolver, err := o.resolver()
	if err != nil {
		return err
	}
	for key, text := range o.Accounts {
		if err := checkAccount(operator, key, text); err != nil {
			return err
		}
		if err := resolver.Store(key, text); err != nil {
			return protocol.Errorf(protocol.Internal, "", "store account %s in %s: %v", key, o.Dir, err)
		}
	}
	if o.Accounts[o.System] == "" {
		return protocol.Invalid("accounts", "lack the system account %.60q", o.System)
	}
	opts.TrustedOperators = []*jwt.OperatorClaims{operator}
	opts.SystemAccount, opts.AccountResolver = o.System, resolver
	return nil
}

func (o *Operators) resolver() (server.AccountResolver, error) {
	if o.Dir == "" {
		return &server.MemAccResolver{}, nil
	}
	resolver, err := server.NewDirAccResolver(o.Dir, 0, 0, server.NoDelete)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "open the directory of accounts %s: %v", o.Dir, err)
	}
	return resolver, nil
}

// checkAccount refuses an account that the operator did not sign, or that has another key.
func checkAccount(operator *jwt.OperatorClaims, key, text string) error {
	account, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		return protocol.Invalid("accounts", "%.60q is not the JWT of an account: %v", key, err)
	}
	if account.Subject != key {
		return protocol.Invalid("accounts", "the JWT of account %.60q is of account %s", key, account.Subject)
	}
	if !operator.DidSign(account) {
		return protocol.Invalid("accounts", "the operator did not sign account %s", key)
	}
	return nil
}

// SetAccount gives a server in operator mode a changed account. The server ends the connections of revoked credentials
// at once. It still has the changed account after [Server.Restart]. Errors: invalid_argument with field accounts if the
// operator did not sign the account or if the server has no account with its key; failed_precondition without operator
// mode.
func (s *Server) SetAccount(text string) error {
	o := s.config.Operators
	if o == nil {
		return protocol.Errorf(protocol.FailedPrecondition, "", "the server is not in operator mode")
	}
	operator, err := jwt.DecodeOperatorClaims(o.Operator)
	if err != nil {
		return protocol.Invalid("operator", "is not the JWT of an operator: %v", err)
	}
	claims, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		return protocol.Invalid("accounts", "not the JWT of an account: %v", err)
	}
	if err := checkAccount(operator, claims.Subject, text); err != nil {
		return err
	}
	if o.Accounts[claims.Subject] == "" {
		return protocol.Invalid("accounts", "the server has no account %s", claims.Subject)
	}
	if err := s.AccountResolver().Store(claims.Subject, text); err != nil {
		return protocol.Errorf(protocol.Internal, "", "store account %s: %v", claims.Subject, err)
	}
	account, err := s.LookupAccount(claims.Subject)
	if err != nil {
		return protocol.Errorf(protocol.Internal, "", "find account %s: %v", claims.Subject, err)
	}
	s.UpdateAccountClaims(account, claims)
	changed := *o
	changed.Accounts = maps.Clone(o.Accounts)
	changed.Accounts[claims.Subject] = text
	s.config.Operators = &changed
	return nil
}
