package jetstream

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// Decide looks at a sandbox's state and returns the events that should follow, without numbers. It
// changes nothing, does no I/O, and may be called several times: when somebody else wrote first,
// it is asked again on the newer state. An error, or no events, appends nothing.
//
// What is more than one message takes is appended in parts: as many of the first events as fit, and
// then decide is asked again, on the state that these leave, until what it returns fits. So a decision
// that may return many events says what is still to be done: it ends the execs that are active, not
// those that were when it was made. When its process dies in between, the next process that looks asks again.
type Decide func(s *protocol.State, now time.Time) ([]protocol.Event, error)

// JournalConfig says who writes.
type JournalConfig struct {
	Tenant, Sandbox string
	Writer          string        // name of the coordinator or worker
	Token           func() uint64 // fencing token of the writer's lock; nil: none
	KeepEnded       int           // ended execs kept in the state; default 256

	// FromSnapshot has a long history begin with the stored snapshot of the sandbox, where that can be used
	// and the log has its last message. What the snapshot lacks of ended execs, the state lacks.
	FromSnapshot bool

	// OnApply keeps a copy of the state current. It is called after each batch was folded in, in order, with the
	// state after it, under the journal's lock: it must be quick, do no I/O and not call the journal. While a history
	// is read from its beginning, that state is older than the journal's own. It may be nil.
	OnApply func(s *protocol.State, b *protocol.Batch)

	// OnAppended is called for each batch that this journal appended, outside the journal's lock: after the
	// log acknowledged the batch and it was folded in, before the decisions in it return from Do, and for one batch
	// at a time in the order of the log. The next append of this journal waits for it. It is not called for an
	// append whose outcome stayed unknown, nor for batches of other writers. It may be nil.
	OnAppended func(a Appended)

	// OnReset is called, as OnApply is, before a history is folded again from its beginning, because the
	// log no longer has what was folded, or from a snapshot. It may be nil.
	OnReset func()

	// OnOpen is called, as OnApply is, when a history was read from its beginning, or from a snapshot, with the state
	// that is the journal's own now, and the record it was folded up to. It may be nil.
	OnOpen func(s *protocol.State, record uint64)
}

// Appended is a batch that a journal appended.
type Appended struct {
	Batch  *protocol.Batch
	Before protocol.Sandbox // as the batch's decisions saw it
	After  protocol.Sandbox // when the log had acknowledged the batch; may include later batches of other writers
}

// Journal is one writer's view of one sandbox's history: its fold, and the way to append to it.
// While an append is in flight, further decisions wait, and then go out as one message that
// carries them all, each event with its own number: a group commit.
type Journal struct {
	conn *Conn
	cfg  JournalConfig

	reading chan struct{} // one that reads much has its slot

	mu sync.Mutex
	fold
	stale    bool // the history must be read before the next decision
	queue    []*decision
	busy     bool
	moved    chan struct{} // closed when the next batch is folded in; nil: nobody waits for that
	opening  *opening      // nil: nothing is being read from its beginning
	begun    int           // how often an opening became the fold
	progress uint64        // counts the messages that were read
	scratch  *scratch

	noSnapshot bool // the opening has looked for one; of who reads

	// A server that comes back may have another history. life is the connection's at the time of the last
	// look at the history; doubt is where the fold was when the connection was lost, and is to be looked for.
	life  uint64
	doubt Position
}

// decision is one call of Do, waiting.
type decision struct {
	ctx    context.Context
	decide Decide
	before []protocol.Event // what earlier messages took of it
	events []protocol.Event
	more   bool  // it had more events than a message takes
	err    error // of decide itself
	done   chan error
}

// Journal opens the history of a sandbox; nothing is read yet.
func (c *Conn) Journal(cfg JournalConfig) *Journal {
	if cfg.KeepEnded == 0 {
		cfg.KeepEnded = 256
	}
	return &Journal{conn: c, cfg: cfg, reading: make(chan struct{}, 1), fold: fold{state: &protocol.State{}}, stale: true, life: c.life.Load()}
}

// Restore gives a journal the state of a snapshot, where that is newer.
func (j *Journal) Restore(s *Snapshot) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s.Record > j.at.Record {
		j.fold, j.scratch = fold{state: s.State, at: s.position()}, nil
	}
}

