package stream

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// receiving holds the bytes that one end has received and the program has not read.
type receiving struct {
	cfg  *Config // of the machine
	lent *lent   // of the machine
	owes *owed   // of the machine

	unread   [][]byte
	buffered int    // bytes in unread
	drops    bool   // the program reads no more: bytes that arrive are dropped
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
func (r *receiving) acceptData(frame []byte, now time.Time) *protocol.Error {
	n := len(frame) - dataHeader
	if n < 1 || n > r.cfg.TakeFrame {
		return violation("a data frame has %d bytes, 1 to %d are allowed", n, r.cfg.TakeFrame)
	}
	offset := word(frame, 0)
	if offset > offsetsMost || offset+uint64(n) > r.granted {
		return violation("%d bytes at offset %d exceed the %d bytes that were granted", n, offset, r.granted)
	}
	end := offset + uint64(n)
	if r.eofReceived {
		if end > r.length {
			return violation("data at offset %d follows the end at %d", offset, r.length)
		}
		r.owes.window = true
		return nil
	}
	switch {
	case end <= r.received:
		r.owes.window = true // the acknowledgement was lost
	case offset > r.received:
		r.gap(now)
	default:
		r.take(frame[dataHeader:], int(r.received-offset), now)
	}
	return nil
}

// take stores data without its first skip bytes, which were received before.
func (r *receiving) take(data []byte, skip int, now time.Time) {
	n := len(data) - skip
	r.received += uint64(n)
	r.framesUnacked++
	if r.ackAt.IsZero() {
		r.ackAt = now.Add(ackDelay)
	}
	if r.drops {
		r.consumed += uint64(n)
	} else {
		r.keep(data, skip)
	}
	r.grant()
}

// gatherMost is the size in bytes up to which data is copied behind the data before it. Otherwise a small piece of a
// message would hold the memory of the whole message.
const gatherMost = 4 << 10

func (r *receiving) keep(data []byte, skip int) {
	fresh := data[skip:]
	r.buffered += len(fresh)
	if len(fresh) > gatherMost && skip <= len(fresh) {
		r.unread = append(r.unread, fresh[:len(fresh):len(fresh)])
		return
	}
	for len(fresh) > 0 {
		last := len(r.unread) - 1
		if last < 0 || len(r.unread[last]) == cap(r.unread[last]) {
			size := leastChunk
			if last >= 0 {
				size = gatherMost
			}
			r.unread = append(r.unread, make([]byte, 0, max(size, min(len(fresh), 2*gatherMost))))
			last++
		}
		into := r.unread[last]
		n := min(len(fresh), cap(into)-len(into))
		r.unread[last] = append(into, fresh[:n]...)
		fresh = fresh[n:]
	}
}

// acceptEOF takes the end of what the other end sends.
func (r *receiving) acceptEOF(offset uint64, now time.Time) *protocol.Error {
	switch {
	case r.eofReceived && offset == r.length:
		r.owes.window = true // the acknowledgement was lost
	case r.eofReceived:
		return violation("the end is at %d and at %d", r.length, offset)
	case offset < r.received:
		return violation("the end is at %d, but %d bytes were received", offset, r.received)
	case offset > r.granted:
		return violation("the end is at %d, but only %d bytes were granted", offset, r.granted)
	case offset > r.received:
		r.gap(now)
	default:
		r.eofReceived, r.length = true, offset
		r.received++
		r.owes.window = true
	}
	return nil
}

// gap asks for the frames that are missing, once for each gap, and again only if they do not come.
func (r *receiving) gap(now time.Time) {
	if r.gapTold.IsZero() || r.gapAt != r.received || now.Sub(r.gapTold) >= r.cfg.Retry {
		r.gapAt, r.gapTold, r.owes.again = r.received, now, true
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
func (r *receiving) lend() []byte {
	p := r.unread[0]
	r.unread[0] = nil
	r.unread = r.unread[1:]
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
func (r *receiving) grow(now time.Time) {
	if r.eofReceived || r.window >= r.cfg.MaxWindow {
		return // if nothing more comes, the end may have given back its budget
	}
	if r.roundAt.IsZero() {
		r.roundAt = now
	}
	if r.consumed-r.roundFrom < uint64(r.window) {
		return
	}
	took := now.Sub(r.roundAt)
	r.roundFrom, r.roundAt = r.consumed, now
	if r.cfg.measuresRoundTrip() && r.trip.isMissing(now, r.cfg.Retry) {
		r.trip, r.owes.ping = roundTrip{}, true
	}
	if r.buffered > r.window/2 || r.window >= pipeline*r.cfg.TakeFrame && took > creditRounds*r.trip.shortest {
		return
	}
	most := r.cfg.MaxWindow
	if r.window < pipeline*r.cfg.TakeFrame {
		most = min(most, pipeline*r.cfg.TakeFrame)
	}
	more := r.cfg.Budget.take(min(r.window, most-r.window))
	r.window += more
	r.lent.grants += more
}

// limit returns how many bytes the other end may send now. It never decreases.
func (r *receiving) limit() uint64 { return max(r.granted, r.consumed+uint64(r.window)) }

// grant sends credit and acknowledges received bytes, once either is worth a frame. Credit also acknowledges, and
// follows soon if the program reads, so an acknowledgement alone waits for twice as many bytes.
func (r *receiving) grant() {
	quarter := uint64(r.window / 4)
	credit := !r.eofReceived && r.limit()-r.granted >= quarter
	if credit || r.received-r.acked >= 2*quarter || r.framesUnacked >= ackEvery {
		r.owes.window = true
	}
}

func (r *receiving) dropUnread() {
	r.consumed += uint64(r.buffered)
	r.unread, r.buffered = nil, 0
	r.grant()
}
