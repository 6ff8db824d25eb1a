package output

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// turns decides which chunk of output a worker publishes next. Sandboxes take turns, one chunk each, and so do the
// execs of one sandbox. The chunks in flight are limited, because events share the connection. A sandbox that has used
// up its burst is limited to its rate.
type turns struct {
	burst, rate float64 // limits of each sandbox, in bytes and bytes per second
	pace        float64 // limit of all yielding sandboxes together, in bytes per second

	mu       sync.Mutex
	queues   map[protocol.SandboxKey]*queue
	active   [2]activity // the latest activity of each of the two sandboxes that were active last
	paced    float64     // bytes that the yielding sandboxes may send now; below 0: they have to wait
	pacedAt  time.Time   // when paced was computed
	ring     []*queue    // the queues with waiting turns, in the order in which they are served
	inFlight int64       // bytes in flight
	timer    *time.Timer // calls dispatch when the next queue has waited long enough
}

// activity is the latest start or end of an exec in a sandbox.
type activity struct {
	key protocol.SandboxKey
	at  time.Time
}

// queue holds the waiting turns of one sandbox.
type queue struct {
	key      protocol.SandboxKey
	waiting  []*turn // turns of the sandbox's execs, the oldest first
	inFlight int64   // bytes in flight
	left     float64 // bytes left of the sandbox's burst; below 0: the sandbox has to wait
	leftAt   time.Time
}

// turn is the permission to publish one chunk. The method done ends the turn.
type turn struct {
	granted chan struct{} // closed when the chunk may be sent
	turns   *turns
	queue   *queue
	size    int64
	state   turnState
}

type turnState int

const (
	turnWaits turnState = iota
	turnGranted
	turnDone
)

const (
	// A chunk may be sent while fewer than maxInFlight bytes of all sandboxes, and fewer than maxSandboxInFlight bytes of
	// its own sandbox, are in flight. The limits are low because events and the chunks of other sandboxes wait behind the
	// bytes in flight.
	maxInFlight        = 2 << 20
	maxSandboxInFlight = 1 << 20

	// While execs of other sandboxes start and end, a sandbox yields. All sandboxes that yield may together send
	// pacePerCore bytes a second for each core, after a burst of paceBurst bytes. The limits on bytes in flight are
	// divided by yieldPart. More output would slow down those execs, which need the same cores and the same store.
	pacePerCore = 16 << 20
	paceBurst   = 1 << 20
	yieldPart   = 4
	yieldFor    = time.Second // how long other sandboxes yield after an exec has started or ended

	// minCost is the least number of bytes that a chunk counts as, because a message of one byte is as much work as a
	// message of a few KiB.
	minCost = 16 << 10

	// DefaultBurst is the default of [Config].Burst.
	DefaultBurst protocol.Bytes = 256 << 20
	// DefaultRate is the default of [Config].Rate.
	DefaultRate protocol.Bytes = 8 << 20
)

func newTurns(burst, rate protocol.Bytes) *turns {
	return &turns{burst: float64(burst), rate: float64(rate), pace: float64(pacePerCore * runtime.GOMAXPROCS(0)),
		queues: map[protocol.SandboxKey]*queue{}}
}

// yieldTo makes other sandboxes yield to k, in which an exec starts or ends.
func (o *turns) yieldTo(k protocol.SandboxKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.active[0].key != k {
		o.active[1] = o.active[0]
	}
	o.active[0] = activity{k, time.Now()}
}

// yields reports whether k has to yield to another sandbox. The caller holds the lock.
func (o *turns) yields(k protocol.SandboxKey, now time.Time) bool {
	for _, a := range o.active {
		if a.key != k && !a.at.IsZero() && now.Sub(a.at) <= yieldFor {
			return true
		}
	}
	return false
}

// paceWait returns how long the sandboxes that yield have to wait before they may send. The caller holds the lock.
func (o *turns) paceWait(now time.Time) time.Duration {
	o.paced = min(paceBurst, o.paced+o.pace*now.Sub(o.pacedAt).Seconds())
	o.pacedAt = now
	return max(0, time.Duration(-o.paced/o.pace*float64(time.Second)))
}

