package stream

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// TestBytesAreExactWhateverTheTransportDoes runs two machines over a transport that loses, repeats, delays and reorders
// frames, and that is cut off. The programs at both ends write, read and pause at random. Time is simulated.
func TestBytesAreExactWhateverTheTransportDoes(t *testing.T) {
	t.Parallel()
	ended, failed := 0, 0
	for seed := range uint64(60) {
		s := newSimulation(seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, s.faults, err)
		}
		if s.ends[0].m.err != nil {
			failed++
		} else {
			ended++
		}
		if s.faults.lose <= 0.1 && s.ends[0].m.err != nil {
			t.Errorf("seed %d, %+v: the stream failed: %v", seed, s.faults, s.ends[0].m.err)
		}
	}
	t.Logf("%d streams ended properly, %d with a typed error", ended, failed)
	if ended < 50 {
		t.Errorf("only %d streams ended properly", ended)
	}
}

// faults are how likely the transport damages a frame.
type faults struct {
	lose, repeat, late float64
	delay              time.Duration // at most; late frames take ten times as long and are overtaken
	cuts               int           // how often the transport is cut off
}

type simulation struct {
	random *rand.Rand
	faults faults
	now    time.Time
	ends   [2]*simulatedEnd
	flying flight
	cut    bool
	budget *Budget // of both ends; nil: they have none
}

// simulatedEnd is a machine with its program.
type simulatedEnd struct {
	m      *machine
	writes []byte // what the program still has to write
	all    []byte // what it writes in all
	got    bytes.Buffer
	right  int       // how many of these bytes were checked
	act    time.Time // when the program next does something
}

// event is a frame that arrives, or the transport's cut or return.
type event struct {
	at    time.Time
	to    int
	frame []byte // nil: the transport changes its state
	order int
}

type flight []event

func (f flight) Len() int { return len(f) }
func (f flight) Less(i, j int) bool {
	return f[i].at.Before(f[j].at) || f[i].at.Equal(f[j].at) && f[i].order < f[j].order
}
func (f flight) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flight) Push(e any)   { *f = append(*f, e.(event)) }
func (f *flight) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}

func newSimulation(seed uint64) *simulation {
	r := rand.New(rand.NewPCG(seed, 1))
	s := &simulation{random: r, now: time.Unix(1_000_000, 0)}
	s.faults = faults{lose: r.Float64() * 0.15, repeat: r.Float64() * 0.1, late: r.Float64() * 0.1,
		delay: time.Duration(r.IntN(100)) * time.Millisecond, cuts: r.IntN(4)}
	if seed%5 == 0 {
		s.faults = faults{delay: time.Millisecond, cuts: int(seed % 3)}
	}
	frame, window := 128+r.IntN(4096), 4096+r.IntN(60_000)
	if seed%3 == 1 {
		s.budget = NewBudget(int64(r.IntN(100_000)))
	}
	windows := [2]int{window, window}
	if s.budget != nil {
		windows = [2]int{s.budget.Window(leastWindow + window), s.budget.Window(leastWindow + window)}
	}
	for i := range s.ends {
		own := Config{Frame: frame, TakeFrame: frame, Window: windows[i], MaxWindow: windows[i] * (1 + r.IntN(4)),
			PeerWindow: windows[1-i], Greet: i == 0, Budget: s.budget}
		e := &simulatedEnd{m: newMachine(own, s.now), all: make([]byte, r.IntN(400_000)), act: s.now}
		for k := range e.all {
			e.all[k] = byte(r.Uint32())
		}
		e.writes = e.all
		s.ends[i] = e
	}
	for range s.faults.cuts {
		at := s.now.Add(time.Duration(r.IntN(10_000)) * time.Millisecond)
		s.push(event{at: at}, event{at: at.Add(time.Duration(r.IntN(5000)) * time.Millisecond)})
	}
	return s
}

func (s *simulation) push(events ...event) {
	for _, e := range events {
		e.order = s.random.IntN(1 << 30)
		if s.faults.late == 0 {
			e.order = len(s.flying)
		}
		heap.Push(&s.flying, e)
	}
}

// run runs both ends to the end.
func (s *simulation) run() error {
	const most = time.Hour
	end := s.now.Add(most)
	for s.now.Before(end) {
		for i, e := range s.ends {
			s.program(e)
			s.flush(i)
			if err := e.check(s.ends[1-i]); err != nil {
				return err
			}
		}
		if s.ends[0].m.isOver() && s.ends[1].m.isOver() && s.ends[0].drained() && s.ends[1].drained() {
			return s.outcome()
		}
		s.advance()
	}
	return fmt.Errorf("no end after %s: %d and %d of %d and %d bytes arrived", most, s.ends[1].got.Len(),
		s.ends[0].got.Len(), len(s.ends[0].all), len(s.ends[1].all))
}

