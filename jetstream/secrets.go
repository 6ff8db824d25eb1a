package jetstream

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

// Secrets stores the sealed values of secrets, and carries requests for secrets and values. It never sees a value.
//
// The bucket has one key for each secret. Each message of the key is one version, and the bucket keeps the newest
// versions. The marker of a removed secret has the number of the last version, so that the numbers continue. The number
// of a version is never larger than its revision.
type Secrets struct {
	*streams

	writers *Writers

	mu  sync.Mutex
	key *seal.Key // key of this process, to which answers are sealed; nil until first used
}

// secretRecord is a message of the bucket.
type secretRecord struct {
	Version int    `json:"v"`
	Number  uint64 `json:"number"`           // number of the version, or of the last version if the secret was removed
	Sealed  []byte `json:"sealed,omitempty"` // empty if the secret was removed
	Size    int    `json:"size,omitempty"`   // bytes of the value
	Actor   string `json:"actor,omitempty"`
}

// SecretChange is one message of the bucket of secrets, without the sealed value.
type SecretChange struct {
	Tenant, Name string
	Removed      bool
	Version      protocol.SecretVersion // if Removed: only the number of the last version
	Hash         protocol.Hash          // hash of the sealed value
	Revision     uint64
}

func (s *Secrets) bucket() kv { return s.kv(protocol.BucketSecrets) }

func secretKey(tenant, name string) string { return tenant + "." + name }

// FollowSecrets calls handle for each stored version and removal of a secret, in order, and then for each change, until
// ctx ends. It fails if the bucket lacks changes that were read before ([IsRewound]).
func (s *Secrets) FollowSecrets(ctx context.Context, handle func(SecretChange), caughtUp func()) error {
	b := s.bucket()
	return s.follow(ctx, b.stream(), b.subject("*.*"), 1, func(m *stored) {
		change, err := changeOf(b, m)
		if err != nil {
			s.log.Error("could not decode a version of a secret", "key", b.key(m.subject), "revision", m.sequence,
				"error", err)
		}
		handle(change) // an undecodable version still counts as read
	}, caughtUp)
}

func changeOf(b kv, m *stored) (SecretChange, error) {
	c := SecretChange{Revision: m.sequence, Removed: m.deleted()}
	c.Tenant, c.Name, _ = strings.Cut(b.key(m.subject), ".")
	r := &secretRecord{}
	if err := protocol.Decode(m.data, r); err != nil {
		return c, err
	}
	c.Version.Version = r.Number
	if c.Removed {
		return c, nil
	}
	key, err := seal.KeyOf(r.Sealed)
	c.Version = protocol.SecretVersion{Version: r.Number, Size: r.Size, SetAt: m.time, Actor: r.Actor, Key: key}
	c.Hash = sha256.Sum256(r.Sealed)
	return c, err
}

// SecretsRevision returns the revision of the latest change of a secret.
func (s *Secrets) SecretsRevision(ctx context.Context) (uint64, error) {
	b := s.bucket()
	m, err := s.lastOnSubject(ctx, b.stream(), b.subject("*.*"))
	if protocol.CodeOf(err) == protocol.NotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return m.sequence, nil
}

// PutSecret stores a version of a secret. after is the revision of the secret's last change; 0: it has none. Errors:
// [ErrConflict] if the secret has changed since; resource_exhausted with reason store_full; unavailable.
func (s *Secrets) PutSecret(
	ctx context.Context, tenant, name string, v protocol.SecretVersion, sealed []byte, after uint64,
) (revision uint64, err error) {
	record := &secretRecord{Version: protocol.Version, Number: v.Version, Sealed: sealed, Size: v.Size, Actor: v.Actor}
	return s.bucket().put(ctx, secretKey(tenant, name), protocol.Encode(record), int64(after))
}

// DropSecret removes a secret and its sealed values. last is the number of its last version; after is the revision of
// its last change. Errors: those of PutSecret.
func (s *Secrets) DropSecret(ctx context.Context, tenant, name string, last, after uint64) error {
	m := nats.NewMsg(s.bucket().subject(secretKey(tenant, name)))
	m.Header.Set("KV-Operation", "DEL")
	m.Data = protocol.Encode(&secretRecord{Version: protocol.Version, Number: last})
	revision, err := s.publish(ctx, m, int64(after))
	if err != nil {
		return err
	}
	return s.PurgeSecret(ctx, tenant, name, revision-1)
}

// PurgeSecret removes the changes of a secret up to a revision from the bucket.
func (s *Secrets) PurgeSecret(ctx context.Context, tenant, name string, through uint64) error {
	b := s.bucket()
	return s.purgeThrough(ctx, b.stream(), b.subject(secretKey(tenant, name)), through)
}

// LastSecretChange returns the last change of a secret, or nil if the bucket has none.
func (s *Secrets) LastSecretChange(ctx context.Context, tenant, name string) (*SecretChange, error) {
	b := s.bucket()
	m, err := s.lastOnSubject(ctx, b.stream(), b.subject(secretKey(tenant, name)))
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	change, err := changeOf(b, m)
	return &change, err
}

// SealedSecret reads the sealed value of a version of a secret by its revision. Error: not_found if the version is no
// longer stored.
func (s *Secrets) SealedSecret(ctx context.Context, tenant, name string, revision uint64) ([]byte, error) {
	b := s.bucket()
	m, err := s.nextOnSubject(ctx, b.stream(), b.subject(secretKey(tenant, name)), revision)
	if err != nil {
		return nil, err
	}
	if m.sequence != revision || m.deleted() {
		return nil, protocol.Errorf(protocol.NotFound, "", "revision %d is no longer stored", revision)
	}
	r := &secretRecord{}
	err = protocol.Decode(m.data, r)
	return r.Sealed, err
}
