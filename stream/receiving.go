package stream

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// receiving holds the bytes that one end has received and the program has not read.
type receiving struct {
	unread   [][]byte
	buffered int    // bytes in unread
	window   int    // how much may be unread
	consumed uint64 // how many bytes the program has read or dropped
	granted  uint64 // how many bytes the other end was told that it may send
	received uint64 // how much was received without a gap; an eof counts as one
	acked    uint64 // value of received that the other end was told last

	roundFrom uint64    // value of consumed from which on a window is being timed
	roundAt   time.Time // when the program read the first bytes from there on
	trip      roundTrip

	framesUnacked int       // frames since the last acknowledgement
	ackAt         time.Time // when to acknowledge at the latest; zero: nothing to acknowledge
	gapAt         uint64    // value of received when a gap was last reported
	gapTold       time.Time // when; zero: never

	eofReceived bool
	length      uint64 // how many bytes the other end has sent in all; known once eofReceived is set
}

// ackDelay is how long an acknowledgement waits for a frame that it can share. It is less than the other end's
// [Config.Retry].
const ackDelay = 40 * time.Millisecond

// acceptData takes a data frame.
func (m *machine) acceptData(frame []byte, now time.Time) *protocol.Error {
	n := len(frame) - dataHeader
	if n < 1 || n > m.cfg.TakeFrame {
		return violation("a data frame has %d bytes, 1 to %d are allowed", n, m.cfg.TakeFrame)
	}
	offset := word(frame, 0)
	if offset > offsetsMost || offset+uint64(n) > m.granted {
		return violation("%d bytes at offset %d exceed the %d bytes that were granted", n, offset, m.granted)
	}
	end := offset + uint64(n)
	if m.eofReceived {
		if end > m.length {
			return violation("data at offset %d follows the end at %d", offset, m.length)
		}
		m.owes.window = true
		return nil
	}
	switch {
	case end <= m.received:
		m.owes.window = true // the acknowledgement was lost
	case offset > m.received:
		m.gap(now)
	default:
		m.take(frame[dataHeader:], int(m.received-offset), now)
	}
	return nil
}

// take stores data without its first skip bytes, which were received before.
func (m *machine) take(data []byte, skip int, now time.Time) {
	n := len(data) - skip
	m.received += uint64(n)
	m.framesUnacked++
	if m.ackAt.IsZero() {
		m.ackAt = now.Add(ackDelay)
	}
	if m.closed || m.deaf {
		m.consumed += uint64(n)
	} else {
		m.keep(data, skip)
	}
	m.grant()
}

// gatherMost is the size in bytes up to which data is copied behind the data before it. Otherwise a small piece of a
// message would hold the memory of the whole message.
const gatherMost = 4 << 10

func (m *machine) keep(data []byte, skip int) {
	fresh := data[skip:]
	m.buffered += len(fresh)
	if len(fresh) > gatherMost && skip <= len(fresh) {
		m.unread = append(m.unread, fresh[:len(fresh):len(fresh)])
		return
	}
	for len(fresh) > 0 {
		last := len(m.unread) - 1
		if last < 0 || len(m.unread[last]) == cap(m.unread[last]) {
			size := leastChunk
			if last >= 0 {
				size = gatherMost
			}
			m.unread = append(m.unread, make([]byte, 0, max(size, min(len(fresh), 2*gatherMost))))
			last++
		}
		into := m.unread[last]
		n := min(len(fresh), cap(into)-len(into))
		m.unread[last] = append(into, fresh[:n]...)
		fresh = fresh[n:]
	}
}

// acceptEOF takes the end of what the other end sends.
func (m *machine) acceptEOF(offset uint64, now time.Time) *protocol.Error {
	switch {
	case m.eofReceived && offset == m.length:
		m.owes.window = true // the acknowledgement was lost
	case m.eofReceived:
		return violation("the end is at %d and at %d", m.length, offset)
	case offset < m.received:
		return violation("the end is at %d, but %d bytes were received", offset, m.received)
	case offset > m.granted:
		return violation("the end is at %d, but only %d bytes were granted", offset, m.granted)
	case offset > m.received:
		m.gap(now)
	default:
		m.eofReceived, m.length = true, offset
		m.received++
		m.owes.window = true
	}
	return nil
}

