package sdk

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// feedLinger is how long an unused feed stays subscribed, so that the next exec needs no new subscription.
	feedLinger = 5 * time.Second
	// firstCheck is when a new feed reads the history once: servers of a cluster may learn of a subscription later than
	// of the request that followed it.
	firstCheck = 500 * time.Millisecond
	// minRecheck is the silence after which a waiter's history is read. The leader of the log publishes what it stored;
	// if it dies between the two, subscribers learn of the batch only with the next one, or never. The pause doubles
	// with each further silence.
	minRecheck = 3 * time.Second
	maxRecheck = time.Minute
)

// recheckPause is the pause between two rechecks.
type recheckPause time.Duration

// next is the pause after one more recheck; silent says that nothing arrived since the last one.
func (p *recheckPause) next(silent bool) time.Duration {
	d := minRecheck
	if silent {
		d = min(2*time.Duration(*p), maxRecheck)
	}
	*p = recheckPause(d)
	return d
}

// feed is a client's one live subscription to a sandbox's history, shared by all its waiters. From its first batch, or
// the first answer, on it delivers every batch in order at least once: after a gap, a reconnect or a silence it reads
// the history.
type feed struct {
	client  *Client
	sandbox string
	read    func(ctx context.Context, after uint64) ([]*protocol.Batch, error) // of the history

	mu          sync.Mutex
	users       int
	idle        *time.Timer // runs while there are no users
	check       *time.Timer // until the next recheck
	settled     bool        // the first check has run
	checked     uint64      // live, at the last check
	pause       recheckPause
	closed      bool
	unsubscribe func()
	execs       map[string][]chan protocol.Event // waiters for the end of an exec, by exec id
	followers   map[*follower]struct{}

	last, record uint64 // newest batch delivered; 0: nothing is known yet
	first        uint64 // first event delivered
	live         uint64 // newest event that arrived on the subscription
	missed       bool   // batches may have been missed while last was still unknown
	repairing    bool
	again        bool // repair once more
}

// feed returns the subscribed feed of a sandbox; the caller must release it. A request sent afterwards on the same
// connection reaches the server after the subscription.
func (c *Client) feed(sandbox string) (*feed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.feeds[sandbox]
	if f == nil {
		f = &feed{client: c, sandbox: sandbox, execs: map[string][]chan protocol.Event{}, followers: map[*follower]struct{}{}}
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
	case time.Duration(f.pause) > minRecheck: // a new user starts with short pauses again
		f.check.Reset(f.pause.next(false))
	}
	f.users++
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return f, nil
}

// release gives the feed back. It is closed once it has been unused for a while.
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

// awaitExec registers for the event that ends an exec.
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

// receive handles a batch that arrived on the subscription.
func (f *feed) receive(b *protocol.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live = max(f.live, b.Last())
	switch {
	case f.repairing: // the repair continues until it has read this batch
	case f.last != 0 && b.Last() <= f.last:
	case f.last != 0 && b.First() != f.last+1:
		f.repair()
	default:
		f.deliver(b)
	}
}

// deliver hands a batch to all waiters. f.mu is held.
func (f *feed) deliver(b *protocol.Batch) {
	if f.first == 0 {
		f.first = b.First()
	}
	f.last, f.record = b.Last(), b.Record
	for i := range b.Events {
		e := &b.Events[i]
		if e.Exec == nil || !e.Exec.State.Terminal() {
			continue
		}
		for _, ended := range f.execs[e.Exec.ID] {
			ended <- *e // has room: only one event ends an exec
		}
		delete(f.execs, e.Exec.ID)
	}
	for w := range f.followers {
		w.push(b)
	}
}

// coverFrom says that the caller waits for what follows an event, with the event's record or 0 if that is not known. If
// the feed does not reach back that far, it reads the events between. Sequence 0 means that the caller knows none.
func (f *feed) coverFrom(sequence, record uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case sequence == 0:
	case f.last == 0:
		f.last, f.record, f.first = sequence, record, sequence+1
		if f.missed {
			f.repair()
		}
	case sequence+1 < f.first:
		f.rewind(sequence, record)
	}
}

// replay is coverFrom for a caller that subscribed after the event: it delivers everything after the event again.
func (f *feed) replay(sequence, record uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rewind(sequence, record)
}

// rewind delivers everything after an event again. f.mu is held.
func (f *feed) rewind(sequence, record uint64) {
	f.live = max(f.live, f.last)
	if f.first == 0 || f.first > sequence+1 {
		f.first = sequence + 1
	}
	if f.last == 0 || f.last > sequence {
		f.last, f.record = sequence, record
	}
	f.repair()
}

// recheck reads the history once after the feed has subscribed, and again whenever somebody waits and nothing has
// arrived since the last check.
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

// mayHaveMissed is called when live batches may have been lost. One read of the history serves all followers.
func (f *feed) mayHaveMissed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != 0 {
		f.repair()
		return
	}
	f.missed = true
	for w := range f.followers {
		w.mayHaveMissed()
	}
}

// repair reads the history after the newest batch, in the background. f.mu is held.
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

// repairOnce reads the history, and says whether the repair is done.
func (f *feed) repairOnce() bool {
	f.mu.Lock()
	f.again = false
	record, live := f.record, f.live
	f.mu.Unlock()
	batches, err := f.read(f.client.ctx, record)
	if err != nil {
		// Retry until the connection is back. A closed client needs no repair.
		return !backoff.Sleep(f.client.ctx, retryPause)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.record < record {
		return false // rewound in the meantime
	}
	for _, b := range batches {
		if b.Last() > f.last {
			f.deliver(b)
		}
		f.record = max(f.record, b.Record)
	}
	// A batch that arrived during the read may have been stored after it, so read again. A batch that had arrived
	// before the read and is not in the log never will be.
	if f.again || f.last < f.live && (f.live > live || len(batches) > 0) {
		return false
	}
	f.repairing = false
	return true
}

// mayHaveMissed is called when messages of any feed may have been lost.
func (c *Client) mayHaveMissed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.feeds {
		f.mayHaveMissed()
	}
}