func (e *simulatedEnd) drained() bool { return e.m.buffered == 0 || e.m.closed }

// advance moves the time to the next event, and lets it happen.
func (s *simulation) advance() {
	next := s.now.Add(time.Hour)
	if len(s.flying) > 0 {
		next = s.flying[0].at
	}
	for _, e := range s.ends {
		for _, at := range []time.Time{e.m.wake(), e.act} {
			if at.After(s.now) && at.Before(next) {
				next = at
			}
		}
	}
	s.now = next
	for len(s.flying) > 0 && !s.flying[0].at.After(s.now) {
		e := heap.Pop(&s.flying).(event)
		if e.frame != nil {
			s.ends[e.to].m.receive(e.frame, s.now)
			s.flush(e.to)
			continue
		}
		if s.cut = !s.cut; !s.cut {
			for i := range s.ends {
				if s.random.IntN(3) > 0 { // an end may not notice that the transport was cut
					s.ends[i].m.reconnected(s.now)
				}
			}
		}
	}
	for _, e := range s.ends {
		if !e.m.wake().After(s.now) {
			e.m.tick(s.now)
		}
	}
}

func (s *simulation) flush(from int) {
	for {
		frame := s.ends[from].m.next(s.now)
		if frame == nil {
			return
		}
		s.ends[from].m.using = nil
		copies := 1
		if s.cut || s.random.Float64() < s.faults.lose {
			copies = 0
		} else if s.random.Float64() < s.faults.repeat {
			copies = 2
		}
		for range copies {
			delay := s.faults.delay
			if s.random.Float64() < s.faults.late {
				delay += time.Duration(s.random.Int64N(int64(10*s.faults.delay + 1)))
			}
			s.push(event{at: s.now.Add(delay), to: 1 - from, frame: bytes.Clone(frame)})
		}
	}
}

// program writes and reads a random amount, and then pauses.
func (s *simulation) program(e *simulatedEnd) {
	if s.now.Before(e.act) {
		return
	}
	e.act = s.now.Add(time.Duration(s.random.IntN(20)) * time.Millisecond)
	if s.random.IntN(100) == 0 {
		e.act = s.now.Add(time.Second)
	}
	if n := min(len(e.writes), s.random.IntN(20_000)); n > 0 {
		e.writes = e.writes[e.m.write(e.writes[:n]):]
	}
	if len(e.writes) == 0 {
		e.m.eofWritten = true
	}
	p := make([]byte, s.random.IntN(30_000))
	e.got.Write(p[:e.m.read(p, s.now)])
}

// check checks what must hold at all times: the memory is bounded, and what has arrived is right.
func (e *simulatedEnd) check(other *simulatedEnd) error {
	m := e.m
	if m.buffered > m.cfg.MaxWindow {
		return fmt.Errorf("%d bytes are unread, the window is at most %d", m.buffered, m.cfg.MaxWindow)
	}
	kept := 0
	for _, c := range m.queue {
		kept += len(c.frame) - dataHeader
	}
	if b := m.cfg.Budget; b != nil && (b.Used() < 0 || b.Used() > b.most) {
		return fmt.Errorf("%d of the budget's %d bytes are used", b.Used(), b.most)
	}
	if m.buffered > m.window || m.cfg.Budget != nil && kept > leastWindow+m.lent.keeps {
		return fmt.Errorf("%d bytes are unread and %d are kept, more than the budget lends: %+v", m.buffered, kept, m.lent)
	}
	if kept > m.cfg.MaxWindow+m.cfg.Frame {
		return fmt.Errorf("%d bytes are kept to be sent again, at most %d may be", kept, m.cfg.MaxWindow+m.cfg.Frame)
	}
	if got := e.got.Bytes(); len(got) > len(other.all) || !bytes.Equal(got[e.right:], other.all[e.right:len(got)]) {
		return fmt.Errorf("the %d bytes that arrived are not what was sent", len(got))
	}
	e.right = e.got.Len()
	return nil
}

// outcome checks the end: every byte arrived, or both ends have a typed error.
func (s *simulation) outcome() error {
	for _, e := range s.ends {
		e.m.lent.giveBack(s.budget)
	}
	if s.budget != nil && s.budget.Used() != 0 {
		return fmt.Errorf("%d bytes of the budget are not given back", s.budget.Used())
	}
	for i, e := range s.ends {
		if e.m.err != nil {
			if e.m.err.Code != protocol.Unavailable || e.m.err.Reason != protocol.ReasonStreamLost {
				return fmt.Errorf("the stream ended with %v", e.m.err)
			}
			continue
		}
		if other := s.ends[1-i]; e.got.Len() != len(other.all) {
			return fmt.Errorf("%d of %d bytes arrived, without an error", e.got.Len(), len(other.all))
		}
	}
	return nil
}
