package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// Holder names the holder of a lease. It is the lease's value.
type Holder struct {
	Version  int       `json:"v"`
	Name     string    `json:"name"`             // worker or coordinator
	Instance string    `json:"instance"`         // one per process
	Place    string    `json:"place,omitempty"`  // identity of the local lock file that is held beside
	Detail   string    `json:"detail,omitempty"` // for people: machine, process id
	Since    time.Time `json:"since"`            // by the store's clock, for people
}

// Lease is a lock that ends by itself: it holds as long as it is renewed. It is trusted until two
// thirds of its time to live have passed since the start of the last renewal that succeeded, by the
// time since boot, which counts suspensions; the server ends it after all of it. The order is so: the
// holder fences itself, then the lease ends, then somebody else can take it.
//
// A hypervisor that pauses a machine stops that clock too. It shows when the wall clock is set right
// afterwards: after such a jump the lease is not trusted until it was renewed. A pause that no clock of the
// machine shows cannot be noticed.
type Lease struct {
	bucket kv
	key    string
	ttl    time.Duration
	holder Holder
	token  uint64

	mu       sync.Mutex
	revision uint64
	trusted  time.Duration // the lease may be trusted until then, since boot
	ahead    time.Duration // of the wall clock before the time since boot, when the renewal began that gave trust
	lost     bool
	lostCh   chan struct{}
	renewNow wake.Signal // renew before the next regular renewal
}

// HeldError says who holds a lease that could not be taken.
type HeldError struct {
	Holder   Holder
	Revision uint64
}

func (e *HeldError) Error() string {
	return "held by " + e.Holder.Name + " (" + e.Holder.Detail + ") since " + e.Holder.Since.Format(time.RFC3339)
}

// HostLock is the key of the lock of a Docker host.
func HostLock(hostID string) string { return "host." + hostID }

// SchedulerLock is the key of the lock of the coordinator that schedules.
const SchedulerLock = "scheduler"

// AcquireHost takes the lock of a Docker host. takeOver is the revision of a holder that is known
// to be gone, from a [HeldError]; 0 for none. Errors: *HeldError; unavailable.
func (c *Conn) AcquireHost(ctx context.Context, hostID string, h Holder, takeOver uint64) (*Lease, error) {
	return c.acquire(ctx, protocol.BucketLocks, HostLock(hostID), h, takeOver)
}

// AcquireScheduler takes the lock of the coordinator that schedules. Errors as AcquireHost.
func (c *Conn) AcquireScheduler(ctx context.Context, h Holder) (*Lease, error) {
	return c.acquire(ctx, protocol.BucketElections, SchedulerLock, h, 0)
}

func (c *Conn) acquire(ctx context.Context, bucket, key string, h Holder, takeOver uint64) (*Lease, error) {
	b := c.kv(bucket)
	ttl, err := c.bucketTTL(ctx, b)
	if err != nil {
		return nil, err
	}
	h.Version, h.Since = protocol.Version, c.Now()
	l := &Lease{bucket: b, key: key, ttl: ttl, holder: h, lostCh: make(chan struct{}), renewNow: wake.New()}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	pause := backoff.New(firstPause, retryPause)
	for {
		ahead, start := c.clock.machine.ahead()
		var revision uint64
		if takeOver > 0 {
			revision, err = b.put(ctx, key, protocol.Encode(&h), int64(takeOver))
		} else {
			revision, err = b.create(ctx, key, protocol.Encode(&h))
		}
		if err == nil {
			l.token, l.revision, l.trusted, l.ahead = revision, revision, start+l.trust(), ahead
			return l, nil
		}
		// The write may have been done all the same; and when it was refused, the caller wants to
		// know by whom.
		value, current, getErr := b.get(ctx, key)
		var held Holder
		switch {
		case getErr != nil && protocol.CodeOf(getErr) != protocol.NotFound:
			return nil, err
		case value == nil && err != ErrConflict:
			return nil, err
		case value == nil:
			takeOver = 0 // it was given up, or who wrote first is not there to be read yet
		case protocol.Decode(value, &held) != nil:
			return nil, err
		case held.Instance != h.Instance:
			return nil, &HeldError{Holder: held, Revision: current}
		default:
			// Our own, of unknown age: written again, it may be trusted from now.
			takeOver = current
		}
		if !pause.Wait(ctx) {
			return nil, err
		}
	}
}

func (c *Conn) bucketTTL(ctx context.Context, b kv) (time.Duration, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := c.js.Stream(ctx, b.stream())
	if err != nil {
		return 0, translate(err, "read bucket "+b.name)
	}
	return stream.CachedInfo().Config.MaxAge, nil
}

// trust is how long the lease is trusted after the start of a renewal.
func (l *Lease) trust() time.Duration { return l.ttl * 2 / 3 }

// Token is the fencing token: greater than that of every holder before.
func (l *Lease) Token() uint64 { return l.token }

