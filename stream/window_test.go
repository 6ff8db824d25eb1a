package stream

import (
	"container/heap"
	"testing"
	"time"
)

// TestAWindowGrowsOnlyWhereTheRoundTripNeedsIt sends bytes over a link with a bandwidth and a delay, in simulated time,
// and looks at the window of the end that reads them.
func TestAWindowGrowsOnlyWhereTheRoundTripNeedsIt(t *testing.T) {
	t.Parallel()
	const frame, first, most = 256 << 10, 256 << 10, 4 << 20
	for _, c := range []struct {
		name    string
		trip    time.Duration
		rate    int // bytes per second
		reads   int // bytes per second that the program reads; 0: all at once
		budget  *Budget
		loses   bool // the first ping is lost
		window  [2]int
		reaches int // bytes per second
	}{
		{name: "a quick link", trip: 200 * time.Microsecond, rate: 300 << 20, window: [2]int{1 << 20, 1 << 20},
			reaches: 290 << 20},
		{name: "a far fast link", trip: 50 * time.Millisecond, rate: 300 << 20, window: [2]int{most, most},
			reaches: 55 << 20},
		{name: "the first ping is lost", trip: 50 * time.Millisecond, rate: 300 << 20, loses: true,
			window: [2]int{most, most}, reaches: 55 << 20},
		{name: "a far slow link", trip: 50 * time.Millisecond, rate: 8 << 20, window: [2]int{1 << 20, 1 << 20},
			reaches: 7 << 20},
		{name: "a far link of medium speed", trip: 50 * time.Millisecond, rate: 30 << 20,
			window: [2]int{2 << 20, most}, reaches: 28 << 20},
		{name: "a slow program", trip: 50 * time.Millisecond, rate: 300 << 20, reads: 4 << 20,
			window: [2]int{first, 1 << 20}, reaches: 3 << 20},
		{name: "a small budget", trip: 50 * time.Millisecond, rate: 300 << 20, budget: NewBudget(1 << 20),
			window: [2]int{256 << 10, 1<<20 + leastWindow}, reaches: 4 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			window := first
			if c.budget != nil {
				window = c.budget.Window(first)
			}
			l := newLink(c.trip, c.rate,
				Config{Frame: frame, TakeFrame: frame, PeerWindow: window, MaxWindow: most, Greet: true},
				Config{Frame: frame, TakeFrame: frame, Window: window, MaxWindow: most, Budget: c.budget})
			l.losePing = c.loses
			got := l.run(5*time.Second, c.reads)
			if w := l.ends[1].window; w < min(c.window[0], window) || w < c.window[0] && c.budget == nil || w > c.window[1] {
				t.Errorf("the window is %d bytes, want %d to %d", w, c.window[0], c.window[1])
			}
			if c.budget != nil && c.budget.Used() > c.budget.most {
				t.Errorf("%d of the budget's %d bytes are used", c.budget.Used(), c.budget.most)
			}
			t.Logf("a window of %d KiB carried %d MiB/s", l.ends[1].window>>10, got>>20)
			if got < c.reaches {
				t.Errorf("it carried %d KiB/s, want %d", got>>10, c.reaches>>10)
			}
		})
	}
}

// link joins two machines: the first sends without end, and the second reads. Each direction has the delay of half a
// round trip. The bytes towards the second end queue for the bandwidth.
type link struct {
	ends     [2]*machine
	now      time.Time
	flying   flight
	free     time.Time // when the queue is empty
	trip     time.Duration
	rate     int
	order    int
	losePing bool
}

func newLink(trip time.Duration, rate int, from, to Config) *link {
	l := &link{now: time.Unix(1_000_000, 0), trip: trip, rate: rate}
	l.free = l.now
	l.ends = [2]*machine{newMachine(from, l.now), newMachine(to, l.now)}
	return l
}

// run returns how many bytes a second arrived.
func (l *link) run(during time.Duration, reads int) int {
	began := l.now
	data := make([]byte, 1<<20)
	for got := 0; ; {
		for i, m := range l.ends {
			if i == 0 {
				m.write(data)
			}
			l.flush(i)
		}
		took := l.now.Sub(began)
		for {
			k := len(data)
			if reads > 0 {
				k = min(k, int(took.Seconds()*float64(reads))-got)
			}
			n := l.ends[1].read(data[:max(0, k)], l.now)
			if got += n; n == 0 {
				break
			}
		}
		l.flush(1)
		if took >= during {
			return int(float64(got) / took.Seconds())
		}
		l.advance()
	}
}

func (l *link) flush(from int) {
	for frame := l.ends[from].next(l.now); frame != nil; frame = l.ends[from].next(l.now) {
		l.ends[from].using = nil
		if l.losePing && from == 1 && frame[0] == typePing {
			l.losePing = false
			continue
		}
		at := l.now
		if from == 0 {
			if l.free.Before(at) {
				l.free = at
			}
			l.free = l.free.Add(time.Duration(len(frame)) * time.Second / time.Duration(l.rate))
			at = l.free
		}
		l.order++
		heap.Push(&l.flying, event{at: at.Add(l.trip / 2), to: 1 - from, frame: append([]byte{}, frame...), order: l.order})
	}
}

// advance moves the time to the next frame, or by a millisecond, in which the program reads.
func (l *link) advance() {
	next := l.now.Add(time.Millisecond)
	if len(l.flying) > 0 && l.flying[0].at.Before(next) {
		next = l.flying[0].at
	}
	l.now = next
	for len(l.flying) > 0 && !l.flying[0].at.After(l.now) {
		e := heap.Pop(&l.flying).(event)
		l.ends[e.to].receive(e.frame, l.now)
		l.flush(e.to)
	}
	for _, m := range l.ends {
		if !m.wake().After(l.now) {
			m.tick(l.now)
		}
	}
}
