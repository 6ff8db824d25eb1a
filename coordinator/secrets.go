package coordinator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

// secretsProblem returns why this coordinator cannot serve secrets, or nil. Error: failed_precondition.
func (c *coordinator) secretsProblem() *protocol.Error {
	switch {
	case !c.conn.HasKey():
		return jetstream.ErrNoCredentials("coordinator")
	case len(c.cfg.SecretsKeys) == 0:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoFleetKey,
			"coordinator %s has no fleet key for secrets: name the file with the key, which boxfleet auth init makes, in "+
				"the setting coordinator.secrets_key of every coordinator", c.cfg.Name)
	}
	return nil
}

// keyless reports whether this coordinator lacks the fleet key. Another coordinator may have it.
func keyless(c *coordinator) bool {
	why := c.secretsProblem()
	return why != nil && why.Reason == protocol.ReasonNoFleetKey
}

// fleetKeySaid returns what the coordinator says about its fleet key, see [protocol.CoordinatorInfo].
func fleetKeySaid(c *coordinator) string {
	return cmp.Or(c.cfg.SecretsKeys.Public(), protocol.NoFleetKey)
}

// serveSecrets answers requests to set and remove secrets, and the questions of workers for values. A coordinator
// without the fleet key takes none of them, because each goes to one coordinator only.
func (c *coordinator) serveSecrets(ctx context.Context, serving func()) error {
	if keyless(c) {
		serving()
		<-ctx.Done()
		return ctx.Err()
	}
	return c.conn.ServeSecrets(ctx, jetstream.SecretAnswers{Request: c.decideSecret, Unseal: c.unseal}, serving)
}

// decideSecret sets or removes a secret.
func (c *coordinator) decideSecret(
	ctx context.Context, of jetstream.SecretRequestOf, r *protocol.SecretRequest,
) (*protocol.Reply, error) {
	if err := protocol.ValidateID("tenant", of.Tenant); err != nil {
		return nil, err
	}
	if err := protocol.ValidateSecretName("name", of.Name); err != nil {
		return nil, err
	}
	if of.User != "" {
		if err := protocol.ValidateUser("user", of.User); err != nil {
			return nil, err
		}
	}
	if why := c.secretsProblem(); why != nil {
		return nil, why
	}
	switch of.Verb {
	case protocol.SecretSet:
		return c.setSecret(ctx, of, r.Sealed)
	case protocol.SecretRemove:
		if len(r.Sealed) > 0 {
			return nil, protocol.Invalid("sealed", "is not used by %s", of.Verb)
		}
		return &protocol.Reply{}, c.removeSecret(ctx, of)
	}
	return nil, protocol.Invalid("verb", "must be %s or %s, got %.40q", protocol.SecretSet, protocol.SecretRemove, of.Verb)
}