// Fresh says that the history up to now is folded in, so that the next decision need not read it
// first. A follower of the whole log calls it when it has caught up; a decision on a state that is
// behind costs a lost compare-and-set and nothing else.
func (j *Journal) Fresh() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stale = false
}

// View calls f with the folded state, which f must neither change nor keep.
func (j *Journal) View(f func(s *protocol.State, record uint64)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(j.state, j.at.Record)
}

// State returns a copy of the folded state, and the record it was folded up to.
func (j *Journal) State() (*protocol.State, uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.Clone(), j.at.Record
}

// Snapshot returns a copy of the folded state, and where the fold ends.
func (j *Journal) Snapshot() *Snapshot {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &Snapshot{Version: protocol.Version, Record: j.at.Record, Batch: j.at.Batch, Fold: protocol.FoldVersion, State: j.state.Clone()}
}

// Observe folds in a batch that was heard of from outside, where it is the next one. It reports
// whether batches between are missing, which [Journal.Refresh] reads.
func (j *Journal) Observe(b *protocol.Batch) (gap bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if b.First() > j.state.Sandbox.Sequence+1 {
		return true
	}
	j.doubtLocked()
	j.applyLocked(&j.fold, b)
	return false
}

// doubtLocked notes, after a connection was lost, which place of the log is to be looked for.
func (j *Journal) doubtLocked() {
	if j.doubt.Record == 0 && j.life != j.conn.life.Load() {
		j.doubt = j.at
	}
}

// applyLocked folds a batch in, unless that was done before.
func (j *Journal) applyLocked(f *fold, b *protocol.Batch) {
	if b.Last() <= f.state.Sandbox.Sequence || b.First() != f.state.Sandbox.Sequence+1 {
		return
	}
	for i := range b.Events {
		if err := f.state.Apply(&b.Events[i]); err != nil {
			// Everybody folds the same events by the same code, so this is a defect of the writer.
			// The event is counted, so that the history goes on.
			j.conn.log.Error("an illegal event is in the log", "sandbox", b.Sandbox, "event", b.Events[i].Sequence, "kind", b.Events[i].Kind, "error", err)
			f.state.Sandbox.Sequence = b.Events[i].Sequence
		}
	}
	f.at, f.last = Position{b.Record, b.ID}, b.Events[len(b.Events)-1].Time
	if j.moved != nil {
		close(j.moved)
		j.moved = nil
	}
	if f == &j.fold {
		j.scratch.changed(b.Events)
		j.scratch.trimmed(f.state, j.cfg.KeepEnded)
		if s := j.scratch; s != nil && len(s.differ) > 2*keptScratch {
			j.scratch = nil // nobody has decided for long
		}
	}
	f.state.Trim(j.cfg.KeepEnded)
	if j.cfg.OnApply != nil {
		j.cfg.OnApply(f.state, b)
	}
}

// Refresh folds in everything that is in the history now. Where the log does not have what was folded
// before, a server having lost it, the history is folded again from its beginning. What was read before ctx
// ended need not be read again by the next call. Until all of a history is read that nothing was folded of,
// the state stays empty.
func (j *Journal) Refresh(ctx context.Context) error {
	life := j.conn.life.Load()
	j.mu.Lock()
	j.doubtLocked()
	empty := j.at.Record == 0
	j.mu.Unlock()
	var err error
	if empty {
		err = j.open(ctx)
	} else {
		err = j.catchUp(ctx)
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stale, j.life = false, life
	return nil
}

func (c *Conn) singleReplica() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.meta != nil && c.meta.replicas == 1
}

// maxGroup is how many decisions one append carries at most.
const maxGroup = 256

// Do asks decide, appends what it returns, in several messages where it is more than one takes, and
// returns those events as they are in the log. The error is decide's own, or unavailable: then the
// outcome is open, and decide must be written so that calling Do again is safe; or invalid_argument
// with reason too_large, where a single event is larger than a message. What was appended in messages
// before the one that failed stays. When ctx ends, Do returns at once; what is in flight goes on.
func (j *Journal) Do(ctx context.Context, decide Decide) ([]protocol.Event, error) {
	d := &decision{ctx: ctx, decide: decide, done: make(chan error, 1)}
	j.mu.Lock()
	j.queue = append(j.queue, d)
	if !j.busy {
		j.busy = true
		go j.run()
	}
	j.mu.Unlock()
	select {
	case err := <-d.done:
		return d.events, err
	case <-ctx.Done():
		return nil, translate(ctx.Err(), "append to "+j.cfg.Sandbox)
	}
}

