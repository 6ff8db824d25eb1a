package stream

import (
	"time"
)

// sending holds the bytes that one end has to send, and those that the other end has not acknowledged.
type sending struct {
	cfg  *Config // of the machine
	lent *lent   // of the machine

	queue   []*chunk // chunks that are not acknowledged, in order
	cursor  int      // the first chunk to send
	spare   [][]byte // the memory of acknowledged chunks, to be used again
	using   *chunk   // chunk that is being sent, so its memory must not be reused
	end     uint64   // how many bytes were written
	sent    uint64   // how much was sent at least once; an eof counts as one
	ackedBy uint64   // how much the other end has acknowledged; an eof counts as one
	credit  uint64   // how many bytes the other end has granted
	allowed int      // how many unacknowledged bytes may be kept

	eofWritten bool // no more bytes follow
	eofSent    bool // the other end was told that no more bytes follow, since the last rewind
}

// chunk is a data frame: a header and its data.
type chunk struct {
	frame  []byte
	offset uint64 // offset of the chunk's first byte
	sent   bool   // sent at least once, so it may not grow
}

func (c *chunk) end() uint64 { return c.offset + uint64(len(c.frame)-dataHeader) }

const (
	// unackedMost is how many frames are sent before the other end must acknowledge some. It bounds the memory for small
	// frames. While this many are under way, written bytes gather in large frames.
	unackedMost = 256

	// ackEvery is how many frames are taken before they are acknowledged at once.
	ackEvery = unackedMost / 4

	leastChunk = 256 // bytes of a small chunk's memory
	spareMost  = 2   // chunks whose memory is kept to be used again
)

// write keeps as much of p as fits and returns its length.
func (s *sending) write(p []byte) (n int) {
	for len(p) > 0 {
		if !s.makeRoom() {
			return n
		}
		room := s.room()
		c := s.growing(len(p))
		k := min(len(p), room, s.cfg.Frame-(len(c.frame)-dataHeader))
		c.frame = append(c.frame, p[:k]...)
		s.end += uint64(k)
		p, n = p[k:], n+k
	}
	return n
}

// growing returns the last chunk, if it was not sent yet and has room, or a new chunk for this many bytes.
func (s *sending) growing(bytes int) *chunk {
	if k := len(s.queue); k > s.cursor {
		if c := s.queue[k-1]; !c.sent && len(c.frame) < s.cfg.Frame+dataHeader {
			return c
		}
	}
	return s.add(s.memory(bytes)[:dataHeader])
}

// add puts a new chunk at the end. Its frame has room for the header, and may have data.
func (s *sending) add(frame []byte) *chunk {
	c := &chunk{frame: frame, offset: s.end}
	putDataHeader(c.frame, c.offset)
	s.queue = append(s.queue, c)
	s.end += uint64(len(frame) - dataHeader)
	return c
}

// adopt puts a frame with data at the end. Small data is copied, so that it does not keep the memory of a whole frame.
func (s *sending) adopt(frame []byte) {
	if len(frame) < cap(frame)/2 {
		s.write(frame[dataHeader:])
		return
	}
	s.add(frame)
}

// memory returns memory for the frame of a chunk of this many bytes.
func (s *sending) memory(bytes int) []byte {
	need := min(bytes, s.cfg.Frame) + dataHeader
	if k := len(s.spare); k > 0 {
		frame := s.spare[k-1]
		s.spare[k-1], s.spare = nil, s.spare[:k-1]
		if cap(frame) >= need {
			return frame
		}
	}
	return make([]byte, dataHeader, max(need, leastChunk))
}

// room returns how many bytes write would keep.
func (s *sending) room() int { return s.allowed - int(s.end-min(s.ackedBy, s.end)) }

// nextData returns the next data frame or the eof, if the other end takes it now.
func (m *machine) nextData(now time.Time) []byte {
	if m.cursor < len(m.queue) {
		if !m.mayFollow() {
			m.wait(now)
			return nil
		}
		c := m.queue[m.cursor]
		m.cursor++
		c.sent, m.using = true, c
		m.sent = max(m.sent, c.end())
		m.wait(now)
		return c.frame
	}
	if m.isShort() {
		m.askedFor = m.sent
		m.wait(now)
		return m.tell(typePing, m.sent)
	}
	if m.eofWritten && !m.eofSent {
		m.eofSent = true
		m.sent = max(m.sent, m.end+1)
		m.wait(now)
		return words(typeEOF, m.end)
	}
	return nil
}

// mayFollow reports whether the other end takes the chunk at the cursor. A chunk that exceeds the credit is cut
// only if nothing else is under way. If something is, its acknowledgement will bring more credit, and cutting would
// only make frames small.
func (s *sending) mayFollow() bool {
	c := s.queue[s.cursor]
	if c.end() <= s.credit {
		return c.sent || s.cursor < unackedMost
	}
	if c.offset >= s.credit || s.cursor > 0 {
		return false
	}
	s.split(c, int(s.credit-c.offset))
	return true
}

// split leaves n bytes in the chunk at the cursor and moves the others to a new chunk behind it.
func (s *sending) split(c *chunk, n int) {
	rest := &chunk{frame: make([]byte, len(c.frame)-n), offset: c.offset + uint64(n), sent: c.sent}
	putDataHeader(rest.frame, rest.offset)
	copy(rest.frame[dataHeader:], c.frame[dataHeader+n:])
	c.frame = c.frame[:dataHeader+n]
	s.queue = append(s.queue, nil)
	copy(s.queue[s.cursor+2:], s.queue[s.cursor+1:])
	s.queue[s.cursor+1] = rest
}

// acknowledge takes the other end's numbers: how much it has received, and how much it grants.
func (m *machine) acknowledge(s state, now time.Time) {
	progress := s.received > m.ackedBy || s.limit > m.credit
	m.ackedBy, m.credit = max(m.ackedBy, s.received), max(m.credit, s.limit)
	k := 0
	for k < len(m.queue) && m.queue[k].sent && m.queue[k].end() <= m.ackedBy {
		m.recycle(m.queue[k])
		k++
	}
	if k > 0 {
		n := copy(m.queue, m.queue[k:])
		clear(m.queue[n:])
		m.queue, m.cursor = m.queue[:n], max(0, m.cursor-k)
		m.giveRoom()
	}
	if progress {
		m.progressed(now)
	}
}

// recycle keeps the memory of an acknowledged chunk, unless the chunk is just being sent again.
func (s *sending) recycle(c *chunk) {
	if c != s.using && len(s.spare) < spareMost {
		s.spare = append(s.spare, c.frame)
	}
}

// rewind sends again everything that the other end has not received.
func (s *sending) rewind(received uint64) {
	if received < s.ackedBy {
		return // an old frame
	}
	s.cursor = 0
	s.eofSent = s.eofSent && s.eofAcked()
}

// eofAcked reports whether the other end has acknowledged all bytes and the eof.
func (s *sending) eofAcked() bool { return s.eofWritten && s.ackedBy == s.end+1 }

// awaits reports whether this end waits for an acknowledgement, for credit or for the answer to its greeting.
func (m *machine) awaits() bool {
	return m.sent > m.ackedBy || m.cursor < len(m.queue) || m.cfg.Greet && !m.spoke
}

// hasRoom reports whether write would keep a byte.
func (s *sending) hasRoom() bool { return s.room() > 0 }

func (s *sending) dropUnsent() {
	s.queue, s.spare, s.cursor = nil, nil, 0
}
