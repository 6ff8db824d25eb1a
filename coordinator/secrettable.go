package coordinator

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// secretTable has the names and versions of all secrets, without their values. It follows the bucket of secrets.
type secretTable struct {
	mu      sync.Mutex
	secrets map[secretName]*storedSecret
	uses    map[string]secretUse // by tenant
	read    uint64               // revision of the last change that was read
	ready   bool                 // everything stored at the start has been read
	moved   chan struct{}        // closed and replaced after each change of read and ready
}

type secretName struct{ tenant, name string }

// secretUse is how much of the bucket a tenant uses.
type secretUse struct {
	secrets int // number of secrets that exist
	names   int // number of names of existing secrets, and of removed ones that the table still has
	bytes   int // size of the kept versions
}

func (u secretUse) plus(s storedSecret) secretUse {
	if len(s.versions) > 0 {
		u.secrets++
	}
	for _, v := range s.versions {
		u.bytes += v.Size
	}
	return u
}

func (u secretUse) minus(s storedSecret) secretUse {
	of := secretUse{}.plus(s)
	return secretUse{u.secrets - of.secrets, u.names, u.bytes - of.bytes}
}

// storedSecret is a secret that exists or existed.
type storedSecret struct {
	versions []storedVersion // the newest first; empty if the secret was removed
	last     uint64          // number of the last version
	revision uint64          // revision of the last change
}

// storedVersion is a version of a secret.
type storedVersion struct {
	protocol.SecretVersion
	hash     protocol.Hash // hash of the sealed value
	revision uint64
}

func newSecretTable() *secretTable {
	t := &secretTable{moved: make(chan struct{})}
	t.reset()
	return t
}

// follow reads all secrets and follows their changes.
func (t *secretTable) follow(ctx context.Context, conn *jetstream.Conn) error {
	t.reset()
	return conn.FollowSecrets(ctx, t.take, t.caughtUp)
}

func (t *secretTable) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.secrets, t.uses, t.read, t.ready = map[secretName]*storedSecret{}, map[string]secretUse{}, 0, false
}

// take records the next change.
func (t *secretTable) take(c jetstream.SecretChange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.applyLocked(c)
	t.read = c.Revision
	if t.uses[c.Tenant].names > protocol.MaxTenantNames+spareNames { // other coordinators purge without a message
		if oldest := t.oldestRemovedLocked(c.Tenant); oldest.name != "" {
			t.forgetLocked(secretName{c.Tenant, oldest.name}, oldest.revision)
		}
	}
	t.moveLocked()
}

// restore records again that a secret was removed, if the table has forgotten it.
func (t *secretTable) restore(c jetstream.SecretChange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.Removed && c.Revision <= t.read { // take has not yet got a later change
		t.applyLocked(c)
	}
}

func (t *secretTable) applyLocked(c jetstream.SecretChange) {
	k := secretName{c.Tenant, c.Name}
	s, used := t.secrets[k], t.uses[c.Tenant]
	if s == nil {
		s = &storedSecret{}
		t.secrets[k] = s
		used.names++
	}
	used = used.minus(*s)
	s.last, s.revision = max(s.last, c.Version.Version), c.Revision
	if c.Removed {
		s.versions = nil
	} else {
		s.versions = s.with(storedVersion{c.Version, c.Hash, c.Revision}).versions
	}
	t.uses[c.Tenant] = used.plus(*s)
}

// spareNames is by how many names a table exceeds the limit of a tenant before it forgets a removed secret that the
// bucket may still have. Concurrent requests can exceed the limit by a few.
const spareNames = 100

// removedSecret is a secret that was removed, with the revision of its removal.
type removedSecret struct {
	name     string
	revision uint64
}

// excess returns the tenant's secret that was removed first, if the tenant has used as many names as it may. ok is
// false if another name fits.
func (t *secretTable) excess(tenant string) (oldest removedSecret, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.uses[tenant].names < protocol.MaxTenantNames {
		return removedSecret{}, false
	}
	oldest = t.oldestRemovedLocked(tenant)
	return oldest, oldest.name != ""
}

func (t *secretTable) oldestRemovedLocked(tenant string) (oldest removedSecret) {
	for k, s := range t.secrets {
		if k.tenant == tenant && len(s.versions) == 0 && (oldest.name == "" || s.revision < oldest.revision) {
			oldest = removedSecret{k.name, s.revision}
		}
	}
	return oldest
}

