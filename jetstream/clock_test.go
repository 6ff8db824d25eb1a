package jetstream_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// machine is a machine whose clocks a test can move.
type machine struct{ wall, boot atomic.Int64 } // how far the test moved each clock

func (m *machine) clock() jetstream.Clock {
	began := time.Now()
	return jetstream.Clock{
		Wall: func() time.Time { return time.Now().Round(0).Add(time.Duration(m.wall.Load())) },
		Boot: func() time.Duration { return time.Hour + time.Since(began) + time.Duration(m.boot.Load()) },
	}
}

// setWall moves the wall clock, as if somebody had set it.
func (m *machine) setWall(by time.Duration) { m.wall.Add(int64(by)) }

// suspend moves both clocks, as a suspension of the machine does. Go's monotonic clock does not include suspensions.
func (m *machine) suspend(d time.Duration) { m.wall.Add(int64(d)); m.boot.Add(int64(d)) }

// paused moves only the wall clock. This is the correction after a hypervisor paused the machine: no clock advances
// during the pause, and then the wall clock is corrected.
func (m *machine) paused(d time.Duration) { m.wall.Add(int64(d)) }

// on opens a connection for a process that runs on the machine m.
func (d *deployment) on(t testing.TB, m *machine) *jetstream.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := jetstream.Connect(
		ctx,
		jetstream.Config{URL: d.url(), Logger: quiet, Clock: m.clock(), Options: func(o *nats.Options) {
			o.IgnoreDiscoveredServers = true
		}},
	)
	must(t, err)
	t.Cleanup(c.Close)
	must(t, c.Open(ctx))
	return c
}

// near is the accepted error of the store's time. The machine that runs the tests may stall during a measurement. near
// is much less than the difference of the clocks.
const near = time.Minute

func TestNowIsTheStoresTimeRegardlessOfTheLocalClock(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		var m machine
		m.setWall(-15 * time.Minute)
		c := d.on(t, &m)
		for _, step := range []time.Duration{0, 40 * time.Minute, -24 * time.Hour} {
			m.setWall(step)
			if off := time.Since(c.Now()); off.Abs() > near {
				t.Errorf("after the clock was set by %s, the store's time is off by %s", step, off)
			}
		}
		if skew, known := c.Skew(); !known || (skew+23*time.Hour+35*time.Minute).Abs() > near {
			t.Errorf("the skew is %s, %v", skew, known)
		}
		if at := c.StoreTime(m.clock().Wall().Add(-time.Hour)); time.Since(at.Add(time.Hour)).Abs() > near {
			t.Errorf("an hour ago converts to %s", at)
		}

		var decided time.Time
		decide := func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
			decided = now
			return becomeReady(s, now)
		}
		events, err := journal(c, d.tenant, "s1", "k1").Do(t.Context(), decide)
		must(t, err)
		if off := time.Since(decided); off.Abs() > near {
			t.Errorf("the time of a decision is off by %s", off)
		}
		for _, e := range events {
			if off := time.Since(e.Time); off.Abs() > near {
				t.Errorf("the time of %s is off by %s", e.Kind, off)
			}
		}
	})
}

// Two writers' measurements of the store's time differ by their round trips.
func TestTimesInAHistoryDoNotGoBackwards(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	var behind, ahead machine
	first, second := d.on(t, &ahead), d.on(t, &behind)
	ahead.boot.Add(int64(800 * time.Millisecond)) // as if the answer to the measurement had taken a long time
	written := func(c *jetstream.Conn, decide jetstream.Decide) time.Time {
		t.Helper()
		events, err := journal(c, "t1", "s1", "k1").Do(t.Context(), decide)
		must(t, err)
		return events[len(events)-1].Time
	}
	one := written(first, becomeReady)
	two := written(second, func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return []protocol.Event{{Kind: protocol.SandboxStopRequested}}, nil
	})
	if two.Before(one) {
		t.Errorf("the second event is %s before the first", one.Sub(two))
	}
	ahead.boot.Add(int64(time.Hour)) // a clock that is far ahead does not affect other writers
	written(d.on(t, &behind), func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return []protocol.Event{{Kind: protocol.SandboxStopped}}, nil
	})
	wrong := written(first, func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return []protocol.Event{{Kind: protocol.SandboxResumeRequested}}, nil
	})
	right := written(second, func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return []protocol.Event{{Kind: protocol.SandboxDeleteRequested}}, nil
	})
	if time.Until(wrong) < 30*time.Minute || time.Since(right).Abs() > near {
		t.Errorf("the writer with the wrong clock wrote %s, and the next one %s", wrong, right)
	}
}

func TestTheStoresTimeIsTheWallClockUntilTheStoreAnswers(t *testing.T) {
	var m machine
	m.setWall(time.Hour)
	s := jetstream.NewStoreClock(m.clock())
	if now, measure := s.Now(); time.Until(now.Add(-time.Hour)).Abs() > near || !measure {
		t.Errorf("now is %s, measure: %v", now, measure)
	}
}