// run appends until the queue is empty. What was just appended wakes others, which decide next; they
// are let go first, so that one message carries what they decide. (Under 8 writers this saves a
// quarter of the messages and half of the lost races; a single one it costs nothing.)
func (j *Journal) run() {
	for {
		for range 3 {
			runtime.Gosched()
		}
		j.mu.Lock()
		n := min(len(j.queue), maxGroup)
		group := j.queue[:n:n]
		j.queue = j.queue[n:]
		if n == 0 {
			j.busy = false
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		j.commit(group)
	}
}

// appendWithin bounds one group's way into the log, through a fail-over of NATS; appendTry bounds
// one try.
const (
	appendWithin = 30 * time.Second
	appendTry    = 3 * time.Second
)

// commit decides and appends a group, as often as others write first.
func (j *Journal) commit(group []*decision) {
	within := newPatience()
	defer func() { within.end() }()
	confirm, confirmed := false, false
	for len(group) > 0 {
		if err := j.refreshStale(within, confirm); err != nil {
			finish(group, err)
			return
		}
		confirm = false
		a := j.assemble(group)
		if len(a.batch.Events) == 0 && !confirmed {
			// No compare-and-set checks what appends nothing: a refusal, or nothing to do, holds only on a
			// state that was read just now. A follower that calls Fresh may be behind.
			confirm, confirmed = true, true
			continue
		}
		if len(a.batch.Events) == 0 {
			finish(a.took, nil)
			group = a.rest
			continue
		}
		won, err := j.append(within.ctx, a.batch, a.expected)
		if err == nil && !won {
			group = append(a.took, a.rest...) // decide again, on what the other writer wrote
			continue
		}
		took, rest := a.took, a.rest
		if won {
			took, rest = j.acknowledged(a)
		}
		finish(took, err)
		group = rest
	}
}

// acknowledged folds in a batch that the log has acknowledged and calls OnAppended. It returns the decisions
// that the batch completes, and those that are still to be appended.
func (j *Journal) acknowledged(a *attempt) (took, rest []*decision) {
	j.mu.Lock()
	j.applyLocked(&j.fold, a.batch)
	now := j.state.Sandbox
	j.mu.Unlock()
	if j.cfg.OnAppended != nil {
		j.cfg.OnAppended(Appended{Batch: a.batch, Before: a.before, After: now})
	}
	for _, d := range a.took {
		for i := range d.events {
			e := &d.events[i]
			e.Record, e.Writer, e.Token = a.batch.Record, a.batch.Writer, a.batch.Token
		}
	}
	last := len(a.took) - 1
	if d := a.took[last]; d.more { // its remaining events go first in the next message
		d.before = append(d.before, d.events...)
		return a.took[:last], append([]*decision{d}, a.rest...)
	}
	return a.took, a.rest
}

// finish ends decisions: with err, or each with what it said itself.
func finish(group []*decision, err error) {
	for _, d := range group {
		if err != nil {
			d.err = err
		}
		if d.events = append(d.before, d.events...); d.err != nil {
			d.events = nil
		}
		d.done <- d.err
	}
}

func (j *Journal) makeStale() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stale = true
}

// refreshStale reads the history where that is due, or always, through a fail-over of NATS as append does. A
// long history may take many tries: one that read something is none of those that failed.
func (j *Journal) refreshStale(within *patience, always bool) error {
	for {
		j.mu.Lock()
		stale, before := j.stale || j.life != j.conn.life.Load(), j.progress
		j.mu.Unlock()
		if !stale && !always {
			return nil
		}
		try, end := context.WithTimeout(within.ctx, appendTry)
		err := j.Refresh(try)
		end()
		if err == nil {
			return nil
		}
		if !isOneOf(err, protocol.DeadlineExceeded, protocol.Unavailable) {
			return err
		}
		j.mu.Lock()
		moved := j.progress > before
		j.mu.Unlock()
		if moved {
			within.renew()
		} else if !backoff.Sleep(within.ctx, retryPause) {
			return err
		}
	}
}

