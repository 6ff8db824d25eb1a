package stream

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// timing holds the times at which one end acts by itself, without a frame or a call.
type timing struct {
	cfg *Config // of the machine

	opened  time.Time
	heardAt time.Time // when the last frame of the other end arrived
	spoke   bool      // at least one frame of the other end has arrived
	missed  int       // pings since then

	retryAt   time.Time // when to ask for an acknowledgement or credit; zero: nothing is awaited
	retries   int       // how often this was asked without progress
	endedAt   time.Time // when the stream ended; zero while it is open
	toldEndAt time.Time // when the other end was last told of the end
}

// isOver reports whether the stream ended, properly or not.
func (t *timing) isOver() bool { return !t.endedAt.IsZero() }

// wait begins to wait for an acknowledgement or for credit.
func (t *timing) wait(now time.Time) {
	if t.retryAt.IsZero() {
		t.retryAt, t.retries = now.Add(t.cfg.Retry), 0
	}
}

// progressed starts the wait again after an acknowledgement or credit has arrived.
func (m *machine) progressed(now time.Time) {
	m.retryAt = time.Time{}
	if m.awaits() {
		m.wait(now)
	}
}

// heard notes that a frame of the other end has arrived.
func (t *timing) heard(now time.Time) { t.heardAt, t.missed, t.spoke = now, 0, true }

// reconnected makes both ends send again the frames that may be lost.
func (m *machine) reconnected(now time.Time) {
	switch {
	case m.err != nil:
		m.owes.reset = m.resetOwn
	case m.isOver():
		m.owes.window = true
	default:
		m.owes.again, m.owes.ping = true, true
		m.retries = 0
		m.trip = roundTrip{} // the way may have changed, and the pong may be lost
		m.interrupted(now)
		if m.awaits() {
			m.retryAt = now.Add(m.cfg.Retry)
		}
	}
}

// wake returns the time at which tick has something to do.
func (m *machine) wake() time.Time {
	if m.isOver() {
		return m.lingersUntil()
	}
	at := m.silentAt()
	for _, t := range []time.Time{m.retryAt, m.ackAt, m.firstAt(), m.askAt, m.lastAt} {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	return at
}

// silentAt returns when the other end is pinged or given up if it stays silent.
func (t *timing) silentAt() time.Time { return t.heardAt.Add(time.Duration(t.missed+1) * t.cfg.Ping) }

// firstAt returns the time by which the first frame must have arrived.
func (t *timing) firstAt() time.Time {
	if t.spoke || t.cfg.FirstFrame <= 0 {
		return time.Time{}
	}
	return t.opened.Add(t.cfg.FirstFrame)
}

// lingersUntil returns the time until which an ended stream answers frames that were under way. An end that was reset
// by the other end has nothing to answer.
func (m *machine) lingersUntil() time.Time {
	if m.err != nil && !m.resetOwn {
		return m.endedAt
	}
	return m.endedAt.Add(m.cfg.Linger)
}

// isGone reports whether the machine needs no more frames and no more time.
func (m *machine) isGone(now time.Time) bool { return m.isOver() && !now.Before(m.lingersUntil()) }

// tick sends and ends what the present time requires.
func (m *machine) tick(now time.Time) {
	if m.isOver() {
		return
	}
	if first := m.firstAt(); !first.IsZero() && !now.Before(first) {
		m.reset(protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonStreamLost,
			"the client sent no frame within %s", m.cfg.FirstFrame), now)
		return
	}
	if !m.ackAt.IsZero() && !now.Before(m.ackAt) {
		m.owes.window = true
	}
	if !m.retryAt.IsZero() && !now.Before(m.retryAt) {
		m.retry(now)
	}
	if !now.Before(m.silentAt()) {
		m.silent(now)
	}
	m.ask(now)
}

// retry asks the other end how much it has received and grants. The answer shows which frames were lost.
func (m *machine) retry(now time.Time) {
	if !m.awaits() {
		m.retryAt = time.Time{}
		return
	}
	m.owes.ping = true
	m.suspect(m.cfg.Ask != nil, now)
	m.retries++
	m.retryAt = now.Add(min(m.cfg.Retry<<min(m.retries, 10), m.cfg.Ping))
}

func (m *machine) silent(now time.Time) {
	if m.missed >= m.cfg.Missed {
		m.reset(silentFor(now.Sub(m.heardAt)), now)
		return
	}
	m.missed++
	m.owes.ping = true
	m.suspect(m.cfg.Ask != nil, now)
}
