package stream

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

var hostileConfig = Config{Frame: 1000, TakeFrame: 1000, Window: 8000, MaxWindow: 16_000, PeerWindow: 8000}

func dataFrame(offset uint64, n int) []byte {
	frame := make([]byte, dataHeader+n)
	putDataHeader(frame, offset)
	return frame
}

// frames returns the frames that a machine wants to send.
func frames(m *machine, now time.Time) (all [][]byte) {
	for {
		frame := m.next(now)
		if frame == nil {
			return all
		}
		all = append(all, frame)
	}
}

func TestAFrameThatBreaksTheProtocolResetsTheStream(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for what, sent := range map[string][][]byte{
		"an empty frame":                     {{}},
		"an unknown type":                    {{99, 1, 2}},
		"type 0":                             {{0}},
		"data without an offset":             {{typeData, 1}},
		"data without bytes":                 {dataFrame(0, 0)},
		"a huge frame":                       {dataFrame(0, 1001)},
		"data beyond the window":             {dataFrame(7500, 1000)},
		"an offset far away":                 {dataFrame(1<<40, 10)},
		"an offset that overflows":           {dataFrame(math.MaxUint64-4, 10)},
		"more data than granted":             {dataFrame(0, 1000), dataFrame(8000, 1)},
		"data after the end":                 {words(typeEOF, 0), dataFrame(0, 1)},
		"two ends":                           {words(typeEOF, 0), words(typeEOF, 1)},
		"an end before data":                 {dataFrame(0, 10), words(typeEOF, 5)},
		"an end beyond the window":           {words(typeEOF, 9000)},
		"an end without an offset":           {{typeEOF}},
		"a long end":                         {append(words(typeEOF, 0), 0)},
		"a short window":                     {{typeWindow, 0, 0}},
		"an acknowledgement of unsent bytes": {words(typeWindow, 1, 9000)},
		"a mark without words":               {{typePing}},
		"a limit that overflows":             {words(typeWindow, 0, math.MaxUint64)},
		"a reset without texts":              {{typeReset}},
		"a huge reset":                       {append([]byte{typeReset}, make([]byte, 2000)...)},
	} {
		m := newMachine(hostileConfig, now)
		for _, frame := range sent {
			m.receive(frame, now)
		}
		if m.err == nil || m.err.Code != protocol.InvalidArgument || m.err.Reason != protocol.ReasonStreamViolation {
			t.Errorf("%s: got %v", what, m.err)
			continue
		}
		if out := frames(m, now); len(out) != 1 || out[0][0] != typeReset || len(out[0]) > resetMost {
			t.Errorf("%s: the machine sends %q", what, out)
		}
	}
}

func TestResetsCarryAnyErrorThroughASmallFrame(t *testing.T) {
	t.Parallel()
	long := make([]byte, 5000)
	for i := range long {
		long[i] = 'x'
	}
	for _, e := range []*protocol.Error{
		{Code: protocol.NotFound, Reason: "r", Field: "f", Message: "m"},
		{Code: protocol.Internal, Message: string(long)},
		{Code: protocol.Internal, Message: "a\x00b"},
		{Code: protocol.Internal, Message: "é" + string(long[:1019]) + "é"},
	} {
		frame := resetFrame(e)
		got, ok := parseReset(frame)
		if !ok || len(frame) > resetMost || got.Code != e.Code || got.Reason != e.Reason || got.Field != e.Field {
			t.Errorf("%.50v: got %.50v, %d bytes", e, got, len(frame))
		}
	}
	if got, _ := parseReset([]byte("\x04made_up\x00\x00\x00x")); got.Code != protocol.Internal {
		t.Errorf("an unknown code became %s", got.Code)
	}
}

// TestSmallFramesTakeLittleMemory lets the other end send a window of frames of one byte, and of frames of which only
// one byte is new.
func TestSmallFramesTakeLittleMemory(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for what, overlap := range map[string]int{"one byte": 0, "one new byte": 900} {
		m := newMachine(hostileConfig, now)
		for i := range 8000 {
			before := min(overlap, i)
			m.receive(dataFrame(uint64(i-before), before+1), now)
		}
		// A frame that is not copied stays in memory as a whole.
		memory := 0
		for _, part := range m.unread {
			memory += max(cap(part), leastChunk)
		}
		if m.err != nil || m.buffered != 8000 || memory > 3*8000 {
			t.Errorf("%s: %d bytes are unread in %d bytes of memory, %v", what, m.buffered, memory, m.err)
		}
	}
}

func TestAFloodOfFramesWithAGapIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	m := newMachine(hostileConfig, now)
	frames(m, now) // the ping that measures the round trip
	answers := 0
	for range 1000 {
		m.receive(dataFrame(100, 10), now)
		answers += len(frames(m, now))
	}
	if answers != 1 || m.buffered != 0 {
		t.Errorf("%d answers, %d bytes kept", answers, m.buffered)
	}
	m.receive(dataFrame(100, 10), now.Add(defaultRetry))
	if out := frames(m, now); len(out) != 1 || out[0][0] != typeAgain {
		t.Errorf("after the pause, the machine sends %q", out)
	}
}

