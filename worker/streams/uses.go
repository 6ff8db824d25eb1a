package streams

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
)

const (
	// tellPeriod is the shortest time between two events about streams in a sandbox's history, however many streams are
	// opened. A sandbox with a shorter idle_ttl is an exception.
	tellPeriod = 10 * time.Second
	tellCheck  = 250 * time.Millisecond // pause between two checks whether an event is due
	// While a stream is open, this many events about it are appended in each idle_ttl, so that one late event does not
	// cause the sandbox to be stopped as idle.
	idleParts = 3
	tellLast  = 2 * time.Second // how long the last events of a tenure may take

	// targetsMost is how many targets of a sandbox are counted one by one. Further streams are counted together, without
	// their users and addresses.
	targetsMost = 256
)

// target is what a stream leads to.
type target struct {
	kind, user, service, address string
	operation                    string // name of an operation that changes files; empty: none
	told                         bool   // the history tells about the stream; otherwise it only counts as activity
}

// uses counts the streams into sandboxes, and tells the sandboxes' histories about them at a limited rate. These events
// also keep a sandbox with streams from being stopped as idle. An event that cannot be appended is tried again, and
// nothing waits for it.
type uses struct {
	log *slog.Logger

	mu    sync.Mutex
	boxes map[protocol.SandboxKey]*boxUses
}

// boxUses are the streams into one sandbox.
type boxUses struct {
	sandbox Sandbox
	targets map[target]*use
	open    int       // streams that are open
	active  bool      // a stream was opened since the last event
	toldAt  time.Time // when the last event was appended
	telling bool      // an event is being appended
}

// use counts the streams to one target since the last event.
type use struct {
	opened, closed, open int
	failed               int
	sent, received       int64
	path                 string // path of the last operation that changed files
}

func (u *use) changed() bool { return u.opened > 0 || u.closed > 0 }

func newUses(log *slog.Logger) *uses {
	return &uses{log: log, boxes: map[protocol.SandboxKey]*boxUses{}}
}

// begin counts the stream of a call. The caller must call end when the stream has ended.
func (s *uses) begin(c *Call) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[c.Key]
	if b == nil {
		b = &boxUses{targets: map[target]*use{}}
		s.boxes[c.Key] = b
	}
	b.sandbox = c.sandbox
	t := c.target
	if _, known := b.targets[t]; !known && len(b.targets) >= targetsMost {
		t = target{kind: t.kind, told: t.told}
	}
	u := b.targets[t]
	if u == nil {
		u = &use{}
		b.targets[t] = u
	}
	b.open++
	b.active = true
	u.open++
	u.opened++
	u.path = c.path
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		b.open--
		b.active = true
		u.open--
		u.closed++
		if c.failed {
			u.failed++
		}
		u.sent += c.sent.Load()
		u.received += c.received.Load()
	}
}

// run appends events until ctx, the context of the tenure, ends. When ended is closed, all streams have ended, and run
// appends the last events.
func (s *uses) run(ctx context.Context, ended <-chan struct{}) {
	var telling sync.WaitGroup
	defer telling.Wait()
	tick := time.NewTicker(tellCheck)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			s.tellDue(time.Now(), false, func(b *boxUses) { telling.Go(func() { s.tell(ctx, b) }) })
		case <-ended:
			return
		case <-ctx.Done():
		}
	}
	<-ended
	telling.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellLast)
	defer cancel()
	s.tellDue(time.Now(), true, func(b *boxUses) { telling.Go(func() { s.tell(last, b) }) })
}

// tellDue calls tell for each sandbox for which an event is due, and forgets sandboxes without streams.
func (s *uses) tellDue(now time.Time, last bool, tell func(b *boxUses)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, b := range s.boxes {
		switch {
		case b.telling:
		case b.due(now) || last && b.changed():
			b.telling = true
			tell(b)
		case b.open == 0 && !b.changed() && !b.active && now.Sub(b.toldAt) > tellPeriod:
			delete(s.boxes, k)
		}
	}
}

// due reports whether an event should be appended now.
func (b *boxUses) due(now time.Time) bool {
	pause := now.Sub(b.toldAt)
	ttl := b.sandbox.IdleTTL()
	if ttl > 0 && (b.open > 0 || b.active) && pause >= ttl/idleParts {
		return true
	}
	if ttl <= 0 {
		b.active = false
	}
	return b.changed() && pause >= tellPeriod
}

// changed reports whether the history lacks something that it should record about streams.
func (b *boxUses) changed() bool {
	for t, u := range b.targets {
		if t.told && u.changed() {
			return true
		}
	}
	return false
}

// tell appends one event.
func (s *uses) tell(ctx context.Context, b *boxUses) {
	s.mu.Lock()
	said := b.take()
	s.mu.Unlock()
	var err error
	if len(said.entries) > 0 {
		err = b.sandbox.Used(ctx, said.entries)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.telling, b.toldAt = false, time.Now()
	if err == nil || errors.Is(err, decide.ErrSuperseded) { // or the sandbox is gone from this host
		return
	}
	b.giveBack(said)
	if ctx.Err() == nil {
		s.log.Warn("could not append the use of streams to a sandbox's history; retrying", "error", err)
	}
}

// taken has the counts for one event.
type taken struct {
	entries []protocol.StreamUse
	uses    map[target]use
	active  bool
}

// take returns what the history lacks, and counts from zero again. If streams are open, take returns at least one
// entry.
func (b *boxUses) take() taken {
	said := taken{uses: map[target]use{}, active: b.active}
	b.active = false
	var others protocol.StreamUse
	for t, u := range b.targets {
		if !u.changed() && u.open == 0 {
			continue
		}
		e := protocol.StreamUse{Kind: t.kind, User: t.user, Service: t.service, Address: t.address,
			Operation: t.operation, Path: u.path, Opened: u.opened, Closed: u.closed, Failed: u.failed, Open: u.open,
			Sent: u.sent, Received: u.received}
		said.uses[t] = *u
		if len(said.entries) < protocol.MaxStreamUses-1 {
			said.entries = append(said.entries, e)
		} else {
			others = sum(others, e)
		}
		if *u = (use{open: u.open, path: u.path}); u.open == 0 {
			delete(b.targets, t)
		}
	}
	if others.Others {
		said.entries = append(said.entries, others)
	}
	return said
}

func sum(others, e protocol.StreamUse) protocol.StreamUse {
	if !others.Others {
		others.Kind = e.Kind
	}
	others.Others = true
	others.Opened += e.Opened
	others.Closed += e.Closed
	others.Open += e.Open
	others.Failed += e.Failed
	others.Sent += e.Sent
	others.Received += e.Received
	return others
}

// giveBack adds the counts of an event that could not be appended to those of the next event.
func (b *boxUses) giveBack(said taken) {
	b.active = b.active || said.active
	for t, u := range said.uses {
		now := b.targets[t]
		if now == nil {
			now = &use{path: u.path}
			b.targets[t] = now
		}
		now.opened += u.opened
		now.closed += u.closed
		now.failed += u.failed
		now.sent += u.sent
		now.received += u.received
	}
}
