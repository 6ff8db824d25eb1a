package jetstream

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

// Unseal asks the coordinators for the value behind a field of a spec, until one of them answers or ctx ends. The
// question names the sandbox, its generation, the exec and the field; Unseal sets the rest. The worker must have
// registered its key. Nobody but this process can open the answer.
//
// Errors: not_found if the secret or the version was removed, or the spec has no such field; permission_denied if the
// sandbox is not assigned to this worker's host, or now has another generation; failed_precondition if the sandbox or
// the exec has ended, or the deployment has no credentials; unavailable with reason no_fleet_key if the coordinators
// lack the key that opens the value; unavailable and deadline_exceeded.
func (s *Secrets) Unseal(ctx context.Context, question protocol.UnsealQuery) (*protocol.UnsealedValue, error) {
	key, err := s.ownKey()
	if err != nil {
		return nil, err
	}
	question.Version, question.Key = protocol.Version, key.Public()
	for pause := backoff.New(askFirst, askMost); ; {
		now := s.writers.signs.Load()
		if now == nil || now.signer == nil {
			return nil, ErrNoCredentials("worker")
		}
		answer, err := s.askToUnseal(ctx, now, question)
		again := isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded) ||
			err != nil && protocol.AsError(err).Reason == protocol.ReasonTooManyReads ||
			err != nil && s.writers.hasNewKey(now) // the server refuses the old key until it is replaced
		if again && pause.Wait(ctx) {
			continue
		}
		if err != nil {
			return nil, err
		}
		text, err := key.Open(answer, seal.Answer(&question))
		if err != nil {
			return nil, protocol.Errorf(protocol.Internal, "", "could not open the sealed answer for %s: %v",
				question.Field, err)
		}
		defer clear(text)
		value := &protocol.UnsealedValue{}
		return value, protocol.Decode(text, value)
	}
}

// ownKey returns the key of this process. It is in memory only: after a restart, the worker asks again with another
// one.
func (s *Secrets) ownKey() (*seal.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key != nil {
		return s.key, nil
	}
	var err error
	s.key, err = seal.New()
	return s.key, err
}

func (s *Secrets) askToUnseal(ctx context.Context, now *writing, q protocol.UnsealQuery) ([]byte, error) {
	q.Signature = ed25519.Sign(now.signer.key, protocol.UnsealText(s.Deployment(), &q))
	m := nats.NewMsg(protocol.UnsealSubject(now.Name, now.Host, now.signer.public))
	m.Data = protocol.Encode(&q)
	answer, err := s.ask(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, protocol.Errorf(protocol.Unavailable, "", "no coordinator that has a fleet key for secrets answers: "+
			"boxfleet doctor shows the coordinators that run, and each needs the key file in coordinator.secrets_key")
	}
	if err != nil {
		return nil, translate(causeOf(ctx, err), "ask for a secret")
	}
	reply := &protocol.UnsealReply{}
	if err := protocol.Decode(answer.Data, reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply.Sealed, nil
}

// HasKey reports whether the connection has registered a key, as [Writers.RegisterWriter] does. Without credentials
// there is no key, and nobody's identity is proven.
func (w *Writers) HasKey() bool { return w.key() != nil }

// ErrNoCredentials is the error for secrets in a deployment without credentials. It names the process that has none.
func ErrNoCredentials(process string) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoCredentials,
		"the %s has no credentials, and without them no process can prove its name: make credentials for every process "+
			"with boxfleet auth add, or run boxfleet up without --insecure", process)
}

// keyWithin is how long a client repeats its question while the coordinators that answer lack the fleet key. A
// coordinator that has the key may be starting.
const keyWithin = 2 * time.Second

// keyPause is the pause before a client asks again because the coordinator that answered lacks the key. The server
// chooses the coordinator that answers by chance. Many short pauses find the only one that has the key; a few long ones
// may miss it.
const keyPause = 25 * time.Millisecond

// FleetKey returns the public key to which clients seal values. Only coordinators that have the key answer. Errors:
// failed_precondition with reason no_fleet_key or no_credentials if the fleet keeps no secrets; unavailable.
func (t *TenantReads) FleetKey(ctx context.Context) (string, error) {
	giveUp := time.Now().Add(keyWithin)
	reply, err := t.Query(ctx, protocol.EndpointFleetKey, protocol.Query{})
	for err != nil {
		err = t.orNoFleetKey(ctx, err)
		if protocol.AsError(err).Reason != protocol.ReasonNoFleetKey || time.Now().After(giveUp) ||
			!backoff.Sleep(ctx, keyPause) {
			return "", err
		}
		reply, err = t.Query(ctx, protocol.EndpointFleetKey, protocol.Query{})
	}
	if err := seal.ValidateKey(reply.FleetKey); err != nil {
		return "", undecodable("the answer of %q has no key", protocol.EndpointFleetKey)
	}
	return reply.FleetKey, nil
}

