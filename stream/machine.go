package stream

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// machine is one end of a stream, without a clock, a lock and a transport. Its owner calls
//
//	receive  with each frame of the other end
//	write, read, closeWrite, close, reset  for the program
//	next  until it returns nil, after each of the others, and sends the frames
//	tick  at the time that wake returns
type machine struct {
	cfg Config

	sending
	receiving
	timing
	asking
	lent

	owes     owed            // frames to send in addition to data
	err      *protocol.Error // the stream was reset or lost
	resetOwn bool            // this end reset the stream, so it answers frames with a reset
	closed   bool            // the program called Close
}

// owed are frames to send. Each of them says the present state, so one of each is enough.
type owed struct {
	reset, again, ping, pong, window bool
	question                         bool // whether the other end still has the stream, see [Config.Ask]
	pongMark                         uint64
}

func newMachine(cfg Config, now time.Time) *machine {
	cfg.setDefaults()
	m := &machine{cfg: cfg}
	m.sending.cfg, m.receiving.cfg, m.timing.cfg = &m.cfg, &m.cfg, &m.cfg
	m.sending.lent, m.receiving.lent, m.receiving.owes = &m.lent, &m.lent, &m.owes
	m.credit = uint64(cfg.PeerWindow)
	m.window, m.granted = cfg.Window, uint64(cfg.Window)
	m.heardAt, m.opened, m.quietSince = now, now, now
	m.borrow()
	m.owes.ping = cfg.Greet || m.cfg.measuresRoundTrip()
	if cfg.Greet {
		m.wait(now)
	}
	return m
}

// Defaults of a [Config].
const (
	defaultPing   = 15 * time.Second
	defaultMissed = 3
	defaultRetry  = 250 * time.Millisecond
	defaultLinger = time.Second
)

func (c *Config) setDefaults() {
	for _, d := range []struct {
		value *int
		is    int
	}{
		{&c.Frame, protocol.StreamFrame}, {&c.TakeFrame, protocol.StreamFrame}, {&c.Window, protocol.StreamWindow},
		{&c.PeerWindow, protocol.StreamWindow}, {&c.Missed, defaultMissed},
	} {
		if *d.value <= 0 {
			*d.value = d.is
		}
	}
	c.MaxWindow = max(c.MaxWindow, c.Window)
	for _, d := range []struct{ value, is *time.Duration }{
		{&c.Ping, ptr(defaultPing)}, {&c.Retry, ptr(defaultRetry)}, {&c.Linger, ptr(defaultLinger)},
	} {
		if *d.value <= 0 {
			*d.value = *d.is
		}
	}
}

func ptr[T any](v T) *T { return &v }

// next returns the next frame to send, or nil. The frame is valid until the machine is used again, except that a data
// frame stays valid until it is acknowledged.
func (m *machine) next(now time.Time) []byte {
	if m.owes.reset {
		m.owes.reset = false
		return resetFrame(m.err)
	}
	if m.err != nil {
		return nil
	}
	switch o := &m.owes; {
	case o.again:
		o.again = false
		return m.tell(typeAgain)
	case o.pong:
		o.pong = false
		return m.tell(typePong, o.pongMark)
	case o.ping:
		o.ping = false
		m.trip.pinged(now)
		return m.tell(typePing, m.sent)
	case o.window:
		return m.tell(typeWindow)
	}
	return m.nextData(now)
}

// tell returns a frame that says how much this end has received and granted. It notes that the other end was told.
func (m *machine) tell(kind byte, more ...uint64) []byte {
	m.granted = m.limit()
	m.acked, m.framesUnacked, m.ackAt, m.owes.window = m.received, 0, time.Time{}, false
	return words(kind, append([]uint64{m.received, m.granted}, more...)...)
}

// receive takes a frame. Parts of the frame may be kept.
func (m *machine) receive(frame []byte, now time.Time) {
	if m.err != nil || m.isOver() {
		m.receiveLate(frame, now)
		return
	}
	if why := m.accept(frame, now); why != nil {
		m.reset(why, now)
		return
	}
	m.heard(now)
	m.spokenTo(now)
	m.settle(now)
}