// TestWritesStopAtTheGrantOfTheOtherEnd lets the other end grant nothing, everything, and an absurd amount.
func TestWritesStopAtTheGrantOfTheOtherEnd(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	cfg := hostileConfig
	cfg.PeerWindow = 100
	m := newMachine(cfg, now)
	frames(m, now) // the ping that measures the round trip
	kept := m.write(make([]byte, 1<<20))
	if kept != cfg.MaxWindow {
		t.Errorf("%d bytes were kept, want %d", kept, cfg.MaxWindow)
	}
	if out := frames(m, now); len(out) != 1 || len(out[0]) != dataHeader+100 {
		t.Errorf("%d frames were sent, the first with %d bytes", len(out), len(out[0]))
	}
	m.receive(words(typeWindow, 0, 1<<60), now)
	sent := 100
	for _, f := range frames(m, now) {
		sent += len(f) - dataHeader
	}
	if sent != cfg.MaxWindow || m.write([]byte{1}) != 0 {
		t.Errorf("%d bytes were sent without an acknowledgement", sent)
	}
}

// TestOneByteWritesGatherWhileNothingIsAcknowledged bounds the number of frames that are kept.
func TestOneByteWritesGatherWhileNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	m := newMachine(hostileConfig, now)
	for range 8000 {
		m.write([]byte{1})
		frames(m, now)
	}
	if most := unackedMost + 8000/1000 + 1; len(m.queue) > most {
		t.Errorf("%d frames are kept, at most %d should be", len(m.queue), most)
	}
}

// FuzzFrames sends any frames to a machine whose program reads and writes. The input is a list of steps: a byte that
// says what to do, and for a frame, two bytes of its length and its bytes.
func FuzzFrames(f *testing.F) {
	add := func(frames ...[]byte) {
		var in []byte
		for _, frame := range frames {
			in = append(in, 0)
			in = binary.BigEndian.AppendUint16(in, uint16(len(frame)))
			in = append(append(in, frame...), 1, 2)
		}
		f.Add(in)
	}
	add(dataFrame(0, 10), dataFrame(10, 1000), words(typeEOF, 1010), words(typeWindow, 0, 10_000))
	add(words(typePing, 0, 8000, 5), words(typePong, 100, 9000, 100), words(typeAgain, 0, 8000))
	add(resetFrame(errReset), dataFrame(0, 1))
	add(dataFrame(5, 10), dataFrame(0, 10), dataFrame(0, 10), words(typeEOF, 15))
	f.Fuzz(func(t *testing.T, in []byte) {
		now := time.Unix(1000, 0)
		m := newMachine(hostileConfig, now)
		granted := m.granted
		for len(in) > 0 {
			step := in[0]
			in = in[1:]
			now = now.Add(time.Duration(step) * time.Millisecond)
			switch step % 8 {
			case 0:
				if len(in) < 2 {
					return
				}
				n := min(int(binary.BigEndian.Uint16(in)), len(in)-2)
				m.receive(in[2:2+n:2+n], now)
				in = in[2+n:]
			case 1:
				m.read(make([]byte, 700), now)
			case 2:
				if m.err == nil && !m.eofWritten {
					m.write(make([]byte, 3000))
				}
			case 3:
				m.tick(now)
			case 4:
				m.reconnected(now)
			case 5:
				m.eofWritten = true
			case 6:
				if step > 200 {
					m.close(now)
				}
			case 7:
				now = now.Add(time.Second)
			}
			checkHostile(t, m, now)
			if m.granted < granted {
				t.Fatal("a grant was taken back")
			}
			granted = m.granted
		}
	})
}

func checkHostile(t *testing.T, m *machine, now time.Time) {
	t.Helper()
	memory := 0
	for _, part := range m.unread {
		memory += cap(part)
	}
	if m.buffered < 0 || m.buffered > m.cfg.MaxWindow || memory > 3*m.cfg.MaxWindow+gatherMost {
		t.Fatalf("%d bytes are unread in %d bytes of memory", m.buffered, memory)
	}
	if len(m.queue) > unackedMost+m.cfg.MaxWindow/m.cfg.Frame+2 {
		t.Fatalf("%d frames are kept", len(m.queue))
	}
	for sent := 0; ; sent++ {
		frame := m.next(now)
		if frame == nil {
			break
		}
		m.using = nil
		if sent > unackedMost+100 {
			t.Fatal("the machine sends without end")
		}
		if len(frame) > m.cfg.Frame+dataHeader && frame[0] == typeData || frame[0] != typeData && len(frame) > resetMost {
			t.Fatalf("a frame of type %d has %d bytes", frame[0], len(frame))
		}
	}
	if m.err != nil && m.err.Code == "" {
		t.Fatal("the error has no code")
	}
}