// TTL is how long the lease lasts without renewal.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Check returns nil while the lease may be trusted. Otherwise: failed_precondition with reason
// lease_lost.
func (l *Lease) Check() error {
	_, err := l.Trusted()
	return err
}

// jumpPart is by which part of a lease's life the wall clock may move against the time since boot before
// the lease has to be renewed: a shorter pause of the machine uses up less than the last third.
const jumpPart = 12

// Trusted returns until when the lease may be trusted, by the time since boot, as far as is known now, also
// where that is over. Errors as of Check.
func (l *Lease) Trusted() (until time.Duration, err error) {
	ahead, boot := l.bucket.conn.clock.machine.ahead()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lost:
		return min(boot, l.trusted), protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, "lock %s was lost", l.key)
	case boot >= l.trusted:
		l.hurry()
		return l.trusted, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, "lock %s could not be renewed in time", l.key)
	case (ahead - l.ahead).Abs() > l.ttl/jumpPart:
		l.hurry()
		return boot, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost,
			"lock %s has to be renewed first: this machine's clock was set, or the machine was paused", l.key)
	}
	return l.trusted, nil
}

// hurry has Run renew the lease at once.
func (l *Lease) hurry() {
	l.renewNow.Wake()
}

// Lost is closed when somebody else has the lease, or it ended: it never comes back.
func (l *Lease) Lost() <-chan struct{} { return l.lostCh }

// Run renews the lease until ctx ends or it is lost. It does not release it.
func (l *Lease) Run(ctx context.Context) error {
	pause, hurried := l.ttl/6, l.renewNow
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hurried:
		case <-time.After(pause):
		}
		trusted, err := l.renew(ctx)
		pause, hurried = retryPause, nil // which a request for trust does not shorten
		switch {
		case err == nil && trusted:
			pause, hurried = l.ttl/6, l.renewNow
		case err == nil: // the next renewal is what gives trust
		case protocol.AsError(err).Reason == protocol.ReasonLeaseLost:
			l.mu.Lock()
			l.lost = true
			l.mu.Unlock()
			close(l.lostCh)
			return err
		default:
			l.bucket.conn.log.Warn("a lease is not renewed", "lock", l.key, "error", err)
			_ = l.bucket.conn.awaitConnection(ctx) // it fails at the end of ctx, or where no renewal will ever work
		}
	}
}

// renew writes the lease again, and says whether it may be trusted for that.
func (l *Lease) renew(ctx context.Context) (trusted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/6)
	defer cancel()
	ahead, start := l.bucket.conn.clock.machine.ahead()
	l.mu.Lock()
	expected := l.revision
	l.mu.Unlock()
	revision, err := l.bucket.put(ctx, l.key, protocol.Encode(&l.holder), int64(expected))
	trusted = err == nil
	if err == ErrConflict {
		revision, err = l.reclaim(ctx) // an earlier renewal had worked; how old it is, nobody knows
	}
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision = revision
	if trusted {
		l.trusted, l.ahead = start+l.trust(), ahead
	}
	return trusted, nil
}

// reclaim looks whether the value that stands in the way is our own, from a renewal whose answer
// was lost. Its revision is taken over, the trust is not: the next renewal gives it.
func (l *Lease) reclaim(ctx context.Context) (uint64, error) {
	value, revision, err := l.bucket.get(ctx, l.key)
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return 0, err
	}
	var held Holder
	if err == nil && value != nil && protocol.Decode(value, &held) == nil && held.Instance == l.holder.Instance {
		return revision, nil
	}
	return 0, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, "lock %s is no longer ours", l.key)
}

// Release gives the lease up, so that the next holder need not wait for its end. Run must have returned.
func (l *Lease) Release(ctx context.Context) error {
	ctx, cancel := l.bucket.conn.bound(ctx)
	defer cancel()
	l.mu.Lock()
	expected := l.revision
	l.trusted = 0
	l.mu.Unlock()
	pause := backoff.New(firstPause, retryPause)
	for {
		err := l.bucket.remove(ctx, l.key, int64(expected))
		if err != ErrConflict {
			return err
		}
		// Run ended while a renewal was on its way, and that one was stored, or is just being stored.
		if expected, err = l.reclaim(ctx); err != nil {
			return err
		}
		if !pause.Wait(ctx) {
			return ErrConflict
		}
	}
}

// SeizeHost takes the lock of a host whose holder is thought to be lost, which succeeds only when
// its lease is really over, calls f while nobody can hold the lock, and gives it up again. Error:
// *HeldError when the host is held after all.
func (c *Conn) SeizeHost(ctx context.Context, hostID string, h Holder, f func(token uint64) error) error {
	l, err := c.AcquireHost(ctx, hostID, h, 0)
	if err != nil {
		return err
	}
	// Whoever asked may have gone meanwhile; the lock must not stay behind.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.trust())
	defer cancel()
	err = f(l.Token())
	if releaseErr := l.Release(ctx); err == nil {
		err = releaseErr
	}
	return err
}
