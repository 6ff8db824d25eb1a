package coordinator

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// uploadUsage counts the stored uploads of each tenant. A leader reads the entries of all uploads once, and then
// follows their changes.
type uploadUsage struct {
	mu       sync.Mutex
	life     time.Duration // how long an upload is stored; 0: forever
	stored   map[uploadKey]storedUpload
	sums     map[string]protocol.Bytes // by tenant
	expiring []expiring                // the oldest first
	read     bool                      // everything stored at the start has been read
}

type storedUpload struct {
	id    string
	bytes protocol.Bytes
	at    time.Time
}

// expiring is an upload that the server removes when its life ends, unless it was stored again since.
type expiring struct {
	key uploadKey
	id  string
	at  time.Time
}

func newUploadUsage() *uploadUsage {
	return &uploadUsage{stored: map[uploadKey]storedUpload{}, sums: map[string]protocol.Bytes{}}
}

// set records that an upload was stored, stored again or removed.
func (u *uploadUsage) set(s jetstream.StoredUpload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expireLocked(s.At)
	k := uploadKey{s.Tenant, s.Digest}
	u.removeLocked(k)
	if s.Removed {
		return
	}
	u.stored[k] = storedUpload{s.ID, protocol.Bytes(s.Bytes), s.At}
	u.sums[s.Tenant] += protocol.Bytes(s.Bytes)
	if u.life > 0 {
		u.expiring = append(u.expiring, expiring{k, s.ID, s.At})
	}
}

func (u *uploadUsage) removeLocked(k uploadKey) {
	s, stored := u.stored[k]
	if !stored {
		return
	}
	delete(u.stored, k)
	if u.sums[k.tenant] -= s.bytes; u.sums[k.tenant] == 0 {
		delete(u.sums, k.tenant)
	}
}

// The method "of" returns the size of a tenant's uploads. It leaves out the upload whose digest is in the parameter
// but, because a new upload replaces it. The method first subtracts expired uploads from the sums: the server removes
// such uploads without a message.
func (u *uploadUsage) of(tenant, but string, now time.Time) protocol.Bytes {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expireLocked(now)
	return u.sums[tenant] - u.stored[uploadKey{tenant, but}].bytes
}

func (u *uploadUsage) expireLocked(now time.Time) {
	for len(u.expiring) > 0 && now.Sub(u.expiring[0].at) > u.life {
		e := u.expiring[0]
		u.expiring = u.expiring[1:]
		if s := u.stored[e.key]; s.id == e.id && s.at.Equal(e.at) {
			u.removeLocked(e.key)
		}
	}
}

// has reports whether the upload of a claim is complete and stored.
func (u *uploadUsage) has(name claimName) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, stored := u.stored[uploadKey{name.key.Tenant, name.digest}]
	return stored && s.id == name.upload
}

// ids returns the ids of the stored uploads.
func (u *uploadUsage) ids() map[string]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	ids := make(map[string]bool, len(u.stored))
	for _, s := range u.stored {
		ids[s.id] = true
	}
	return ids
}

// known reports whether the uploads have been read.
func (u *uploadUsage) known() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.read
}

func (u *uploadUsage) reset(life time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.life, u.read, u.expiring = life, false, nil
	clear(u.stored)
	clear(u.sums)
}

func (u *uploadUsage) caughtUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.read = true
}

// followUploads counts uploads while the lease lasts. A stored upload needs no claim any more. Unfinished uploads,
// which other coordinators receive for claims of an earlier leader, count as claims until they are renewed or end.
func (a *admitter) followUploads(ctx context.Context) error {
	return a.retry(ctx, "follow the uploads", func() error {
		life, err := a.conn.BlobLife(ctx)
		if err != nil {
			return err
		}
		a.uploads.reset(life)
		group, ctx := errgroup.WithContext(ctx)
		read := newSignal()
		group.Go(func() error {
			return a.conn.FollowUploads(ctx, func(s jetstream.StoredUpload) {
				a.uploads.set(s)
				a.projection.work.tenants.drop(nameOfUpload(s.Tenant, s.Digest, s.ID))
			}, read.give)
		})
		group.Go(func() error {
			if !await(ctx, read) {
				return ctx.Err()
			}
			return a.findUnfinished(ctx)
		})
		return group.Wait()
	})
}

// findUnfinished claims room for the unfinished uploads. If such an upload ends in the meantime, its claim is dropped
// with the expired claims.
func (a *admitter) findUnfinished(ctx context.Context) error {
	unfinished, err := a.conn.UnfinishedUploads(ctx, a.uploads.ids())
	if err != nil {
		return err
	}
	for _, u := range unfinished {
		a.projection.work.tenants.found(nameOfUpload(u.Tenant, u.Digest, u.ID), protocol.Bytes(u.Bytes))
	}
	a.uploads.caughtUp()
	return nil
}

// dropUpload drops the expired claim of an upload, unless the store has chunks and no entry of the upload. So an upload
// counts until its entry is folded or its chunks are removed, even if its coordinator has died.
func (a *admitter) dropUpload(ctx context.Context, name claimName) error {
	now := a.conn.SinceBoot()
	if !a.uploads.has(name) {
		there, err := a.conn.HasChunks(ctx, name.upload)
		if err != nil {
			a.log.Debug("could not check whether an upload left chunks; trying again", "upload", name.upload, "error", err)
		}
		if there || err != nil {
			return err
		}
	}
	a.projection.work.tenants.dropExpired(name, now)
	return nil
}

// roomFor returns the limit of one upload. Package jetstream calls it at the start of each upload.
func (c *coordinator) roomFor(tenant, digest, id string) jetstream.UploadRoom {
	return &uploadRoom{c.passFor(protocol.QuotaClaim{Tenant: tenant, Upload: digest, UploadID: id})}
}

// uploadRoom claims room in a tenant's quota for one upload, as the upload grows.
type uploadRoom struct{ pass *pass }

// Grow claims room for an upload that has reached this size in bytes.
func (r *uploadRoom) Grow(ctx context.Context, bytes int64) error {
	p := r.pass
	if p.limited = p.c.quota(p.claim.Tenant).Uploads > 0; !p.limited {
		return nil
	}
	if p.claim.Bytes = protocol.Bytes(bytes); bytes == 0 {
		return nil
	}
	for began := time.Now(); ; {
		err := p.take(ctx)
		if err == nil {
			return p.check()
		}
		again := protocol.AsError(err).Reason == protocol.ReasonNoLeader && time.Since(began) < growWithin
		if !again || !backoff.Sleep(ctx, leaderPause) {
			return err
		}
	}
}

// growWithin is how long an upload waits for a leader. It is shorter than a client's wait for the answer to a piece.
const growWithin = 8 * time.Second

// Leave tells the leader that the upload has ended. If the leader does not learn this, the claim expires.
func (r *uploadRoom) Leave(ctx context.Context) {
	p := r.pass
	if !p.taken {
		return
	}
	if a := p.c.admitter.Load(); a != nil {
		a.release(ctx, nameOfClaim(&p.claim))
		return
	}
	// The client may upload again at once, so it must not get its answer before the room is free.
	if _, err := p.c.conn.AskLeader(ctx, &protocol.LeaderQuery{Release: &p.claim}); err != nil {
		p.c.log.Debug("could not give a claim back; it will expire", "error", err)
	}
}
