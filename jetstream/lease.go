package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// Holder describes the holder of a lease. It is the lease's value.
type Holder struct {
	Version  int       `json:"v"`
	Name     string    `json:"name"`             // name of the worker or coordinator
	Instance string    `json:"instance"`         // unique for each process
	Place    string    `json:"place,omitempty"`  // identity of the lock file that the holder has locked on its machine
	Detail   string    `json:"detail,omitempty"` // machine and process id, for error messages
	Since    time.Time `json:"since"`            // when the holder acquired the lease, by the store's clock
}

// Lease is a lock that expires unless its holder renews it. The holder trusts the lease for two thirds of its time to
// live, counted from the start of the last successful renewal. The holder measures this by the time since boot, which
// includes suspensions. The server ends the lease after the whole time to live. So the holder stops trusting the lease
// first, then the lease ends, and only then can another process take it.
//
// A hypervisor that pauses a machine also stops the time since boot. The holder notices the pause when the wall clock
// is corrected afterwards. After such a jump, the lease is not trusted until it has been renewed. A pause after which
// no clock is corrected goes unnoticed.
type Lease struct {
	bucket kv
	key    string
	ttl    time.Duration
	holder Holder
	token  uint64

	mu       sync.Mutex
	revision uint64
	trusted  time.Duration // the time since boot until which the lease may be trusted
	ahead    time.Duration // [Clock.ahead] when the last successful renewal started
	lost     bool
	lostCh   chan struct{}
	renewNow wake.Signal // asks for a renewal before the next regular one
}

// HeldError is returned for a lease that another process holds.
type HeldError struct {
	Holder   Holder
	Revision uint64
}

func (e *HeldError) Error() string {
	return "held by " + e.Holder.Name + " (" + e.Holder.Detail + ") since " + e.Holder.Since.Format(time.RFC3339)
}

// HostLock returns the key of a Docker host's lock.
func HostLock(hostID string) string { return "host." + hostID }

// SchedulerLock is the key of the scheduling coordinator's lock.
const SchedulerLock = "scheduler"

// Leases acquires the leases on hosts and on the scheduler.
type Leases struct{ *streams }

// AcquireHost takes the lock of a Docker host. takeOver is 0, or the revision in the [HeldError] of a holder that is
// known to have ended. With such a revision, AcquireHost takes the lock over. Errors: *HeldError; unavailable.
func (ls *Leases) AcquireHost(ctx context.Context, hostID string, h Holder, takeOver uint64) (*Lease, error) {
	return ls.acquire(ctx, protocol.BucketLocks, HostLock(hostID), h, takeOver)
}

// AcquireScheduler takes the lock of the coordinator that schedules. Errors: *HeldError; unavailable.
func (ls *Leases) AcquireScheduler(ctx context.Context, h Holder) (*Lease, error) {
	return ls.acquire(ctx, protocol.BucketElections, SchedulerLock, h, 0)
}

func (ls *Leases) acquire(ctx context.Context, bucket, key string, h Holder, takeOver uint64) (*Lease, error) {
	b := ls.kv(bucket)
	ttl, err := ls.bucketTTL(ctx, b)
	if err != nil {
		return nil, err
	}
	h.Version, h.Since = protocol.Version, ls.Now()
	l := &Lease{bucket: b, key: key, ttl: ttl, holder: h, lostCh: make(chan struct{}), renewNow: wake.New()}
	ctx, cancel := ls.bound(ctx)
	defer cancel()
	pause := backoff.New(firstPause, retryPause)
	for {
		ahead, start := ls.clock.machine.ahead()
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
		// The write may have succeeded despite the error. If the write was refused, the caller wants to know the
		// holder.
		value, current, getErr := b.get(ctx, key)
		var held Holder
		switch {
		case getErr != nil && protocol.CodeOf(getErr) != protocol.NotFound:
			return nil, err
		case value == nil && err != ErrConflict:
			return nil, err
		case value == nil:
			takeOver = 0 // the lease was released, or the other process's write is not readable yet
		case protocol.Decode(value, &held) != nil:
			return nil, err
		case held.Instance != h.Instance:
			return nil, &HeldError{Holder: held, Revision: current}
		default:
			// This process wrote the value at an unknown time. Another write makes the lease trusted from now on.
			takeOver = current
		}
		if !pause.Wait(ctx) {
			return nil, err
		}
	}
}

func (ls *Leases) bucketTTL(ctx context.Context, b kv) (time.Duration, error) {
	ctx, cancel := ls.bound(ctx)
	defer cancel()
	stream, err := ls.js.Stream(ctx, b.stream())
	if err != nil {
		return 0, translate(err, "read bucket "+b.name)
	}
	return stream.CachedInfo().Config.MaxAge, nil
}

// trust returns how long the lease is trusted after the start of a renewal.
func (l *Lease) trust() time.Duration { return l.ttl * 2 / 3 }

// Margin returns how long the lease may still be trusted without another renewal, at least 0.
func (l *Lease) Margin() time.Duration {
	until, err := l.Trusted()
	if err != nil {
		return 0
	}
	_, boot := l.bucket.streams.clock.machine.ahead()
	return max(until-boot, 0)
}

