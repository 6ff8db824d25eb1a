package jetstream

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/protocol"
)

// Renew renews a lease once.
func (l *Lease) Renew(ctx context.Context) (trusted bool, err error) { return l.renew(ctx) }

// TrustedUntil returns the time since boot until which a lease may be trusted.
func (l *Lease) TrustedUntil() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted
}

// Missing remembers the servers and returns why there can be no majority of them.
func (c *Conn) Missing() string { c.rememberServers(); return c.missing() }

// TrimRequests removes acknowledged requests until ctx ends.
func (c *Conn) TrimRequests(ctx context.Context, settled *atomic.Int64) { c.trimRequests(ctx, settled) }

// TrimPeriod is the pause between removals.
const TrimPeriod = trimPeriod

// AppendTry is how long one attempt to append may take.
const AppendTry = appendTry

// EventSize is an upper bound of an event's size; MaxBatchBytes and MaxBatchEvents are the limits of a message.
var EventSize = eventSize

const (
	MaxBatchBytes  = maxBatchBytes
	MaxBatchEvents = maxBatchEvents
)

// Servers returns the addresses of the configured servers and of the servers that the cluster lists.
func (c *Conn) Servers() []string { return c.nc.Servers() }

// StoreClock is the measured clock of a store.
type StoreClock struct{ clock storeClock }

// NewStoreClock returns a clock on a machine with the given clocks.
func NewStoreClock(machine Clock) *StoreClock {
	machine.setDefaults()
	return &StoreClock{storeClock{machine: machine}}
}

// Take uses an answer of the store as a measurement.
func (s *StoreClock) Take(sent, received time.Duration, ts time.Time) (moved time.Duration) {
	return s.clock.take(sent, received, ts)
}

// Now returns the store's time, and whether the clock must be measured. It counts this measurement as done.
func (s *StoreClock) Now() (now time.Time, measure bool) {
	now, measure = s.clock.now()
	if measure {
		s.clock.measuring = false
	}
	return now, measure
}

// Distrust asks for a new measurement soon.
func (s *StoreClock) Distrust() { s.clock.distrust() }

// SetBack makes the connection believe that the store's clock shows an earlier time, as after a slow measurement.
func (c *Conn) SetBack(by time.Duration) {
	c.clock.mu.Lock()
	defer c.clock.mu.Unlock()
	c.clock.epoch = c.clock.epoch.Add(-by)
}

// RegisteredAt makes the connection believe that a key was registered at another time, as if by a server with a wrong
// clock.
func (c *Conn) RegisteredAt(ctx context.Context, key string, at time.Time) error {
	o, err := c.owner(ctx, key)
	if err != nil {
		return err
	}
	o.since = at
	c.Writers.mu.Lock()
	defer c.Writers.mu.Unlock()
	c.owners[key] = o
	if now := c.signs.Load(); now != nil && now.signer != nil && now.signer.public == key {
		c.signs.Store(&writing{now.Writer, now.signer, at})
	}
	return nil
}

// PurgeSnapshot removes a sandbox's snapshot.
func (c *Conn) PurgeSnapshot(ctx context.Context, tenant, sandbox string) error {
	return c.purge(ctx, "KV_"+protocol.BucketSandboxes, "$KV."+protocol.BucketSandboxes+"."+tenant+"."+sandbox, 0)
}

// SmallSegments sets the size of a full segment and the number of segments on a page of the manifest.
func (c *Conn) SmallSegments(size, inManifest int) {
	c.segments.cache.full, c.segments.cache.inManifest = size, inManifest
}

// UploadsAtOnce is how many uploads one coordinator receives at once.
const UploadsAtOnce = uploadsAtOnce

// StoreBlobAgain stores content as if its digest were not stored or no longer fresh.
func (b *BlobStore) StoreBlobAgain(ctx context.Context, tenant, digest string, r io.Reader) error {
	return b.storeBlob(ctx, tenant, digest, nuid.Next(), r)
}

// Reconnect ends the connection to the server and makes a new one.
func (c *Conn) Reconnect() error { return c.nc.ForceReconnect() }

// OpenStreams returns how many streams the connection has, including those that ended a moment ago.
func (c *Conn) OpenStreams() (n int) {
	if c.Streams.plain != nil {
		n += len(c.Streams.plain.all())
	}
	if bulk := c.Streams.bulk.current(); bulk != nil {
		n += len(bulk.all())
	}
	return n
}

// HoldFrames keeps the frames that arrive for the open streams from being taken, until release is called, and makes the
// NATS library drop those of a stream that are more than most. dropped returns their number.
func (c *Conn) HoldFrames(most int) (dropped func() int, release func()) {
	ends := c.plain.all()
	for _, e := range ends {
		e.mu.Lock()
		_ = e.sub.SetPendingLimits(most, -1) // fails only if the stream has ended
	}
	dropped = func() (all int) {
		for _, e := range ends {
			n, _ := e.sub.Dropped() // fails only if the stream has ended
			all += n
		}
		return all
	}
	return dropped, sync.OnceFunc(func() {
		for _, e := range ends {
			e.mu.Unlock()
		}
	})
}