func TestTheMeasurementWithTheShortestRoundTripCounts(t *testing.T) {
	var at time.Duration
	wall := time.Unix(1e9, 0)
	s := jetstream.NewStoreClock(
		jetstream.Clock{Wall: func() time.Time { return wall.Add(at) }, Boot: func() time.Duration { return at }},
	)
	is := func(want time.Time) {
		t.Helper()
		if now, _ := s.Now(); !now.Equal(want) {
			t.Errorf("now is %s, want %s", now, want)
		}
	}
	store := func(boot time.Duration) time.Time { return time.Unix(2e9, 0).Add(boot) } // the store's true time
	// With a round trip of 100 ms, the best guess is that the server answered in the middle of the round trip.
	at = 100 * time.Second
	s.Take(at-100*time.Millisecond, at, store(at-50*time.Millisecond))
	is(store(at))
	// This round trip is long, and the measurement does not contradict the first one. The first measurement is more
	// precise and stays.
	at += 5 * time.Second
	if moved := s.Take(at-time.Second, at, store(at-900*time.Millisecond)); moved != 0 {
		t.Errorf("the clock moved by %s, want 0", moved)
	}
	is(store(at))
	// With a shorter round trip, this measurement is more precise than the first.
	at += 5 * time.Second
	s.Take(at-2*time.Millisecond, at, store(at-2*time.Millisecond))
	is(store(at).Add(-time.Millisecond))
	// A difference beyond the possible error means another clock, even after a long round trip.
	at += 5 * time.Second
	moved := s.Take(at-2*time.Second, at, store(at-time.Second).Add(-time.Minute))
	if (moved + time.Minute).Abs() > time.Second {
		t.Errorf("the clock moved by %s, want about -1m", moved)
	}
	is(store(at).Add(-time.Minute))
}

func TestTheStoresTimeIsMeasuredAgainWhenItMayHaveChanged(t *testing.T) {
	var at, set time.Duration
	s := jetstream.NewStoreClock(
		jetstream.Clock{
			Wall: func() time.Time { return time.Unix(1e9, 0).Add(at + set) },
			Boot: func() time.Duration { return at },
		},
	)
	measures := func() bool { _, measure := s.Now(); return measure }
	answers := func() { s.Take(at, at, time.Unix(2e9, 0).Add(at)) }
	at = time.Hour
	if !measures() {
		t.Fatal("the time is unknown and is not being measured")
	}
	answers()
	at += 9 * time.Second
	if measures() {
		t.Error("measured again after 9 s")
	}
	at += 2 * time.Second
	if !measures() {
		t.Error("not measured again after 11 s")
	}
	answers()
	for what, happens := range map[string]func(){
		"another leader":         s.Distrust,
		"the clock was set":      func() { set += 2 * time.Second },
		"the clock was put back": func() { set -= time.Hour },
	} {
		at += 2 * time.Second
		if measures() {
			t.Errorf("the clock was measured before this event: %s", what)
		}
		happens()
		if !measures() {
			t.Errorf("the clock was not measured after this event: %s", what)
		}
		at += time.Second / 2
		if measures() {
			t.Errorf("%s: the clock is measured again immediately after a failure", what)
		}
		answers()
	}
}

func TestALeaseCountsSuspensions(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: time.Minute})
	var m machine
	l, err := d.on(t, &m).AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	must(t, l.Check())
	m.suspend(41 * time.Second)
	wantError(t, l.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)
	if until, _ := l.Trusted(); until != l.TrustedUntil() {
		t.Errorf("Trusted returned %s, want %s", until, l.TrustedUntil())
	}
}

// A machine that its hypervisor paused continues as if nothing had happened, and then its wall clock is corrected.
func TestALeaseIsNotTrustedAfterAClockJumpUntilItIsRenewed(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: time.Hour}) // unless asked, Run renews the lease only every 10 min
	for name, jump := range map[string]func(m *machine){
		"paused":    func(m *machine) { m.paused(10 * time.Minute) },
		"set-back":  func(m *machine) { m.setWall(-time.Hour) },
		"set-ahead": func(m *machine) { m.setWall(15 * 24 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			var m machine
			l, err := d.on(t, &m).AcquireHost(t.Context(), name, holder("w1"), 0)
			must(t, err)
			m.setWall(time.Second) // the lease tolerates a jump of this size
			must(t, l.Check())
			jump(&m)
			wantError(t, l.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)
			wantError(t, l.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost) // the lease must be renewed first
			renewed(t, l)
			eventually.Holds(t, time.Minute, "the lease is renewed", func() bool { return l.Check() == nil })
		})
	}
}

func TestTheStoresTimeCostsOneRequestPerTenSeconds(t *testing.T) {
	d := startServer(t, jetstream.Assets{})
	var m machine
	c := d.on(t, &m)
	var asked atomic.Int64
	raw := d.raw(t)
	_, err := raw.Subscribe("$JS.API.STREAM.INFO."+protocol.StreamEvents, func(*nats.Msg) { asked.Add(1) })
	must(t, err)
	must(t, raw.Flush())
	began := time.Now()
	for range 600 { // 60 s in steps of 100 ms
		m.suspend(100 * time.Millisecond)
		c.Now()
	}
	eventually.Holds(t, 10*time.Second, "the store's clock is measured", func() bool { return asked.Load() > 0 })
	must(t, raw.Flush())
	passed := time.Minute + time.Since(began)
	if n, most := asked.Load(), int64(passed/(10*time.Second))+1; n > most {
		t.Errorf("%d requests in %s, want at most %d", n, passed, most)
	}
}

func BenchmarkNow(b *testing.B) {
	c := startServer(b, jetstream.Assets{}).opened(b)
	for b.Loop() {
		c.Now()
	}
}
