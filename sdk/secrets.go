package sdk

import (
	"context"
	"iter"
	"maps"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
	"github.com/boxfleet/boxfleet/spec"
)

// SecretUse gives a secret of the tenant to commands, as a file below /run/secrets or as an environment variable.
type SecretUse = protocol.SecretUse

// SecretInfo describes a secret without its value.
type SecretInfo = protocol.SecretInfo

// SecretVersion describes one version of a secret.
type SecretVersion = protocol.SecretVersion

// Sealed is a value that only the fleet can open. [Client.Seal] makes it. Reads show *** in its place.
type Sealed = protocol.Sealed

// Secrets stores the secrets of the client's tenant. A value is sealed before it leaves this process; only
// coordinators, and the host that runs a sandbox with the secret, can read it. Nobody can read it back through the
// fleet.
type Secrets struct{ client *Client }

// Secrets gives access to the calls about secrets.
func (c *Client) Secrets() *Secrets { return &Secrets{c} }

// Set stores the next version of a secret: 1 to 65,536 bytes. The name has the form of an id. The result has the new
// version alone. Sandboxes that run already keep the version that they got.
//
// If ctx ends first, the version may be stored. Errors: invalid_argument naming the field; failed_precondition with
// reason no_fleet_key or no_credentials if the fleet keeps no secrets; resource_exhausted if the tenant has 1000
// secrets; unavailable if no coordinator is running.
func (s *Secrets) Set(ctx context.Context, name string, value []byte) (*SecretInfo, error) {
	if err := protocol.ValidateSecretName("name", name); err != nil {
		return nil, err
	}
	if n := len(value); n == 0 || n > protocol.MaxSecretValue {
		return nil, protocol.Invalid("value", "must have 1 to %d bytes, got %d", protocol.MaxSecretValue, n)
	}
	c := s.client
	sealed, err := c.seal(ctx, seal.Secret(c.tenant, name), value)
	if err != nil {
		return nil, err
	}
	info, err := c.reads.SetSecret(ctx, name, sealed)
	return info, failed(ctx, err, "set secret "+name)
}

// List reads the tenant's secrets, sorted by name, without values. The sequence ends after the first error. Error:
// unavailable if no coordinator is running.
func (s *Secrets) List(ctx context.Context) iter.Seq2[*SecretInfo, error] {
	return pages("", func(page string) (*Page[*SecretInfo], error) {
		reply, err := s.client.query(ctx, protocol.EndpointSecrets, protocol.Query{Page: page})
		if err != nil {
			return nil, err
		}
		return &Page[*SecretInfo]{Items: reply.Secrets, Next: reply.Next}, nil
	})
}

// Remove removes a secret with all its versions. Sandboxes that run already keep the value. A secret that is set again
// continues its version numbers. Errors: not_found; those of [Secrets.Set].
func (s *Secrets) Remove(ctx context.Context, name string) error {
	if err := protocol.ValidateSecretName("name", name); err != nil {
		return err
	}
	return failed(ctx, s.client.reads.RemoveSecret(ctx, name), "remove secret "+name)
}

// Seal seals the value of an environment variable, for the field SensitiveEnv of a spec, a service or an exec. The
// sealed value opens only for this tenant and this variable. [WithSensitiveEnv] is simpler where it applies. Errors:
// invalid_argument; failed_precondition with reason no_fleet_key or no_credentials; unavailable.
func (c *Client) Seal(ctx context.Context, variable, value string) (Sealed, error) {
	if len(value) > protocol.MaxSecretValue {
		return nil, protocol.Invalid("value", "has %d bytes, at most %d are allowed", len(value), protocol.MaxSecretValue)
	}
	return c.seal(ctx, seal.Variable(c.tenant, variable), []byte(value))
}

// SealDocument returns the spec of a document with the values of its sensitive variables sealed. It does not change the
// document. Errors: those of [Client.Seal].
func (c *Client) SealDocument(ctx context.Context, d *spec.Document) (SandboxSpec, error) {
	return d.Sealed(func(name, value string) (Sealed, error) { return c.Seal(ctx, name, value) })
}

func (c *Client) seal(ctx context.Context, purpose seal.Purpose, value []byte) (Sealed, error) {
	key, err := c.reads.FleetKey(ctx)
	if err != nil {
		return nil, failed(ctx, err, "ask for the fleet's key")
	}
	return seal.To(key, purpose, value)
}

// sealEnv adds the values of [WithSensitiveEnv] to the sealed values of a spec. It does not change the given map.
func (s *settings) sealEnv(ctx context.Context, c *Client, sealed map[string]Sealed) (map[string]Sealed, error) {
	if len(s.sensitive) == 0 {
		return sealed, nil
	}
	all := maps.Clone(sealed)
	if all == nil {
		all = map[string]Sealed{}
	}
	for name, value := range s.sensitive {
		var err error
		if all[name], err = c.Seal(ctx, name, value); err != nil {
			e := *protocol.AsError(err)
			if e.Field == "value" {
				e.Field = "spec.sensitive_env." + name
			}
			return nil, &e
		}
	}
	return all, nil
}
