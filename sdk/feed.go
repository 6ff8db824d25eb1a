package sdk

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// feedLinger is how long a feed without users stays subscribed. Another call about the same sandbox within this
	// time need not subscribe.
	feedLinger = 5 * time.Second
	// firstCheck is the delay after which a new feed reads the history once. In a cluster, the subscription may reach a
	// server later than the batches of a request that was sent after the subscription. That server does not deliver
	// these batches.
	firstCheck = 500 * time.Millisecond
	// minRecheck is the shortest pause between two rechecks of a feed. A recheck reads the history if the feed has
	// users and nothing has arrived since the last recheck. Subscribers may have missed a batch, because the leader of
	// the log first stores a batch and then publishes it, and may die in between. The pause doubles after each recheck
	// that finds the feed silent.
	minRecheck = 3 * time.Second
	maxRecheck = time.Minute
	// A batch that the client does not believe makes the feed read the history. doubtPause is the shortest pause
	// between two such reads, because every process that may append can make any number of such batches. The first
	// doubtBurst reads need not wait.
	doubtPause = 100 * time.Millisecond
	doubtBurst = 8
	// maxEarly is how many batches a feed holds until a caller says where the feed begins.
	maxEarly = 32
)

// recheckPause is the current pause between two rechecks of a feed.
type recheckPause time.Duration

// next returns the pause until the next recheck. silent is true if nothing has arrived since the last recheck.
func (p *recheckPause) next(silent bool) time.Duration {
	d := minRecheck
	if silent {
		d = min(2*time.Duration(*p), maxRecheck)
	}
	*p = recheckPause(d)
	return d
}

// feed is a client's only live subscription to a sandbox's history. All calls about the sandbox share the feed. It
// delivers batches in order, each at least once. It begins after the event that a caller passes to coverFrom. It does
// not begin with the first batch that arrives, because that batch may be a copy of an old one. It reads the history
// from a coordinator after a gap, a reconnect, a silence, or a batch that it does not believe.
type feed struct {
	client  *Client
	sandbox string
	read    func(ctx context.Context, after uint64) ([]*protocol.Batch, error) // reads the history

	mu          sync.Mutex
	users       int
	idle        *time.Timer // runs while there are no users
	check       *time.Timer // runs until the next recheck
	settled     bool        // the first recheck has run
	checked     uint64      // value of live at the last recheck
	pause       recheckPause
	closed      bool
	unsubscribe func()
	execs       map[string][]chan protocol.Event // waiters for the end of an exec; the key is the exec's id
	followers   map[*follower]struct{}
	failures    map[chan error]struct{} // waiters for the error that ends all reads of the history

	last, record uint64            // last event and record of the newest delivered batch; 0: no batch yet
	first        uint64            // first event that was delivered
	live         uint64            // newest event that arrived on the subscription
	missed       bool              // batches may have been lost before the first delivered batch
	early        []*protocol.Batch // arrived before the feed began
	hostID       string            // id of the host whose live output is taken; empty: unknown; see isOn
	repairing    bool
	again        bool // the running repair must read the history again

	verifier
	doubtsLeft int         // number of reads for doubted batches that may start without a pause
	doubtedAt  time.Time   // when doubtsLeft was computed
	later      *time.Timer // runs until the next read for a doubted batch; nil: none is planned
}

// feed returns the subscribed feed of a sandbox. The caller must release the feed. A request that the caller sends
// later on the same connection reaches the server after the subscription.
func (c *Client) feed(sandbox string) (*feed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.feeds[sandbox]
	if f == nil {
		f = &feed{client: c, sandbox: sandbox, execs: map[string][]chan protocol.Event{}, followers: map[*follower]struct{}{},
			failures: map[chan error]struct{}{},
			verifier: newVerifier(c.writers), doubtsLeft: doubtBurst}
		c.refreshRules()
		f.read = func(ctx context.Context, after uint64) ([]*protocol.Batch, error) {
			return c.history(ctx, sandbox, after)
		}
		stop, err := c.conn.Live(c.tenant, sandbox, f.receive)
		if err != nil {
			return nil, err
		}
		f.unsubscribe = stop
		c.feeds[sandbox] = f
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.check == nil:
		f.check = time.AfterFunc(firstCheck, f.recheck)
	case time.Duration(f.pause) > minRecheck: // a new user starts with the shortest pause
		f.check.Reset(f.pause.next(false))
	}
	f.users++
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return f, nil
}

