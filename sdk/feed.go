package sdk

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// keepFeed is how long a feed without users is kept: the next exec then needs no subscription.
	keepFeed = 5 * time.Second
	// settleFeed is after how long a new feed reads the history once: on a cluster the servers may
	// hear of a subscription later than of the request that followed it.
	settleFeed = 500 * time.Millisecond
	// recheckFirst is after how much silence the history is read, as long as somebody waits: the leader
	// of the log republishes what it stored, and where it dies between the two nobody is told but by the
	// next one, or nobody at all. The longer the silence, the longer it is until the next look.
	recheckFirst = 3 * time.Second
	recheckMost  = time.Minute
)

// pace is how long it is until the next look after a silence.
type pace time.Duration

// next is the pace after one more look; silent says that nothing was heard since the last one.
func (p *pace) next(silent bool) time.Duration {
	d := recheckFirst
	if silent {
		d = min(2*time.Duration(*p), recheckMost)
	}
	*p = pace(d)
	return d
}

// feed is a client's one live subscription to a sandbox's history, shared by all that wait for
// something in it. From its first batch, or from the first answer, on it delivers every batch
// in order at least once: where a number is missing, after a reconnect and after a silence, it reads
// the history.
type feed struct {
	client  *Client
	sandbox string
	read    func(ctx context.Context, after uint64) ([]*protocol.Batch, error) // of the history

	mu          sync.Mutex
	users       int
	idle        *time.Timer // runs while there are no users
	check       *time.Timer
	settled     bool   // it was checked once
	checked     uint64 // heard, at the last check
	pace        pace
	closed      bool
	unsubscribe func()
	execs       map[string][]chan protocol.Event // who waits for the end of an exec
	followers   map[*follower]struct{}

	last, record uint64 // newest batch delivered; 0: nothing is known yet
	first        uint64 // first event delivered
	heard        uint64 // newest event heard live
	missed       bool   // something may be missed, and last does not say since when
	repairing    bool
	again        bool // repair once more
}

// feed returns the feed of a sandbox; the caller must release it. It is subscribed when feed
// returns: a request sent afterwards on the same connection comes after the subscription.
func (c *Client) feed(sandbox string) (*feed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.feeds[sandbox]
	if f == nil {
		f = &feed{client: c, sandbox: sandbox, execs: map[string][]chan protocol.Event{}, followers: map[*follower]struct{}{}}
		f.read = func(ctx context.Context, after uint64) ([]*protocol.Batch, error) {
			return c.history(ctx, sandbox, after)
		}
		stop, err := c.conn.Live(c.tenant, sandbox, f.hear)
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
		f.check = time.AfterFunc(settleFeed, f.recheck)
	case time.Duration(f.pace) > recheckFirst: // who comes now has not waited long
		f.check.Reset(f.pace.next(false))
	}
	f.users++
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return f, nil
}

// release gives the feed back. It is closed when nobody has taken it for a while.
func (f *feed) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	if f.users == 0 {
		f.idle = time.AfterFunc(keepFeed, f.closeIdle)
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

// hear takes a live batch.
func (f *feed) hear(b *protocol.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = max(f.heard, b.Last())
	switch {
	case f.repairing: // the repair goes on until it has read this one
	case f.last != 0 && b.Last() <= f.last:
	case f.last != 0 && b.First() != f.last+1:
		f.repair()
	default:
		f.deliver(b)
	}
}

// deliver hands a batch to all that wait for it. f.mu is held.
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
			ended <- *e // has room for the one event that ends the exec
		}
		delete(f.execs, e.Exec.ID)
	}
	for w := range f.followers {
		w.push(b)
	}
}

// knows tells the feed that the caller waits for what follows an event, which is at a record of
// the log; 0: it does not know which. Where the feed does not reach back so far it reads what is between.
func (f *feed) knows(sequence, record uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case sequence == 0: // it knows nothing either
	case f.last == 0:
		f.last, f.record, f.first = sequence, record, sequence+1
		if f.missed {
			f.repair()
		}
	case sequence+1 < f.first:
		f.rewind(sequence, record)
	}
}

// replay is knows for a caller that came after the event: it delivers again all that follows.
func (f *feed) replay(sequence, record uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rewind(sequence, record)
}

// rewind delivers again what follows an event. f.mu is held.
func (f *feed) rewind(sequence, record uint64) {
	f.heard = max(f.heard, f.last)
	if f.first == 0 || f.first > sequence+1 {
		f.first = sequence + 1
	}
	if f.last == 0 || f.last > sequence {
		f.last, f.record = sequence, record
	}
	f.repair()
}

// recheck reads the history once when the feed has settled, and then where somebody waits and
// nothing was heard since the last time.
func (f *feed) recheck() {
	f.mu.Lock()
	silent := f.settled && f.heard == f.checked
	due := !f.settled || f.users > 0 && silent
	f.settled, f.checked = true, f.heard
	if again := f.pace.next(silent); !f.closed && f.client.ctx.Err() == nil {
		f.check.Reset(again)
	}
	f.mu.Unlock()
	if due {
		f.mayHaveMissed()
	}
}

// mayHaveMissed is called when live batches may have been lost. One look is enough for all that follow:
// what it finds is delivered to them.
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

// repair reads the history after the newest batch. f.mu is held.
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
		for !f.repaired() {
		}
	}()
}

// repaired reads the history once, and says whether that was enough.
func (f *feed) repaired() bool {
	f.mu.Lock()
	f.again = false
	record, heard := f.record, f.heard
	f.mu.Unlock()
	batches, err := f.read(f.client.ctx, record)
	if err != nil {
		// A client that is closed needs no repair; a connection that is away comes back.
		return !pause(f.client.ctx, retryPause)
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
	// What was heard meanwhile may have been stored after the log was read. What was heard before,
	// and is not there, is not waited for.
	if f.again || f.last < f.heard && (f.heard > heard || len(batches) > 0) {
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
