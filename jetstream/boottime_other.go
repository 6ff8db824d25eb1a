//go:build !linux

package jetstream

import "time"

// sinceBoot returns the age of this process. Only clients run on these systems, and clients hold no lease.
func sinceBoot() time.Duration { return time.Since(began) }
