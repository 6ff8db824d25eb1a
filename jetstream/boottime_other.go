//go:build !linux

package jetstream

import "time"

// sinceBoot is the time of this process. Only clients run here, which hold no lease.
func sinceBoot() time.Duration { return time.Since(began) }
