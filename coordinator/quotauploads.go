package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// uploadUsage counts the stored uploads of each tenant. A leader reads the entries of all uploads once, and then follows
// them.
type uploadUsage struct {
	mu   sync.Mutex
	life time.Duration // how long an upload is stored; 0: forever
	all  map[string]map[string]storedUpload
	read bool // everything stored at the start has been read
}

type storedUpload struct {
	bytes protocol.Bytes
	at    time.Time
}

func newUploadUsage() *uploadUsage { return &uploadUsage{all: map[string]map[string]storedUpload{}} }

// set records that an upload was stored, stored again or removed.
func (u *uploadUsage) set(s jetstream.StoredUpload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	of := u.all[s.Tenant]
	switch {
	case s.Removed:
		if delete(of, s.Digest); len(of) == 0 {
			delete(u.all, s.Tenant)
		}
	case of == nil:
		u.all[s.Tenant] = map[string]storedUpload{s.Digest: {protocol.Bytes(s.Bytes), s.At}}
	default:
		of[s.Digest] = storedUpload{protocol.Bytes(s.Bytes), s.At}
	}
}

// The method of adds up the sizes of a tenant's uploads. It leaves out the upload with the digest given as but, which a
// new upload replaces. It also leaves out expired uploads: the server removes them without a message.
func (u *uploadUsage) of(tenant, but string, now time.Time) (n protocol.Bytes) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for digest, s := range u.all[tenant] {
		switch {
		case u.life > 0 && now.Sub(s.at) > u.life:
			delete(u.all[tenant], digest)
		case digest != but:
			n += s.bytes
		}
	}
	return n
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
	u.life, u.read = life, false
	clear(u.all)
}

func (u *uploadUsage) caughtUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.read = true
}

// followUploads counts uploads while the lease lasts. An upload that is counted needs no claim any more.
func (a *admitter) followUploads(ctx context.Context) error {
	return a.retry(ctx, "follow the uploads", func() error {
		life, err := a.conn.BlobLife(ctx)
		if err != nil {
			return err
		}
		a.uploads.reset(life)
		return a.conn.FollowUploads(ctx, func(s jetstream.StoredUpload) {
			a.uploads.set(s)
			a.projection.work.drop(claimName{key: key{Tenant: s.Tenant}, upload: s.Digest})
		}, a.uploads.caughtUp)
	})
}

// roomFor returns the limit of one upload. Package jetstream calls it at the start of each upload.
func (c *coordinator) roomFor(tenant, digest string) jetstream.UploadRoom {
	return &uploadRoom{c.passFor(protocol.QuotaClaim{Tenant: tenant, Upload: digest})}
}

// uploadRoom claims room in a tenant's quota for one upload, as the upload grows.
type uploadRoom struct{ pass *pass }

// Grow claims room for an upload that has reached this size in bytes.
func (r *uploadRoom) Grow(ctx context.Context, bytes int64) error {
	p := r.pass
	if !p.limited {
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

// Leave gives the room back unless the upload is stored.
func (r *uploadRoom) Leave(stored bool) { r.pass.leave(stored, nil) }