// release ends one use of the feed. A feed without users is closed after feedLinger.
func (f *feed) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	if f.users == 0 {
		f.idle = time.AfterFunc(feedLinger, f.closeIdle)
	}
}

func (f *feed) closeIdle() {
	c := f.client
	c.mu.Lock()
	defer c.mu.Unlock()
	f.mu.Lock()
	unused := f.users == 0 && c.feeds[f.sandbox] == f
	f.closed = unused
	f.mu.Unlock()
	if unused {
		f.check.Stop()
		delete(c.feeds, f.sandbox)
		f.unsubscribe()
	}
}

// awaitExec registers a channel that gets the event that ends an exec.
func (f *feed) awaitExec(id string) (ended chan protocol.Event, forget func()) {
	ended = make(chan protocol.Event, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.execs[id] = append(f.execs[id], ended)
	return ended, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.drop(id, ended)
	}
}

func (f *feed) drop(id string, ended chan protocol.Event) {
	waiting := f.execs[id]
	for i, ch := range waiting {
		if ch == ended {
			waiting = append(waiting[:i:i], waiting[i+1:]...)
			break
		}
	}
	if len(waiting) == 0 {
		delete(f.execs, id)
		return
	}
	f.execs[id] = waiting
}

// receive handles a batch that arrived on the live subscription.
func (f *feed) receive(b *protocol.Batch) {
	f.client.refreshRules()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.receiveLocked(b)
}

// receiveLocked is receive while f.mu is held.
func (f *feed) receiveLocked(b *protocol.Batch) {
	switch {
	case f.last == 0 && len(f.early) == maxEarly:
		f.early, f.missed = nil, true
		return
	case f.last == 0:
		f.early = append(f.early, b)
		return
	case b.Last() <= f.last:
		return
	}
	if !f.believes(b, !f.repairing && b.First() == f.last+1) {
		f.doubts(b)
		f.repairDoubt()
		return
	}
	f.live = max(f.live, b.Last())
	switch {
	case f.repairing: // the running repair will read this batch from the history
	case b.First() != f.last+1:
		f.repair()
	case f.record != 0 && b.Proof != nil && b.Proof.After > f.record:
		// the feed lacks the records before b, and b may be a copy of a batch in one of these records
		f.repair()
	default:
		f.deliver(b)
	}
}

// repairDoubt makes the feed read the history for a batch that the client does not believe: at once or, after many such
// reads, after doubtPause. f.mu is held.
func (f *feed) repairDoubt() {
	now := time.Now()
	if n := int(now.Sub(f.doubtedAt) / doubtPause); n > 0 {
		f.doubtsLeft, f.doubtedAt = min(doubtBurst, f.doubtsLeft+n), now
	}
	switch {
	case f.later != nil: // the planned read will include this batch
	case f.doubtsLeft > 0:
		f.doubtsLeft--
		f.mayHaveMissedLocked()
	default:
		f.later = time.AfterFunc(doubtPause, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.later = nil; !f.closed {
				f.repairDoubt()
			}
		})
	}
}

// deliver hands a batch to all followers and waiters. f.mu is held.
func (f *feed) deliver(b *protocol.Batch) {
	if f.first == 0 {
		f.first = b.First()
	}
	f.last, f.record = b.Last(), b.Record
	before := f.verifier.host
	if f.accept(b); f.verifier.host != "" && f.verifier.host != before {
		f.hostID = f.verifier.host
	}
	for i := range b.Events {
		e := &b.Events[i]
		if e.Exec == nil || !e.Exec.State.Terminal() {
			continue
		}
		for _, ended := range f.execs[e.Exec.ID] {
			ended <- *e // does not block: the channel has room for one event, and only one event ends an exec
		}
		delete(f.execs, e.Exec.ID)
	}
	for w := range f.followers {
		w.push(b)
	}
}

// coverFrom makes the feed deliver everything after the event with this sequence. record is the record of that event,
// or 0 if unknown. If the feed began later, it reads the batches in between from the history. coverFrom does nothing
// for sequence 0.
func (f *feed) coverFrom(sequence, record uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case sequence == 0:
	case f.last == 0:
		early := f.early
		f.last, f.record, f.first, f.early = sequence, record, sequence+1, nil
		if f.missed {
			f.repair()
		}
		for _, b := range early {
			f.receiveLocked(b)
		}
	case sequence+1 < f.first:
		f.rewind(sequence, record)
	}
}

