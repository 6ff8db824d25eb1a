package jetstream

import (
	"context"
	"sync/atomic"
	"time"
)

// Renew renews a lease once.
func (l *Lease) Renew(ctx context.Context) (trusted bool, err error) { return l.renew(ctx) }

// Trusted is until when a lease may be trusted.
func (l *Lease) Trusted() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted
}

// TrimRequests removes settled requests until ctx ends.
func (c *Conn) TrimRequests(ctx context.Context, settled *atomic.Int64) { c.trimRequests(ctx, settled) }

// TrimPeriod is how often it does so.
const TrimPeriod = trimPeriod

// AppendTry is how long one try of an append may take.
const AppendTry = appendTry
