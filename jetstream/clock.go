package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Clock reads the time of this machine. The zero value reads the machine's clocks; tests set other functions.
type Clock struct {
	// Wall is the wall clock, which people and programs may set at any time. Default: time.Now.
	Wall func() time.Time

	// Boot is the time since some moment in the past. It includes suspensions, and nobody can set it. Default:
	// CLOCK_BOOTTIME, or the process's monotonic clock on systems without CLOCK_BOOTTIME.
	Boot func() time.Duration
}

func (k *Clock) setDefaults() {
	if k.Wall == nil {
		k.Wall = time.Now
	}
	if k.Boot == nil {
		k.Boot = sinceBoot
	}
}

// readAtOnce is the longest time between two readings that [Clock.ahead] accepts without reading the clocks again.
const readAtOnce = time.Millisecond

// ahead returns how far the wall clock is ahead of the time since boot. The difference itself has no meaning. If it
// changes, the wall clock was set, or a hypervisor paused the machine and the wall clock was corrected afterwards.
func (k *Clock) ahead() (ahead, boot time.Duration) {
	for range 3 { // the process may be interrupted between the readings
		first := k.Boot()
		wall := k.Wall().UnixNano()
		boot = k.Boot()
		if ahead = time.Duration(wall) - boot; boot-first < readAtOnce {
			break
		}
	}
	return ahead, boot
}

const (
	measurePeriod = 10 * time.Second // pause between two measurements of the store's clock
	measurePause  = time.Second      // pause while the store's clock is unknown or in doubt
	measureWithin = 2 * time.Second  // how long a measurement waits for the answer

	// clockDrift is how fast two clocks may diverge, in seconds per second.
	clockDrift = 1.0 / 5000

	// clockJump is the smallest sudden change of [Clock.ahead] that means that a clock was set.
	clockJump = time.Second
)

// storeClock is the store's clock: the wall clock of the server that leads the event log, as measured from this
// process. Between measurements it advances with the time since boot, so setting this machine's clock does not move it.
type storeClock struct {
	machine Clock

	mu        sync.Mutex
	known     bool
	epoch     time.Time     // the store's time when the time since boot was 0
	off       time.Duration // largest possible error of epoch when it was measured
	at        time.Duration // time since boot at which epoch was measured
	asked     time.Duration // time since boot at which a measurement was last tried
	doubt     bool          // another server may lead the event log now, or its clock may have been set
	measuring bool
	ahead     time.Duration // last difference between the wall clock and the time since boot, see [Clock.ahead]
	looked    bool          // ahead has a value
}

// take uses an answer of the store to measure the store's clock. ts is the store's time in the answer; sent and
// received are the times since boot at which the question was sent and its answer received.
//
// Of two measurements, take keeps the more accurate one. If the two contradict each other, the store's clock was set or
// another server leads: take keeps the new measurement and returns the difference.
func (s *storeClock) take(sent, received time.Duration, ts time.Time) (moved time.Duration) {
	if ts.IsZero() || received < sent {
		return 0
	}
	off := (received - sent) / 2
	epoch := ts.Add(-sent - off)
	s.mu.Lock()
	defer s.mu.Unlock()
	keptOff := s.off + time.Duration(float64(received-s.at)*clockDrift)
	apart := epoch.Sub(s.epoch)
	set := s.known && apart.Abs() > off+keptOff
	if !s.known || set || off <= keptOff {
		s.known, s.epoch, s.off, s.at = true, epoch, off, received
	}
	s.asked, s.doubt = received, false
	if set {
		return apart
	}
	return 0
}

// The method "now" returns the store's time. If the result measure is true, the caller must start a measurement.
func (s *storeClock) now() (now time.Time, measure bool) {
	ahead, boot := s.machine.ahead()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looked && (ahead-s.ahead).Abs() > clockJump {
		s.doubt = true // the store may run on this machine and use the same clock
	}
	s.ahead, s.looked = ahead, true
	pause := measurePeriod
	if s.doubt || !s.known {
		pause = measurePause
	}
	measure = !s.measuring && boot-s.asked >= pause
	if measure {
		s.measuring, s.asked = true, boot
	}
	if !s.known {
		return s.machine.Wall().Round(0), measure
	}
	return s.epoch.Add(boot), measure
}

// measured records the end of a measurement that [storeClock.now] asked for.
func (s *storeClock) measured() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.measuring = false
}

// distrust asks for a new measurement soon, because another server may lead the event log now.
func (s *storeClock) distrust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubt = true
}

// Now returns the store's time in UTC: the wall clock of the server that leads the event log, as far as this process
// knows it. Events are stamped with the store's time. Code that compares the time of an event with the present uses Now
// too, so that clocks of different machines are never compared.
//
// The store's clock is measured when the streams are first read, and then by calls of Now, at most every 10 s. Until
// the streams are read, Now returns this machine's wall clock. While the store is unreachable, the returned time
// continues to advance. The returned time goes back if the store's clock is set back. Waits inside a process therefore
// use the process's monotonic clock.
func (c *core) Now() time.Time {
	now, measure := c.clock.now()
	if measure && c.withoutStreams {
		c.clock.measured()
	} else if measure {
		go c.measureClock()
	}
	return now.UTC()
}

// hasAge reports whether a message that was stored at a time has at least this age. Every message has the age 0: this
// process knows the store's clock only to within some milliseconds, so a new message may seem to be from the future.
func (c *core) hasAge(stored time.Time, age time.Duration) bool {
	return age <= 0 || c.Now().Sub(stored) >= age
}

// Skew returns how far this machine's wall clock is ahead of the store's clock. known is false before the first
// measurement.
func (c *core) Skew() (skew time.Duration, known bool) {
	now := c.Now()
	wall := c.clock.machine.Wall()
	c.clock.mu.Lock()
	defer c.clock.mu.Unlock()
	return wall.Sub(now), c.clock.known
}

// StoreTime converts a recent time of this machine's wall clock into the store's time.
func (c *core) StoreTime(wall time.Time) time.Time {
	ago := c.clock.machine.Wall().Sub(wall.Round(0))
	return c.Now().Add(-ago)
}

// measureClock asks for the store's time once.
func (c *core) measureClock() {
	defer c.clock.measured()
	if c.nc == nil || !c.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), measureWithin)
	defer cancel()
	if _, err := c.readStream(ctx, protocol.StreamEvents); err != nil {
		c.log.Debug("could not measure the store's clock", "error", err)
	}
}

// sinceBoot returns the time since boot by this connection's clock.
func (c *core) sinceBoot() time.Duration { return c.clock.machine.Boot() }

// began is used instead of the boot time on systems that do not report their boot time.
var began = time.Now()