// replay delivers all batches after an event again. A caller calls replay if the feed may have delivered some of these
// batches before the caller registered.
func (f *feed) replay(sequence, record uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rewind(sequence, record)
}

// rewind sets the feed back to an event and reads the history after that event. f.mu is held.
func (f *feed) rewind(sequence, record uint64) {
	f.live = max(f.live, f.last)
	if f.first == 0 || f.first > sequence+1 {
		f.first = sequence + 1
	}
	f.early = nil // the repair reads these batches from the history
	if f.last == 0 || f.last > sequence {
		f.last, f.record, f.chain.Unknown = sequence, record, true
	}
	f.repair()
}

// recheck reads the history once after the feed has subscribed. Later it reads the history each time that the feed has
// users and nothing has arrived since the last recheck.
func (f *feed) recheck() {
	f.mu.Lock()
	silent := f.settled && f.live == f.checked
	due := !f.settled || f.users > 0 && silent
	f.settled, f.checked = true, f.live
	if pause := f.pause.next(silent); !f.closed && f.client.ctx.Err() == nil {
		f.check.Reset(pause)
	}
	f.mu.Unlock()
	if due {
		f.mayHaveMissed()
	}
}

// mayHaveMissed tells the feed that live batches may have been lost. The feed then reads the history once for all
// followers. If it has not delivered a batch yet, each follower reads the history itself.
func (f *feed) mayHaveMissed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mayHaveMissedLocked()
}

// mayHaveMissedLocked is mayHaveMissed while f.mu is held.
func (f *feed) mayHaveMissedLocked() {
	if f.last != 0 {
		f.repair()
		return
	}
	f.missed = true
	for w := range f.followers {
		w.mayHaveMissed()
	}
}

// repair starts a goroutine that reads the history after the newest delivered batch. f.mu is held.
func (f *feed) repair() {
	if f.repairing {
		f.again = true
		return
	}
	if f.client.ctx.Err() != nil {
		return
	}
	f.repairing, f.missed = true, false
	f.client.wg.Add(1)
	go func() {
		defer f.client.wg.Done()
		for !f.repairOnce() {
		}
	}()
}

// repairOnce reads the history once and reports whether the repair is done.
func (f *feed) repairOnce() bool {
	f.mu.Lock()
	f.again = false
	record, live := f.record, f.live
	f.mu.Unlock()
	batches, err := f.read(f.client.ctx, record)
	if protocol.IsNotServed(err) {
		f.fail(err)
		return true
	}
	if err != nil {
		// Retry until the connection is back. A closed client needs no repair.
		return !backoff.Sleep(f.client.ctx, retryPause)
	}
	f.learn(batches)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.record < record {
		return false // the feed was rewound during the read
	}
	for _, b := range batches {
		if b.Last() > f.last {
			f.deliver(b)
		}
		f.record = max(f.record, b.Record)
	}
	// If a batch arrived during the read, it may have been stored too late for this read: read again. If a batch
	// arrived before the read and the read found nothing, the log has lost the batch.
	if f.again || f.last < f.live && (f.live > live || len(batches) > 0) {
		return false
	}
	f.repairing = false
	return true
}

// awaitFailure registers a channel that gets the error if the coordinators are too old to read the history.
func (f *feed) awaitFailure() (failure chan error, forget func()) {
	failure = make(chan error, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures[failure] = struct{}{}
	return failure, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.failures, failure)
	}
}

// fail ends a repair that cannot succeed, and all calls that wait for its batches. The next recheck tries again.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.repairing = false
	for w := range f.followers {
		w.mayHaveMissed() // the follower reads the history, and returns the error
	}
	for failure := range f.failures {
		select {
		case failure <- err:
		default: // it has an error already
		}
	}
}

// learn asks the coordinators for the owners of unknown keys that signed batches of the history. The feed can then
// believe later batches of the same writers. Without an answer, the feed reads these later batches from the history.
func (f *feed) learn(batches []*protocol.Batch) {
	f.mu.Lock()
	keys := f.unknownKeys(batches)
	f.mu.Unlock()
	if _, known, _ := f.client.writers.current(); !known || len(keys) > 0 {
		_ = f.client.writers.learn(f.client.ctx, keys) // on failure, the next read of the history tries again
	}
}

// mayHaveMissed tells all feeds that live batches may have been lost.
func (c *Client) mayHaveMissed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.feeds {
		f.mayHaveMissed()
	}
}