// ask returns a turn for a chunk of size bytes. The turn waits in the sandbox's queue until it is granted.
func (o *turns) ask(k protocol.SandboxKey, size int64) *turn {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.queues[k]
	if q == nil {
		o.dropIdle()
		q = &queue{key: k, left: o.burst, leftAt: time.Now()}
		o.queues[k] = q
	}
	t := &turn{granted: make(chan struct{}), turns: o, queue: q, size: size}
	if q.waiting = append(q.waiting, t); len(q.waiting) == 1 {
		o.ring = append(o.ring, q)
	}
	o.dispatch()
	return t
}

// done ends a turn: the log has answered, or the chunk will not be sent. done may be called twice, and on nil.
func (t *turn) done() {
	if t == nil {
		return
	}
	o, q := t.turns, t.queue
	o.mu.Lock()
	defer o.mu.Unlock()
	switch t.state {
	case turnDone:
		return
	case turnGranted:
		o.inFlight -= t.size
		q.inFlight -= t.size
	case turnWaits:
		q.waiting = without(q.waiting, t)
		if len(q.waiting) == 0 {
			o.ring = without(o.ring, q)
		}
	}
	t.state = turnDone
	o.dispatch()
}

// without returns a list without its entry e. It does not change the old list.
func without[E comparable](list []E, e E) []E {
	i := slices.Index(list, e)
	if i < 0 {
		return list
	}
	return append(list[:i:i], list[i+1:]...)
}

// dispatch grants turns to one sandbox after the other, until no turn may be granted. The caller holds the lock.
func (o *turns) dispatch() {
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
		o.dispatchAfter(wait)
	}
}

// may reports whether the first turn of a queue may be granted. If not, it also returns how long the queue has to wait
// because of its rate or the pace. This time is 0 if the queue waits only for the chunks in flight. The caller holds
// the lock.
func (o *turns) may(q *queue, now time.Time) (may bool, rest time.Duration) {
	all, own := int64(maxInFlight), int64(maxSandboxInFlight)
	rest = o.refill(q, now)
	if wait := o.paceWait(now); o.yields(q.key, now) {
		all, own, rest = all/yieldPart, own/yieldPart, max(rest, wait)
	}
	return rest == 0 && o.inFlight < all && q.inFlight < own, rest
}

// grant grants the first turn of the queue at the end of the ring. The caller holds the lock.
func (o *turns) grant(q *queue) {
	t := q.waiting[0]
	q.waiting[0] = nil
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		o.ring = o.ring[:len(o.ring)-1]
	}
	t.state = turnGranted
	o.inFlight += t.size
	q.inFlight += t.size
	cost := float64(max(t.size, minCost))
	q.left -= cost
	o.paced = max(o.paced, 0) - cost // limits the debt to one chunk, however much was sent while no sandbox had to yield
	close(t.granted)
}

// refill adds the bytes that the queue's rate allows since the last refill. It returns how long the queue has to wait.
// The caller holds the lock.
func (o *turns) refill(q *queue, now time.Time) (wait time.Duration) {
	q.left = min(o.burst, q.left+o.rate*now.Sub(q.leftAt).Seconds())
	q.leftAt = now
	if q.left >= 0 {
		return 0
	}
	return time.Duration(-q.left / o.rate * float64(time.Second))
}

// dispatchAfter calls dispatch after the given wait. The caller holds the lock.
func (o *turns) dispatchAfter(wait time.Duration) {
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

// dropIdle removes the queues that are in the same state as a new queue. The caller holds the lock.
func (o *turns) dropIdle() {
	now := time.Now()
	for k, q := range o.queues {
		if o.refill(q, now); len(q.waiting) == 0 && q.inFlight == 0 && q.left >= o.burst {
			delete(o.queues, k)
		}
	}
}