// orNoFleetKey returns the error of a question that only coordinators with the fleet key answer. If nobody answers it,
// orNoFleetKey asks for a ping, which every coordinator answers: a coordinator without the key says so.
func (t *TenantReads) orNoFleetKey(ctx context.Context, err error) error {
	if e := protocol.AsError(err); e.Code != protocol.Unavailable || e.Reason != "" {
		return err
	}
	reply, silent := t.Query(ctx, protocol.EndpointPing, protocol.Query{})
	if silent != nil || reply.Ping == nil || reply.Ping.FleetKey != protocol.NoFleetKey {
		return err
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoFleetKey,
		"no coordinator that has a fleet key for secrets answers, and coordinator %s has no such key: in the configuration "+
			"of every coordinator, set coordinator.secrets_key to the key file that boxfleet auth init makes",
		reply.Ping.Coordinator)
}

// SetSecret stores a sealed value as the next version of a secret. Setting the same sealed bytes again makes no new
// version. Errors: invalid_argument; failed_precondition with reason no_fleet_key or no_credentials;
// resource_exhausted; unavailable.
func (t *TenantReads) SetSecret(ctx context.Context, name string, sealed []byte) (*protocol.SecretInfo, error) {
	reply, err := t.askAboutSecret(ctx, name, protocol.SecretSet, &protocol.SecretRequest{Sealed: sealed})
	if err != nil {
		return nil, err
	}
	if reply.Secret == nil {
		return nil, undecodable("the answer to a secret is empty")
	}
	return reply.Secret, nil
}

// RemoveSecret removes a secret with all its versions. Errors: not_found; those of SetSecret.
func (t *TenantReads) RemoveSecret(ctx context.Context, name string) error {
	_, err := t.askAboutSecret(ctx, name, protocol.SecretRemove, &protocol.SecretRequest{})
	return err
}

// errNoSecretService is the error while no coordinator subscribes to requests for secrets: none runs, or the one that
// runs is still starting.
var errNoSecretService = protocol.Errorf(protocol.Unavailable, "", "no coordinator answers requests for secrets")

// askAboutSecret sends a request for a secret and waits for its answer. While coordinators have too many requests, or
// none answers yet, it asks again, for up to the connection's timeout. If the coordinator that answers lacks the key,
// another one may have it, so askAboutSecret asks again for up to keyWithin.
func (t *TenantReads) askAboutSecret(
	ctx context.Context, name, verb string, r *protocol.SecretRequest,
) (*protocol.Reply, error) {
	c := t.queries.core
	r.Version = protocol.Version
	m := nats.NewMsg(protocol.SecretSubject(t.tenant, cmp.Or(t.queries.user, protocol.NoUser), name, verb))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(r)
	if most := c.nc.MaxPayload(); int64(m.Size()) > most {
		return nil, &protocol.Error{Code: protocol.InvalidArgument, Reason: protocol.ReasonTooLarge, Field: "value",
			Message: "with its seal, the value exceeds the NATS server's max_payload of " + protocol.Bytes(most).String() +
				": set a smaller value, or raise max_payload"}
	}
	began, pause := time.Now(), backoff.New(busyPause, busyMost)
	for {
		reply, err := t.askOnceAboutSecret(ctx, m)
		within, busy := t.queries.timeout, false
		switch {
		case errors.Is(err, errNoSecretService):
			if err = t.orNoFleetKey(ctx, err); protocol.AsError(err).Reason == protocol.ReasonNoFleetKey {
				within = keyWithin
			}
			busy = true
		case err != nil && protocol.AsError(err).Reason == protocol.ReasonNoFleetKey:
			if time.Since(began) > keyWithin || !backoff.Sleep(ctx, keyPause) {
				return reply, err
			}
			continue
		case err != nil:
			busy = protocol.AsError(err).Reason == protocol.ReasonTooManyReads
		}
		if !busy || time.Since(began) > within || !pause.Wait(ctx) {
			return reply, err
		}
	}
}

func (t *TenantReads) askOnceAboutSecret(ctx context.Context, m *nats.Msg) (*protocol.Reply, error) {
	answer, err := t.queries.ask(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, errNoSecretService
	}
	if err != nil {
		return nil, translate(causeOf(ctx, err), "ask for a secret")
	}
	reply := &protocol.Reply{}
	if err := protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply, nil
}
