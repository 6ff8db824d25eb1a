package worker

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// outlet is the one way of a worker's output into the log. Sandboxes take turns, one chunk each, and so do
// the execs of one sandbox. What is on its way at once is bounded, since events go the same way, and a
// sandbox that has used up its burst gets no more than its rate. Nobody in a sandbox waits for any of that:
// output is on disk first.
type outlet struct {
	burst, rate float64 // bytes, and bytes a second, of each sandbox
	pace        float64 // bytes a second, of all

	mu     sync.Mutex
	queues map[key]*outputQueue
	busy   [2]activity    // the sandboxes where something was done last, another one first
	paced  float64        // bytes that may go out now where several are at work
	since  time.Time      // of paced
	ring   []*outputQueue // that have somebody waiting, in the order of their turns
	onWay  int64
	timer  *time.Timer // until the next of those that wait for their rate alone may go on
}

// activity is when something was done in a sandbox.
type activity struct {
	key key
	at  time.Time
}

// outputQueue is what one sandbox has to publish.
type outputQueue struct {
	key     key
	waiting []*turn // of its execs, in order
	onWay   int64
	left    float64 // bytes of its burst; below 0: it waits
	as      time.Time
}

// turn is the permission to publish one chunk. It is over with done.
type turn struct {
	granted chan struct{} // closed when it has come
	outlet  *outlet
	queue   *outputQueue
	size    int64
	state   turnState
}

type turnState int

const (
	turnWaits turnState = iota
	turnGranted
	turnOver
)

const (
	// outletWindow is how many bytes are on their way at once, and a chunk more, and outletShare how many of
	// one sandbox: an event, or another sandbox's chunk, waits behind these.
	outletWindow = 2 << 20
	outletShare  = 1 << 20

	// outletPace is how much goes out in a second for each core while execs of other sandboxes begin and end:
	// more would take the cores, and the store, that these need.
	outletPace = 16 << 20
	outletLess = 4           // of the above is a quarter on its way then
	outletDeep = 1 << 20     // goes out at once after a rest
	busyFor    = time.Second // after the last exec began or ended

	// messageCosts is what a chunk counts at least: a message of one byte is no less work.
	messageCosts = 16 << 10

	// DefaultOutputBurst is what a sandbox may publish as fast as the log takes it.
	DefaultOutputBurst protocol.Bytes = 256 << 20
	// DefaultOutputRate is what a sandbox may publish in a second after its burst.
	DefaultOutputRate protocol.Bytes = 8 << 20
)

func newOutlet(burst, rate protocol.Bytes) *outlet {
	return &outlet{burst: float64(burst), rate: float64(rate), pace: float64(outletPace * runtime.GOMAXPROCS(0)), queues: map[key]*outputQueue{}}
}

// worked notes that an exec of a sandbox begins or ends.
func (o *outlet) worked(k key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy[0].key != k {
		o.busy[1] = o.busy[0]
	}
	o.busy[0] = activity{k, time.Now()}
}

// yields says whether an exec of another sandbox than this one begins or ends. o.mu is held.
func (o *outlet) yields(k key, now time.Time) bool {
	for _, b := range o.busy {
		if b.key != k && !b.at.IsZero() && now.Sub(b.at) <= busyFor {
			return true
		}
	}
	return false
}

// pauses says how long those have to wait that yield. o.mu is held.
func (o *outlet) pauses(now time.Time) time.Duration {
	o.paced = min(outletDeep, o.paced+o.pace*now.Sub(o.since).Seconds())
	o.since = now
	return max(0, time.Duration(-o.paced/o.pace*float64(time.Second)))
}

// ask gets in line for a chunk of this many bytes.
func (o *outlet) ask(k key, size int64) *turn {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.queues[k]
	if q == nil {
		o.forgetRested()
		q = &outputQueue{key: k, left: o.burst, as: time.Now()}
		o.queues[k] = q
	}
	t := &turn{granted: make(chan struct{}), outlet: o, queue: q, size: size}
	if q.waiting = append(q.waiting, t); len(q.waiting) == 1 {
		o.ring = append(o.ring, q)
	}
	o.dispatch()
	return t
}

// take waits for a turn, until ctx ends.
func (o *outlet) take(ctx context.Context, k key, size int64) (*turn, error) {
	t := o.ask(k, size)
	select {
	case <-t.granted:
		return t, nil
	case <-ctx.Done():
		t.done()
		return nil, ctx.Err()
	}
}

// done ends a turn: the log has answered, or nobody wants it any more. It may be called again.
func (t *turn) done() {
	o, q := t.outlet, t.queue
	o.mu.Lock()
	defer o.mu.Unlock()
	switch t.state {
	case turnOver:
		return
	case turnGranted:
		o.onWay -= t.size
		q.onWay -= t.size
	case turnWaits:
		q.drop(t)
		if len(q.waiting) == 0 {
			o.leave(q)
		}
	}
	t.state = turnOver
	o.dispatch()
}