// patience is how long a group's way into the log may take.
type patience struct {
	ctx context.Context
	end context.CancelFunc
}

func newPatience() *patience {
	ctx, end := context.WithTimeout(context.Background(), appendWithin)
	return &patience{ctx, end}
}

// renew begins to count again.
func (p *patience) renew() {
	p.end()
	*p = *newPatience()
}

// append writes a batch. won is false when somebody else wrote first; what they wrote is folded
// in. A lost answer is told from a lost race by the batch's id, since a single server and a cluster
// answer a second try with different errors: the try is repeated, with the same id and the same
// expectation, until the history shows the batch or another one in its place.
//
// The message that follows the expected one is all that need be read: it is the batch, or what came
// in its place. When still more was written, the next append loses once more. Where none follows, the
// expected one itself is looked for.
func (j *Journal) append(ctx context.Context, batch *protocol.Batch, expected Position) (won bool, err error) {
	tried := false
	pause := backoff.New(firstPause, retryPause)
	for {
		try, cancel := context.WithTimeout(ctx, appendTry)
		record, err := j.conn.Append(try, batch, expected.Record)
		cancel()
		if err == nil {
			batch.Fill(record)
			return true, nil
		}
		if err != ErrConflict && !isOneOf(err, protocol.DeadlineExceeded, protocol.Unavailable) {
			return false, err
		}
		if err == ErrConflict && !tried && j.hearsBeyond(expected.Record) {
			return false, nil // what won is folded in
		}
		tried = true
		j.makeStale()
		won, lost := j.outcome(ctx, batch, expected)
		if won || lost {
			return won, nil
		}
		if !pause.Wait(ctx) {
			return false, protocol.Errorf(protocol.Unavailable, "", "append to %s: %v", j.cfg.Sandbox, err)
		}
	}
}

// outcome looks for what became of a batch: won where it follows the expected record, lost where
// something else does, or where the log does not have the expected record: what was folded is then folded again.
func (j *Journal) outcome(ctx context.Context, batch *protocol.Batch, expected Position) (won, lost bool) {
	ctx, cancel := context.WithTimeout(ctx, appendTry)
	defer cancel()
	for range 3 {
		next, err := j.conn.historyNext(ctx, j.cfg.Tenant, j.cfg.Sandbox, expected.Record)
		if err != nil {
			return false, false
		}
		j.mu.Lock()
		known := j.life == j.conn.life.Load()
		j.mu.Unlock()
		if len(next) == 1 && known && (!next[0].told || next[0].after == expected.Record) {
			j.foldNext(expected, &next[0])
			won = next[0].batch != nil && next[0].batch.ID == batch.ID
			if won {
				batch.Fill(next[0].record)
			}
			return won, !won
		}
		// There is nothing yet, or the expected record may be of another history.
		if err := j.Refresh(ctx); err != nil {
			return false, false
		}
		if now := j.Position(); now.Record <= expected.Record {
			return false, now != expected
		}
	}
	return false, true
}

// foldNext folds in the message that follows a position, unless more than that is folded in by now.
func (j *Journal) foldNext(at Position, e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.at == at {
		j.foldLocked(&j.fold, e)
	}
	j.stale = false
}

// hearWithin is how long a lost race waits to hear of what won before it reads that. Coordinators
// follow the log and workers are told of what coordinators decide, so the batch is on its way: asking
// the leader for it would cost both sides more than all the rest of the append.
const hearWithin = 2 * time.Millisecond

// hearsBeyond says whether more than the expected record is folded in, now or within hearWithin.
func (j *Journal) hearsBeyond(expected uint64) bool {
	over := time.NewTimer(hearWithin)
	defer over.Stop()
	for {
		j.mu.Lock()
		if j.at.Record > expected {
			j.mu.Unlock()
			return true
		}
		if j.moved == nil {
			j.moved = make(chan struct{})
		}
		moved := j.moved
		j.mu.Unlock()
		select {
		case <-moved:
		case <-over.C:
			return false
		}
	}
}