// receiveLate answers a frame that arrives when the stream has ended, so that the other end learns that it has ended.
func (m *machine) receiveLate(frame []byte, now time.Time) {
	if len(frame) == 0 || frame[0] == typeReset {
		return
	}
	switch {
	case m.err != nil && m.resetOwn && now.Sub(m.toldEndAt) >= m.cfg.Retry/2:
		m.owes.reset, m.toldEndAt = true, now
	case m.err == nil && frame[0] == typePing && len(frame) == pingSize:
		m.owes.pong, m.owes.pongMark = true, word(frame, 2)
	case m.err == nil && (frame[0] == typeData || frame[0] == typeEOF):
		m.owes.window = true
	}
}

// accept applies a frame. why is the error with which the stream is reset because of the frame.
func (m *machine) accept(frame []byte, now time.Time) (why *protocol.Error) {
	if len(frame) == 0 {
		return violation("a frame is empty")
	}
	sizes := map[byte]int{typeWindow: windowSize, typeAgain: windowSize, typeEOF: eofSize, typePing: pingSize,
		typePong: pingSize}
	if frame[0] != typeData {
		if size, fixed := sizes[frame[0]]; fixed && len(frame) != size {
			return violation("a frame of type %d has %d bytes instead of %d", frame[0], len(frame), size)
		}
	}
	switch frame[0] {
	case typeData:
		return m.acceptData(frame, now)
	case typeEOF:
		return m.acceptEOF(word(frame, 0), now)
	case typeReset:
		e, ok := parseReset(frame)
		if !ok {
			return violation("a reset of %d bytes is malformed", len(frame))
		}
		m.fail(e, now)
		return nil
	case typeWindow, typeAgain, typePing, typePong:
		return m.acceptState(frame, now)
	}
	return violation("a frame has the unknown type %d", frame[0])
}

func (m *machine) acceptState(frame []byte, now time.Time) *protocol.Error {
	s := state{received: word(frame, 0), limit: word(frame, 1)}
	if s.received > m.sent || s.limit > offsetsMost {
		return violation("the other end acknowledges %d bytes and grants %d, but %d were sent", s.received, s.limit, m.sent)
	}
	m.acknowledge(s, now)
	switch frame[0] {
	case typeAgain:
		m.rewind(s.received)
	case typePing:
		m.owes.pong, m.owes.pongMark = true, word(frame, 2)
	case typePong:
		m.trip.ponged(now)
		if mark := word(frame, 2); mark <= m.sent && s.received < mark {
			m.rewind(s.received) // the pong follows everything up to the mark, so the rest was lost
		}
	}
	return nil
}

func violation(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonStreamViolation, format, args...)
}

// settle notes the end of a stream whose last byte has gone both ways, and resets a stream that the program has closed
// while the other end still sends.
func (m *machine) settle(now time.Time) {
	if m.err != nil || !m.endedAt.IsZero() || !m.eofAcked() {
		return
	}
	if m.eofReceived {
		m.endedAt, m.toldEndAt = now, now
	} else if m.closed {
		m.reset(errPeerClosed, now)
	}
}

// fail ends the stream with an error of the other end, or because the other end is lost.
func (m *machine) fail(e *protocol.Error, now time.Time) {
	if m.err != nil {
		return
	}
	m.err, m.owes = e, owed{}
	if m.endedAt.IsZero() {
		m.endedAt = now
	}
	m.dropUnsent()
}

// reset ends the stream with an error of this end.
func (m *machine) reset(e *protocol.Error, now time.Time) {
	if m.err != nil || m.isOver() {
		return
	}
	m.fail(e, now)
	m.dropUnread()
	m.resetOwn, m.owes.reset, m.toldEndAt = true, true, now
}

// close says that the program neither reads nor writes any more.
func (m *machine) close(now time.Time) {
	if m.closed {
		return
	}
	m.closed, m.drops, m.eofWritten = true, true, true
	m.dropUnread()
	m.settle(now)
}