// giveBack is done, for a turn that there may not be.
func (t *turn) giveBack() {
	if t != nil {
		t.done()
	}
}

func (q *outputQueue) drop(t *turn) {
	for i, w := range q.waiting {
		if w == t {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			return
		}
	}
}

// leave takes a queue from the ring. o.mu is held.
func (o *outlet) leave(q *outputQueue) {
	for i, in := range o.ring {
		if in == q {
			o.ring = append(o.ring[:i:i], o.ring[i+1:]...)
			return
		}
	}
}

// dispatch grants turns, one sandbox after another, for as long as there is room. o.mu is held.
func (o *outlet) dispatch() {
	now := time.Now()
	wait := time.Duration(0)
	for passed := 0; passed < len(o.ring); {
		q := o.ring[0]
		o.ring = append(o.ring[1:], q)
		may, rest := o.may(q, now)
		if may {
			passed = 0
			o.grant(q)
			continue
		}
		if passed++; rest > 0 && (wait == 0 || rest < wait) {
			wait = rest
		}
	}
	if wait > 0 {
		o.later(wait)
	}
}

// may says whether the first of a queue may have its turn, or how long it has to wait where it does not wait
// for what is on its way. o.mu is held.
func (o *outlet) may(q *outputQueue, now time.Time) (may bool, rest time.Duration) {
	window, share := int64(outletWindow), int64(outletShare)
	rest = o.refill(q, now)
	if pause := o.pauses(now); o.yields(q.key, now) {
		window, share, rest = window/outletLess, share/outletLess, max(rest, pause)
	}
	return rest == 0 && o.onWay < window && q.onWay < share, rest
}

// grant gives the first of a queue its turn. o.mu is held.
func (o *outlet) grant(q *outputQueue) {
	t := q.waiting[0]
	q.waiting[0] = nil
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		o.ring = o.ring[:len(o.ring)-1] // where dispatch has just put it
	}
	t.state = turnGranted
	o.onWay += t.size
	q.onWay += t.size
	q.left -= float64(max(t.size, messageCosts))
	o.paced = max(o.paced, 0) - float64(max(t.size, messageCosts)) // what went out before is no debt
	close(t.granted)
}

// refill adds what a queue's rate gave it since, and says how long it has to wait. o.mu is held.
func (o *outlet) refill(q *outputQueue, now time.Time) (wait time.Duration) {
	q.left = min(o.burst, q.left+o.rate*now.Sub(q.as).Seconds())
	q.as = now
	if q.left >= 0 {
		return 0
	}
	return time.Duration(-q.left / o.rate * float64(time.Second))
}

// later looks again when one that waits for its rate may go on. o.mu is held.
func (o *outlet) later(wait time.Duration) {
	wait = max(wait, time.Millisecond)
	if o.timer != nil {
		o.timer.Stop()
	}
	o.timer = time.AfterFunc(wait, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.dispatch()
	})
}

// forgetRested drops the queues that are as new ones are. o.mu is held.
func (o *outlet) forgetRested() {
	now := time.Now()
	for k, q := range o.queues {
		if o.refill(q, now); len(q.waiting) == 0 && q.onWay == 0 && q.left >= o.burst {
			delete(o.queues, k)
		}
	}
}

// pieces are chunks of one exec that are on their way, the oldest first.
type pieces struct {
	onWay []pieceOnWay
}

type pieceOnWay struct {
	end    int64 // offset behind it, in its stream
	stored <-chan error
	turn   *turn
}

func (p *pieces) add(end int64, stored <-chan error, t *turn) {
	p.onWay = append(p.onWay, pieceOnWay{end, stored, t})
}

// full says whether no more may follow: readers know that nothing is stored further ahead.
func (p *pieces) full() bool { return len(p.onWay) >= jetstream.OutputWindow }

// oldest is where the answer of the oldest comes; nil: there is none.
func (p *pieces) oldest() <-chan error {
	if len(p.onWay) == 0 {
		return nil
	}
	return p.onWay[0].stored
}

// settle takes the oldest away, which was answered, and says where it ends.
func (p *pieces) settle() (end int64) {
	first := p.onWay[0]
	p.onWay = p.onWay[1:]
	first.turn.done()
	return first.end
}

// abandon gives the turns of all back as their answers come, which nobody waits for any more.
func (p *pieces) abandon() {
	if len(p.onWay) == 0 {
		return
	}
	go func() {
		for len(p.onWay) > 0 {
			<-p.oldest()
			p.settle()
		}
	}()
}
