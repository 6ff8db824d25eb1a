package jetstream

import (
	"context"
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