// attempt is a batch that is to be appended, with the decisions it came from.
type attempt struct {
	batch *protocol.Batch

	// expected is the last message of the fold that the decisions saw, read together with the state: a batch that
	// is folded in meanwhile must make the append lose, not shift the expected position.
	expected Position
	before   protocol.Sandbox // the sandbox at expected

	took []*decision // those that the batch completes; refusals too, since they hold only if the batch does
	rest []*decision // those that did not fit
}

// assemble asks the decisions of a group in order, each on the state that those before it leave,
// and puts their events into one batch. The batch has no events if there is nothing to append.
func (j *Journal) assemble(group []*decision) *attempt {
	j.mu.Lock()
	scratch := j.takeScratchLocked()
	a := &attempt{expected: j.at, before: j.state.Sandbox}
	now := after(j.last, j.conn.Now())
	j.mu.Unlock()
	var tried []protocol.Event
	defer func() { j.keepScratch(scratch, tried) }()
	a.batch = j.newBatch()
	limit, size := j.conn.maxBatch(), 0
	for i, d := range group {
		d.events, d.more, d.err = nil, false, translate(d.ctx.Err(), "append to "+j.cfg.Sandbox) // its caller is gone
		var events []protocol.Event
		if d.err == nil {
			events, d.err = j.ask(d, scratch, now)
		}
		fits, cost := 0, 0
		if d.err == nil && len(events) > 0 {
			j.address(events, now)
			fits, cost, d.err = prefix(events, limit-size, maxBatchEvents-len(a.batch.Events), limit)
		}
		if d.err == nil && len(events) > 0 {
			if fits < len(events) && len(a.batch.Events) > 0 {
				a.rest = group[i:] // the next message takes it
				return a
			}
			// All events are checked, including those that go into a later message.
			if d.err = scratch.Number(events); d.err != nil {
				scratch = j.replay(a.batch.Events)
			} else {
				size, tried = size+cost, append(tried, events...)
				d.events, d.more = events[:fits:fits], fits < len(events)
				a.batch.Events = append(a.batch.Events, d.events...)
			}
		}
		a.took = append(a.took, d)
		if d.more {
			a.rest = group[i+1:]
			return a
		}
	}
	return a
}

// newBatch returns a batch of this writer without events.
func (j *Journal) newBatch() *protocol.Batch {
	b := &protocol.Batch{
		Version: protocol.Version, Tenant: j.cfg.Tenant, Sandbox: j.cfg.Sandbox,
		ID: strings.ToLower(ulid.Make().String()), Writer: j.cfg.Writer,
	}
	if j.cfg.Token != nil {
		b.Token = j.cfg.Token()
	}
	return b
}

// after is now, or last where that is a little later: two writers know the store's time up to their way to it
// and back, and no event should seem to come before the one that it follows. A history whose times are far
// ahead was stamped by a clock that was set wrong.
func after(last, now time.Time) time.Time {
	if last.After(now) && last.Sub(now) <= clockJump {
		return last
	}
	return now
}

// ask asks one decision. One that panics is refused by itself: it runs beside those of others, in the
// journal's own goroutine.
func (j *Journal) ask(d *decision, s *protocol.State, now time.Time) (events []protocol.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			j.conn.log.Error("a decision panics", "sandbox", j.cfg.Sandbox, "panic", p, "stack", string(debug.Stack()))
			events, err = nil, protocol.Errorf(protocol.Internal, "", "panic: %v", p)
		}
	}()
	return d.decide(s, now)
}

// address fills in what a decision leaves out.
func (j *Journal) address(events []protocol.Event, now time.Time) {
	for k := range events {
		e := &events[k]
		e.Tenant, e.Sandbox = j.cfg.Tenant, j.cfg.Sandbox
		if e.Time.IsZero() {
			e.Time = now
		}
	}
}

// replay builds the scratch state again, after a decision spoilt it.
func (j *Journal) replay(events []protocol.Event) *protocol.State {
	scratch, _ := j.State()
	for i := range events {
		if err := scratch.Apply(&events[i]); err != nil {
			j.conn.log.Error("a decision does not replay", "sandbox", j.cfg.Sandbox, "error", err)
		}
	}
	return scratch
}