// gap asks for the frames that are missing, once for each gap, and again only if they do not come.
func (m *machine) gap(now time.Time) {
	if m.gapTold.IsZero() || m.gapAt != m.received || now.Sub(m.gapTold) >= m.cfg.Retry {
		m.gapAt, m.gapTold, m.owes.again = m.received, now, true
	}
}

// read copies received bytes that were not read before.
func (m *machine) read(p []byte, now time.Time) (n int) {
	for n < len(p) && len(m.unread) > 0 {
		k := copy(p[n:], m.unread[0])
		n += k
		if m.unread[0] = m.unread[0][k:]; len(m.unread[0]) == 0 {
			m.unread[0] = nil
			m.unread = m.unread[1:]
		}
	}
	m.used(n, now)
	return n
}

// lend returns the next bytes that were received. The program has read them when it calls used.
func (m *machine) lend() []byte {
	p := m.unread[0]
	m.unread[0] = nil
	m.unread = m.unread[1:]
	return p
}

// used notes that the program has read n bytes.
func (m *machine) used(n int, now time.Time) {
	if n > m.buffered {
		return // the program has closed the stream in the meantime, and everything was dropped
	}
	m.buffered -= n
	m.consumed += uint64(n)
	if m.err == nil && n > 0 {
		m.grow(now)
		m.grant()
	}
}

// pipeline is up to how many frames a window grows whatever the round trip is: while one is read, the next ones are
// under way.
const pipeline = 4

// creditRounds is how many round trips a window may take and still count as too small. With a window that lasts longer,
// the other end still has credit whenever an acknowledgement arrives.
const creditRounds = 2

// grow doubles the window if the program keeps up with the other end, and the other end has used up the window in about
// one round trip. It has then waited for credit. Otherwise a larger window would only hold more bytes, which delay
// those of others.
func (m *machine) grow(now time.Time) {
	if m.eofReceived || m.window >= m.cfg.MaxWindow {
		return // if nothing more comes, the end may have given back its budget
	}
	if m.roundAt.IsZero() {
		m.roundAt = now
	}
	if m.consumed-m.roundFrom < uint64(m.window) {
		return
	}
	took := now.Sub(m.roundAt)
	m.roundFrom, m.roundAt = m.consumed, now
	if m.cfg.measuresRoundTrip() && m.trip.isMissing(now, m.cfg.Retry) {
		m.trip, m.owes.ping = roundTrip{}, true
	}
	if m.buffered > m.window/2 || m.window >= pipeline*m.cfg.TakeFrame && took > creditRounds*m.trip.shortest {
		return
	}
	most := m.cfg.MaxWindow
	if m.window < pipeline*m.cfg.TakeFrame {
		most = min(most, pipeline*m.cfg.TakeFrame)
	}
	more := m.cfg.Budget.take(min(m.window, most-m.window))
	m.window += more
	m.lent.grants += more
}

// limit returns how many bytes the other end may send now. It never decreases.
func (m *machine) limit() uint64 { return max(m.granted, m.consumed+uint64(m.window)) }

// grant sends credit and acknowledges received bytes, once either is worth a frame. Credit also acknowledges, and
// follows soon if the program reads, so an acknowledgement alone waits for twice as many bytes.
func (m *machine) grant() {
	quarter := uint64(m.window / 4)
	credit := !m.eofReceived && m.limit()-m.granted >= quarter
	if credit || m.received-m.acked >= 2*quarter || m.framesUnacked >= ackEvery {
		m.owes.window = true
	}
}

func (m *machine) dropUnread() {
	m.consumed += uint64(m.buffered)
	m.unread, m.buffered = nil, 0
	if m.err == nil {
		m.grant()
	}
}
