package stream

import "time"

// roundTrip is the time from a ping to its pong.
type roundTrip struct {
	shortest time.Duration // 0: unknown. A longer one contains the time that a frame waited behind others
	pingedAt time.Time     // when the ping was sent whose pong is awaited; zero: none is
}

// pongWait is how many times [Config.Retry] a pong may take until another ping measures the round trip.
const pongWait = 4

// measuresRoundTrip reports whether the round trip decides how large the window becomes.
func (c *Config) measuresRoundTrip() bool { return c.MaxWindow > max(c.Window, pipeline*c.TakeFrame) }

// pinged notes that a ping is sent.
func (r *roundTrip) pinged(now time.Time) {
	if r.pingedAt.IsZero() {
		r.pingedAt = now
	}
}

// ponged notes that a pong has arrived.
func (r *roundTrip) ponged(now time.Time) {
	if r.pingedAt.IsZero() {
		return
	}
	took := max(now.Sub(r.pingedAt), 1)
	r.pingedAt = time.Time{}
	if r.shortest == 0 || took < r.shortest {
		r.shortest = took
	}
}

// isMissing reports whether the round trip is unknown because a ping or its pong was lost.
func (r *roundTrip) isMissing(now time.Time, retry time.Duration) bool {
	return r.shortest == 0 && now.Sub(r.pingedAt) >= pongWait*retry
}
