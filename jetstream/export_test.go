package jetstream

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Renew renews a lease once.
func (l *Lease) Renew(ctx context.Context) (trusted bool, err error) { return l.renew(ctx) }

// TrustedUntil is until when a lease may be trusted.
func (l *Lease) TrustedUntil() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted
}

// Missing says why there can be no majority of the servers, after they are remembered.
func (c *Conn) Missing() string { c.rememberServers(); return c.missing() }

// TrimRequests removes settled requests until ctx ends.
func (c *Conn) TrimRequests(ctx context.Context, settled *atomic.Int64) { c.trimRequests(ctx, settled) }

// TrimPeriod is how often it does so.
const TrimPeriod = trimPeriod

// AppendTry is how long one try of an append may take.
const AppendTry = appendTry

// EventSize is how many bytes an event takes at most, MaxBatchBytes how many a message has, and
// MaxBatchEvents how many events.
var EventSize = eventSize

const (
	MaxBatchBytes  = maxBatchBytes
	MaxBatchEvents = maxBatchEvents
)

// Servers are the addresses of the servers, those that were given and those that the cluster names.
func (c *Conn) Servers() []string { return c.nc.Servers() }

// StoreClock is the clock of a store that is measured.
type StoreClock struct{ clock storeClock }

// NewStoreClock returns one on a machine with this clock.
func NewStoreClock(machine Clock) *StoreClock {
	machine.setDefaults()
	return &StoreClock{storeClock{machine: machine}}
}

// Take takes a measure.
func (s *StoreClock) Take(sent, received time.Duration, ts time.Time) (moved time.Duration) {
	return s.clock.take(sent, received, ts)
}

// Now returns the store's time, and whether it is to be measured; what is to be has been then.
func (s *StoreClock) Now() (now time.Time, measure bool) {
	now, measure = s.clock.now()
	if measure {
		s.clock.measuring = false
	}
	return now, measure
}

// Distrust has it measured soon.
func (s *StoreClock) Distrust() { s.clock.distrust() }

// PurgeSnapshot removes a sandbox's snapshot.
func (c *Conn) PurgeSnapshot(ctx context.Context, tenant, sandbox string) error {
	return c.purge(ctx, "KV_"+protocol.BucketSandboxes, "$KV."+protocol.BucketSandboxes+"."+tenant+"."+sandbox, 0)
}

// SmallSegments has segments be full with so many bytes, and a manifest name so many before it turns a page.
func (c *Conn) SmallSegments(size, inManifest int) {
	c.segments.full, c.segments.inManifest = size, inManifest
}