// HostHolder returns the name of the worker or coordinator that holds the lock of a host, or an empty name if the lock
// is free.
func (ls *Leases) HostHolder(ctx context.Context, hostID string) (name string, err error) {
	value, _, err := ls.kv(protocol.BucketLocks).get(ctx, HostLock(hostID))
	if protocol.CodeOf(err) == protocol.NotFound || err == nil && value == nil {
		return "", nil
	}
	var held Holder
	if err == nil {
		err = protocol.Decode(value, &held)
	}
	return held.Name, err
}

// Token returns the fencing token, which is greater than the token of every earlier holder.
func (l *Lease) Token() uint64 { return l.token }

// TTL returns how long the lease lasts without renewal.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Check returns nil while the lease may be trusted. Error: failed_precondition with reason lease_lost.
func (l *Lease) Check() error {
	_, err := l.Trusted()
	return err
}

// jumpPart limits how far the wall clock may move relative to the time since boot. If it moves by more than 1/jumpPart
// of the lease's time to live, the lease must be renewed. A shorter pause of the machine fits into the last third of
// the time to live, in which the lease is not trusted.
const jumpPart = 12

// Trusted returns the time since boot until which the lease may be trusted; that time may have passed. Error:
// failed_precondition with reason lease_lost.
func (l *Lease) Trusted() (until time.Duration, err error) {
	ahead, boot := l.bucket.streams.clock.machine.ahead()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lost:
		return min(boot, l.trusted), l.lostError("lock %s was lost")
	case boot >= l.trusted:
		l.renewNow.Wake()
		return l.trusted, l.lostError("lock %s could not be renewed in time")
	case (ahead - l.ahead).Abs() > l.ttl/jumpPart:
		l.renewNow.Wake()
		return boot, l.lostError(
			"lock %s must be renewed first: this machine's clock was set, or the machine was paused",
		)
	}
	return l.trusted, nil
}

func (l *Lease) lostError(format string) error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, format, l.key)
}

// Lost returns a channel that is closed when another process has the lease or the lease has expired. A lost lease stays
// lost.
func (l *Lease) Lost() <-chan struct{} { return l.lostCh }

// Run renews the lease until ctx ends or the lease is lost. It does not release the lease.
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
		pause, hurried = retryPause, nil // a call of Trusted must not shorten the pause after a failure
		switch {
		case err == nil && trusted:
			pause, hurried = l.ttl/6, l.renewNow
		case err == nil: // the next renewal makes the lease trusted
		case protocol.AsError(err).Reason == protocol.ReasonLeaseLost:
			l.mu.Lock()
			l.lost = true
			l.mu.Unlock()
			close(l.lostCh)
			return err
		default:
			l.bucket.streams.log.Warn("could not renew a lease; trying again", "lock", l.key, "error", err)
			_ = l.bucket.streams.awaitConnection(ctx) // if this fails, the next renewal reports why, or the lease expires
		}
	}
}

// renew writes the lease again. trusted says whether this renewal makes the lease trusted.
func (l *Lease) renew(ctx context.Context) (trusted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/6)
	defer cancel()
	ahead, start := l.bucket.streams.clock.machine.ahead()
	l.mu.Lock()
	expected := l.revision
	l.mu.Unlock()
	revision, err := l.bucket.put(ctx, l.key, protocol.Encode(&l.holder), int64(expected))
	trusted = err == nil
	if err == ErrConflict {
		revision, err = l.reclaim(ctx) // an earlier renewal may have succeeded, at an unknown time
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

// reclaim returns the revision of the stored lease if this process wrote it, in a renewal whose answer was lost. The
// lease is trusted again only after the next renewal.
func (l *Lease) reclaim(ctx context.Context) (uint64, error) {
	value, revision, err := l.bucket.get(ctx, l.key)
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return 0, err
	}
	var held Holder
	if err == nil && value != nil && protocol.Decode(value, &held) == nil && held.Instance == l.holder.Instance {
		return revision, nil
	}
	return 0, protocol.Errorf(
		protocol.FailedPrecondition,
		protocol.ReasonLeaseLost,
		"lock %s has another holder",
		l.key,
	)
}

// Release ends the lease, so that the next holder need not wait for its expiry. Run must have returned.
func (l *Lease) Release(ctx context.Context) error {
	ctx, cancel := l.bucket.streams.bound(ctx)
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
		// Run ended during a renewal. The renewed lease is stored already, or is still being stored.
		if expected, err = l.reclaim(ctx); err != nil {
			return err
		}
		if !pause.Wait(ctx) {
			return ErrConflict
		}
	}
}

// SeizeHost takes the lock of a host whose holder seems to be lost, calls f while no other process can hold the lock,
// and releases the lock. It succeeds only if the holder's lease has ended. Error: *HeldError if the host is still held.
func (ls *Leases) SeizeHost(ctx context.Context, hostID string, h Holder, f func(token uint64) error) error {
	l, err := ls.AcquireHost(ctx, hostID, h, 0)
	if err != nil {
		return err
	}
	// The lock must be released even if the caller has given up in the meantime.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.trust())
	defer cancel()
	err = f(l.Token())
	if releaseErr := l.Release(ctx); err == nil {
		err = releaseErr
	}
	return err
}