// setSecret stores a sealed value as the next version of a secret, unless a stored version has the same sealed bytes:
// then the request is a repeated one. If two requests compete, the bucket accepts one of them, and the other request
// gets the next number.
func (c *coordinator) setSecret(
	ctx context.Context, of jetstream.SecretRequestOf, sealed []byte,
) (*protocol.Reply, error) {
	size, err := c.checkSealedSecret(of, sealed)
	if err != nil {
		return nil, err
	}
	hash := protocol.Hash(sha256.Sum256(sealed))
	for {
		if err := c.secrets.current(ctx, c.conn); err != nil {
			return nil, err
		}
		s := c.secrets.find(of.Tenant, of.Name)
		for _, v := range s.versions {
			if v.hash == hash {
				return secretReply(of.Name, v.SecretVersion, false), nil
			}
		}
		if err := c.secrets.room(of.Tenant, s, size); err != nil {
			return nil, err
		}
		if s.last == 0 {
			if err := c.makeRoomForName(ctx, of.Tenant); err != nil {
				return nil, err
			}
		}
		v := protocol.SecretVersion{Version: c.secrets.next(of.Tenant, s), Size: size, Actor: of.User}
		revision, err := c.conn.PutSecret(ctx, of.Tenant, of.Name, v, sealed, s.revision)
		if errors.Is(err, jetstream.ErrConflict) { // another request was faster, or an earlier attempt of this one
			if err := c.rereadSecret(ctx, of, s.revision); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		c.log.Info("a secret was set", "tenant", of.Tenant, "secret", of.Name, "version", v.Version, "by", of.User)
		if err := c.secrets.current(ctx, c.conn); err != nil { // to learn when the version was stored
			return nil, err
		}
		s = c.secrets.find(of.Tenant, of.Name)
		for _, stored := range s.versions {
			if stored.revision == revision {
				v = stored.SecretVersion
			}
		}
		return secretReply(of.Name, v, true), nil
	}
}

// makeRoomForName makes room for a new name if the tenant has used as many names as the bucket keeps for one tenant. It
// deletes the entry of the secret that the tenant removed first.
func (c *coordinator) makeRoomForName(ctx context.Context, tenant string) error {
	for {
		oldest, ok := c.secrets.excess(tenant)
		if !ok {
			return nil
		}
		if err := c.conn.PurgeSecret(ctx, tenant, oldest.name, oldest.revision); err != nil {
			return err
		}
		c.secrets.forget(tenant, oldest.name, oldest.revision)
	}
}

// rereadSecret corrects the table after the bucket refused a change because it does not have the revision that the
// table has. This coordinator may not have read a later change yet, or another coordinator may have purged the marker
// of a removed secret, which sends no message.
func (c *coordinator) rereadSecret(ctx context.Context, of jetstream.SecretRequestOf, revision uint64) error {
	change, err := c.conn.LastSecretChange(ctx, of.Tenant, of.Name)
	if err != nil {
		return err
	}
	if change == nil {
		c.secrets.forget(of.Tenant, of.Name, revision)
	} else {
		c.secrets.restore(*change)
	}
	return nil
}

// checkSealedSecret opens a sealed value, and returns its size.
func (c *coordinator) checkSealedSecret(of jetstream.SecretRequestOf, sealed []byte) (int, error) {
	if len(sealed) > protocol.MaxSealedValue {
		return 0, &protocol.Error{Code: protocol.InvalidArgument, Reason: protocol.ReasonTooLarge, Field: "value",
			Message: fmt.Sprintf("must be at most %s", protocol.Bytes(protocol.MaxSecretValue))}
	}
	value, err := c.cfg.SecretsKeys.Open(sealed, seal.Secret(of.Tenant, of.Name))
	if err != nil {
		return 0, inField("value", err)
	}
	defer clear(value)
	if n := len(value); n == 0 || n > protocol.MaxSecretValue {
		return 0, protocol.Invalid("value", "must have 1 to %d bytes, got %d", protocol.MaxSecretValue, n)
	}
	return len(value), nil
}

// inField returns an error that names the given field.
func inField(field string, err error) error {
	e := *protocol.AsError(err)
	e.Field = field
	return &e
}

func secretReply(name string, v protocol.SecretVersion, changed bool) *protocol.Reply {
	return &protocol.Reply{Changed: changed,
		Secret: &protocol.SecretInfo{Name: name, Versions: []protocol.SecretVersion{v}}}
}

// removeSecret removes a secret. Its number of versions stays known. Error: not_found if the secret does not exist.
func (c *coordinator) removeSecret(ctx context.Context, of jetstream.SecretRequestOf) error {
	for {
		if err := c.secrets.current(ctx, c.conn); err != nil {
			return err
		}
		s := c.secrets.find(of.Tenant, of.Name)
		if len(s.versions) == 0 {
			if s.last > 0 { // the coordinator that removed it may have died before it removed the sealed values
				if err := c.conn.PurgeSecret(ctx, of.Tenant, of.Name, s.revision-1); err != nil {
					return err
				}
			}
			return protocol.Errorf(protocol.NotFound, protocol.ReasonSecretMissing, "there is no secret %s", of.Name)
		}
		err := c.conn.DropSecret(ctx, of.Tenant, of.Name, s.last, s.revision)
		if errors.Is(err, jetstream.ErrConflict) {
			if err := c.rereadSecret(ctx, of, s.revision); err != nil {
				return err
			}
			continue
		}
		if err == nil {
			c.log.Info("a secret was removed", "tenant", of.Tenant, "secret", of.Name, "by", of.User)
		}
		return err
	}
}

// refuseSecrets returns why a spec of a tenant cannot get the values that its fields stand for. It is called before the
// spec is accepted. A secret may still be removed before a worker asks for it. A key that this coordinator lacks is no
// reason: any coordinator may decide the request, and the worker gets the values from one that has the key. err means
// that the answer is unknown.
func (c *coordinator) refuseSecrets(ctx context.Context, tenant string, fields []protocol.SecretField) (
	refused, err error) {
	if len(fields) == 0 {
		return nil, nil
	}
	if why := c.secretsProblem(); why != nil && !keyless(c) {
		return inField("spec."+fields[0].Field, why), nil
	}
	read, masked := false, map[string]int{} // bytes to mask, by the part of the spec that a container has
	for _, f := range fields {
		if f.Use == nil {
			value, err := c.openVariable(tenant, f)
			clear(value)
			if err != nil && protocol.AsError(err).Reason != protocol.ReasonNoFleetKey {
				return inField("spec."+f.Field, err), nil
			}
			continue
		}
		if !read {
			if err := c.secrets.current(ctx, c.conn); err != nil {
				return nil, err
			}
			read = true
		}
		v, err := c.secretVersion(tenant, f.Use)
		if err != nil {
			e := *err
			e.Code, e.Field = protocol.FailedPrecondition, "spec."+f.Field
			return &e, nil
		}
		if f.Use.Mask {
			of, _, _ := strings.Cut(f.Field, "secrets[")
			if masked[of] += v.Size; masked[of] > protocol.MaxMaskedBytes {
				return protocol.ErrTooManyMasked("spec." + f.Field), nil
			}
		}
	}
	return nil, nil
}

// openVariable returns the value of a sensitive variable.
func (c *coordinator) openVariable(tenant string, f protocol.SecretField) ([]byte, error) {
	if string(f.Sealed) == protocol.Masked {
		return nil, protocol.Invalid("", "has no value: reads show %s in place of a sensitive value, so give the value again",
			protocol.Masked)
	}
	value, err := c.cfg.SecretsKeys.Open(f.Sealed, seal.Variable(tenant, f.Variable))
	if err == nil {
		err = checkVariable(value)
	}
	return value, err
}

// checkVariable checks that a value can be the value of an environment variable.
func checkVariable(value []byte) error {
	if strings.ContainsRune(string(value), 0) {
		return protocol.Invalid("", "has a NUL byte, which no environment variable can have")
	}
	return nil
}

// secretVersion returns the version of a secret that a spec names. Error: not_found with reason secret_missing.
func (c *coordinator) secretVersion(tenant string, u *protocol.SecretUse) (storedVersion, *protocol.Error) {
	s := c.secrets.find(tenant, u.Name)
	if len(s.versions) == 0 {
		return storedVersion{}, protocol.Errorf(protocol.NotFound, protocol.ReasonSecretMissing,
			"the tenant has no secret %s: set it with boxfleet secret set %s", u.Name, u.Name)
	}
	v, ok := s.version(u.Version)
	if !ok {
		return storedVersion{}, protocol.Errorf(protocol.NotFound, protocol.ReasonSecretMissing,
			"secret %s has no version %d: it has %d to %d", u.Name, u.Version,
			s.versions[len(s.versions)-1].Version, s.versions[0].Version)
	}
	return v, nil
}

// fleetKey answers with the public key to which clients seal values.
func (rd *reader) fleetKey(context.Context, string, *protocol.Query) (*protocol.Reply, error) {
	if why := rd.secretsProblem(); why != nil {
		return nil, why
	}
	return &protocol.Reply{FleetKey: rd.cfg.SecretsKeys.Public()}, nil
}

// listSecrets answers with a page of the tenant's secrets, by name, without values.
func (rd *reader) listSecrets(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	if err := rd.secrets.current(ctx, rd.conn); err != nil {
		return nil, err
	}
	order := func(a, b *protocol.SecretInfo) int { return strings.Compare(a.Name, b.Name) }
	token := func(s *protocol.SecretInfo) string { return fmt.Sprintf("%020d.%s", 0, s.Name) }
	page, next, err := paginate(rd.secrets.of(tenant), order, token, encoded, q)
	return &protocol.Reply{Secrets: page, Next: next}, err
}
