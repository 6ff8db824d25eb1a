package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Clock is where a connection reads the time of its machine. The zero value reads the machine's clocks;
// tests set others.
type Clock struct {
	// Wall is the wall clock, which people and programs may set at any time. Default time.Now.
	Wall func() time.Time

	// Boot is the time since some moment in the past. It counts suspensions, and nobody can set it. Default
	// CLOCK_BOOTTIME, or the process's monotonic clock where there is none.
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

// readAtOnce is how close together two clocks must be read to be compared.
const readAtOnce = time.Millisecond

// ahead is how far the wall clock is from the time since boot. Only its changes say something: the wall
// clock was set, or the machine was paused by its hypervisor, which set the wall clock right afterwards.
func (k *Clock) ahead() (ahead, boot time.Duration) {
	for range 3 { // the process may be interrupted between two of them
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
	measurePeriod = 10 * time.Second // between two measures of the store's clock
	measurePause  = time.Second      // the same, where the last one failed, or may no longer be true
	measureWithin = 2 * time.Second  // for one answer

	// clockDrift is how far two clocks may go apart, per time.
	clockDrift = 1.0 / 5000

	// clockJump is by how much a clock has to change at once to have been set.
	clockJump = time.Second
)

// storeClock is the clock of the store: the wall clock of the server that leads the event log, as seen
// from here. It goes on by the time since boot, so it does not move when somebody sets this machine's clock.
type storeClock struct {
	machine Clock

	mu        sync.Mutex
	known     bool
	epoch     time.Time     // the store's clock when the time since boot was 0
	off       time.Duration // at most, of epoch, when it was measured
	at        time.Duration // of that measure, since boot
	asked     time.Duration // of the last try to measure, since boot
	doubt     bool          // the store may have another clock now
	measuring bool
	ahead     time.Duration // of the wall clock before the time since boot, when it was last read
	looked    bool          // ahead is set
}

// take takes a measure: an answer carried the store's time ts, and was asked for and came at these times
// since boot. Of two measures the one with the shorter way is kept, unless they cannot both be true: then
// the store's clock was set, or another server leads. It returns by how much the clock was moved for that.
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

// now returns the store's time, and whether it should be measured again now. Who is told so has to.
func (s *storeClock) now() (now time.Time, measure bool) {
	ahead, boot := s.machine.ahead()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looked && (ahead-s.ahead).Abs() > clockJump {
		s.doubt = true // the store's machine may be this one
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

// distrust has the clock measured again soon: another server may lead.
func (s *storeClock) distrust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubt = true
}

// Now returns the time of the store, in UTC: the wall clock of the server that leads the event log, as far
// as this process knows it. Events carry it, and everything that compares an event's time with the present
// asks for it, so that no two machines' clocks are compared.
//
// It is measured when the streams are first read, and then with one request each 10 s at most, as long as
// Now is called. It goes on while the store is away. Until the streams were read it is this machine's wall
// clock. It may go back where the store's clock is set back: waits inside a process are timed by its own
// monotonic clock.
func (c *Conn) Now() time.Time {
	now, measure := c.clock.now()
	if measure {
		go c.measureClock()
	}
	return now.UTC()
}

// Skew is how far this machine's wall clock is ahead of the store's; known is false before the first measure.
func (c *Conn) Skew() (skew time.Duration, known bool) {
	now := c.Now()
	wall := c.clock.machine.Wall()
	c.clock.mu.Lock()
	defer c.clock.mu.Unlock()
	return wall.Sub(now), c.clock.known
}

// StoreTime translates a time by this machine's wall clock, of a moment that is not long ago.
func (c *Conn) StoreTime(wall time.Time) time.Time {
	ago := c.clock.machine.Wall().Sub(wall.Round(0))
	return c.Now().Add(-ago)
}

// measureClock asks for the store's time once.
func (c *Conn) measureClock() {
	defer func() {
		c.clock.mu.Lock()
		defer c.clock.mu.Unlock()
		c.clock.measuring = false
	}()
	if c.nc == nil || !c.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), measureWithin)
	defer cancel()
	ctx, end := c.await(ctx)
	defer end()
	if _, err := c.readStream(ctx, protocol.StreamEvents); err != nil {
		c.log.Debug("the store's clock is not measured", "error", err)
	}
}

// sinceBoot is the time since boot by this connection's clock.
func (c *Conn) sinceBoot() time.Duration { return c.clock.machine.Boot() }

// began is where the time counts from where the machine does not say how long it has been up.
var began = time.Now()