// forget removes a removed secret from the table, unless the secret has changed since the revision.
func (t *secretTable) forget(tenant, name string, revision uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(secretName{tenant, name}, revision)
}

func (t *secretTable) forgetLocked(k secretName, revision uint64) {
	s := t.secrets[k]
	if s == nil || s.revision != revision || len(s.versions) > 0 {
		return
	}
	delete(t.secrets, k)
	used := t.uses[k.tenant]
	used.names--
	t.uses[k.tenant] = used
}

// next returns the number of the next version of a secret. Numbers never repeat. If the tenant has used many names, the
// marker of a removed secret may be gone. A new secret then starts with a number that exceeds all earlier revisions,
// and therefore all earlier numbers.
func (t *secretTable) next(tenant string, s storedSecret) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.last == 0 && t.uses[tenant].names >= protocol.MaxTenantNames/2 {
		return t.read + 1
	}
	return s.last + 1
}

func (t *secretTable) caughtUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready = true
	t.moveLocked()
}

func (t *secretTable) moveLocked() {
	close(t.moved)
	t.moved = make(chan struct{})
}

// knowSecretsWithin is how long a request waits until this coordinator has read all changes of the secrets.
const knowSecretsWithin = 2 * time.Second

// current waits until the table has all changes that the bucket has now. Error: unavailable.
func (t *secretTable) current(ctx context.Context, conn *jetstream.Conn) error {
	newest, err := conn.SecretsRevision(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, knowSecretsWithin)
	defer cancel()
	for {
		t.mu.Lock()
		done, moved := t.ready && t.read >= newest, t.moved
		t.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return protocol.Errorf(protocol.Unavailable, "", "this coordinator has not read all secrets yet")
		}
	}
}

// find returns a copy of the entry of a secret. The zero value means that the secret never existed.
func (t *secretTable) find(tenant, name string) storedSecret {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.secrets[secretName{tenant, name}]
	if s == nil {
		return storedSecret{}
	}
	return storedSecret{slices.Clone(s.versions), s.last, s.revision}
}

// version returns a version of a secret, the newest if the number is 0. ok is false if it is not stored.
func (s *storedSecret) version(number uint64) (v storedVersion, ok bool) {
	i := slices.IndexFunc(s.versions, func(v storedVersion) bool { return number == 0 || v.Version == number })
	if i < 0 {
		return storedVersion{}, false
	}
	return s.versions[i], true
}

// with returns the secret with another version, and without the versions that the bucket then drops.
func (s *storedSecret) with(v storedVersion) storedSecret {
	all := append([]storedVersion{v}, s.versions...)
	return storedSecret{all[:min(len(all), protocol.MaxSecretVersions)], v.Version, v.revision}
}

// room returns why a tenant may not set another version of a secret, or nil. Concurrent requests may exceed a limit
// together. The tenant may then still replace the secrets that it has. Error: resource_exhausted.
func (t *secretTable) room(tenant string, s storedSecret, size int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.uses[tenant]
	used := before.minus(s).plus(s.with(storedVersion{SecretVersion: protocol.SecretVersion{Size: size}}))
	for _, limit := range []struct {
		before, used, most int
		what               string
	}{
		{before.secrets, used.secrets, protocol.MaxTenantSecrets, "secrets"},
		{before.bytes, used.bytes, protocol.MaxTenantBytes, "bytes in all versions of its secrets that are kept"},
	} {
		if limit.used > max(limit.most, limit.before) {
			return protocol.Errorf(protocol.ResourceExhausted, "", "the tenant would have %d %s, at most %d are allowed",
				limit.used, limit.what, limit.most)
		}
	}
	return nil
}

// keys returns how many kept versions are sealed to each fleet key. Only those of the tenant count, or those of all
// tenants if it is empty.
func (t *secretTable) keys(tenant string) map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	count := map[string]int{}
	for k, s := range t.secrets {
		for _, v := range s.versions {
			if tenant == "" || k.tenant == tenant {
				count[v.Key]++
			}
		}
	}
	return count
}

// of returns the secrets of a tenant.
func (t *secretTable) of(tenant string) (all []*protocol.SecretInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, s := range t.secrets {
		if k.tenant != tenant || len(s.versions) == 0 {
			continue
		}
		info := &protocol.SecretInfo{Name: k.name}
		for _, v := range s.versions {
			info.Versions = append(info.Versions, v.SecretVersion)
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b *protocol.SecretInfo) int { return strings.Compare(a.Name, b.Name) })
	return all
}
