package jetstream

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
)

// Decide looks at a sandbox's state and returns the events that should follow, without numbers. It
// changes nothing, does no I/O, and may be called several times: when somebody else wrote first,
// it is asked again on the newer state. An error, or no events, appends nothing.
type Decide func(s *protocol.State, now time.Time) ([]protocol.Event, error)

// JournalConfig says who writes.
type JournalConfig struct {
	Tenant, Sandbox string
	Writer          string        // name of the coordinator or worker
	Token           func() uint64 // fencing token of the writer's lock; nil: none
	KeepEnded       int           // ended execs kept in the state; default 256

	// OnApply is called after each batch was folded in, in order, with the state after it, under
	// the journal's lock: it must be quick and must not call the journal. It may be nil.
	OnApply func(s *protocol.State, b *protocol.Batch)
}

// Journal is one writer's view of one sandbox's history: its fold, and the way to append to it.
// While an append is in flight, further decisions wait, and then go out as one message that
// carries them all, each event with its own number: a group commit.
type Journal struct {
	conn *Conn
	cfg  JournalConfig

	mu     sync.Mutex
	state  *protocol.State
	record uint64 // of the last batch folded in
	stale  bool   // the history must be read before the next decision
	queue  []*decision
	busy   bool
}

// decision is one call of Do, waiting.
type decision struct {
	ctx    context.Context
	decide Decide
	events []protocol.Event
	err    error // of decide itself
	done   chan error
}

// Journal opens the history of a sandbox; nothing is read yet.
func (c *Conn) Journal(cfg JournalConfig) *Journal {
	if cfg.KeepEnded == 0 {
		cfg.KeepEnded = 256
	}
	return &Journal{conn: c, cfg: cfg, state: &protocol.State{}, stale: true}
}

// Restore gives a journal the state of a snapshot and the record that it was taken at.
func (j *Journal) Restore(s *protocol.State, record uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if record > j.record {
		j.state, j.record = s, record
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
	f(j.state, j.record)
}

// State returns a copy of the folded state, and the record it was folded up to.
func (j *Journal) State() (*protocol.State, uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.Clone(), j.record
}

// Observe folds in a batch that was heard of from outside, where it is the next one. It reports
// whether batches between are missing, which [Journal.Refresh] reads.
func (j *Journal) Observe(b *protocol.Batch) (gap bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if b.First() > j.state.Sandbox.Sequence+1 {
		return true
	}
	j.applyLocked(b)
	return false
}

// applyLocked folds a batch in, unless that was done before.
func (j *Journal) applyLocked(b *protocol.Batch) {
	if b.Last() <= j.state.Sandbox.Sequence || b.First() != j.state.Sandbox.Sequence+1 {
		return
	}
	for i := range b.Events {
		if err := j.state.Apply(&b.Events[i]); err != nil {
			// Everybody folds the same events by the same code, so this is a defect of the writer.
			// The event is counted, so that the history goes on.
			j.conn.log.Error("an illegal event is in the log", "sandbox", b.Sandbox, "event", b.Events[i].Sequence, "kind", b.Events[i].Kind, "error", err)
			j.state.Sandbox.Sequence = b.Events[i].Sequence
		}
	}
	j.record = b.Record
	j.state.Trim(j.cfg.KeepEnded)
	if j.cfg.OnApply != nil {
		j.cfg.OnApply(j.state, b)
	}
}

// Refresh folds in everything that is in the history now.
func (j *Journal) Refresh(ctx context.Context) error {
	j.mu.Lock()
	empty, after := j.record == 0, j.record
	j.mu.Unlock()
	if empty { // a whole replay: in batches, from any replica
		batches, last, err := j.conn.history(ctx, j.cfg.Tenant, j.cfg.Sandbox, 0)
		if err != nil {
			return err
		}
		j.applyAll(batches, last)
		after = last
	}
	if !empty || !j.conn.singleReplica() {
		batches, last, err := j.conn.historyTail(ctx, j.cfg.Tenant, j.cfg.Sandbox, after)
		if err != nil {
			return err
		}
		j.applyAll(batches, last)
	}
	j.Fresh()
	return nil
}

// applyAll folds in what was read of the history, up to the record last: that is what the next
// append expects, even when there is something at it that does not fold.
func (j *Journal) applyAll(batches []*protocol.Batch, last uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range batches {
		if b.First() > j.state.Sandbox.Sequence+1 {
			// What comes between is no longer kept: a tombstone is all there is.
			buried := &protocol.State{}
			if err := buried.Bury(&b.Events[len(b.Events)-1]); err != nil {
				j.conn.log.Error("a history goes on with a gap", "sandbox", b.Sandbox, "event", b.First(), "error", err)
				continue
			}
			j.state = buried
			continue
		}
		j.applyLocked(b)
	}
	j.record = max(j.record, last)
}

func (c *Conn) singleReplica() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.meta != nil && c.meta.replicas == 1
}

// maxGroup is how many decisions one append carries at most; maxBatchBytes bounds its message,
// below the server's maximum payload.
const (
	maxGroup      = 256
	maxBatchBytes = 768 << 10
)

// Do asks decide, appends what it returns, and returns those events as they are in the log. The
// error is decide's own, or unavailable: then the outcome is open, and decide must be written so
// that calling Do again is safe. When ctx ends, Do returns at once; what is in flight goes on.
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
	ctx, cancel := context.WithTimeout(context.Background(), appendWithin)
	defer cancel()
	confirm, confirmed := false, false
	for len(group) > 0 {
		if err := j.refreshStale(ctx, confirm); err != nil {
			finish(group, err)
			return
		}
		confirm = false
		batch, expected, took, rest := j.assemble(group)
		if len(batch.Events) == 0 && !confirmed {
			// What appends nothing is checked by no compare-and-set: a refusal, or nothing to do,
			// holds only on a state that was read just now. A follower that says Fresh may be behind.
			confirm, confirmed = true, true
			continue
		}
		if len(batch.Events) == 0 {
			finish(took, nil)
			group = rest
			continue
		}
		won, err := j.append(ctx, batch, expected)
		if err == nil && !won {
			group = append(took, rest...) // decide again on what was written
			continue
		}
		if won {
			j.mu.Lock()
			j.applyLocked(batch)
			j.mu.Unlock()
			for _, d := range took {
				for i := range d.events {
					e := &d.events[i]
					e.Record, e.Writer, e.Token = batch.Record, batch.Writer, batch.Token
				}
			}
		}
		finish(took, err)
		group = rest
	}
}

// finish ends decisions: with err, or each with what it said itself.
func finish(group []*decision, err error) {
	for _, d := range group {
		if err != nil {
			d.events, d.err = nil, err
		}
		d.done <- d.err
	}
}

func (j *Journal) makeStale() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stale = true
}

// refreshStale reads the history where that is due, or always, through a fail-over of NATS as append does.
func (j *Journal) refreshStale(ctx context.Context, always bool) error {
	for {
		j.mu.Lock()
		stale := j.stale
		j.mu.Unlock()
		if !stale && !always {
			return nil
		}
		try, cancel := context.WithTimeout(ctx, appendTry)
		err := j.Refresh(try)
		cancel()
		if err == nil {
			return nil
		}
		if !isOneOf(err, protocol.DeadlineExceeded, protocol.Unavailable) || !sleep(ctx, retryPause) {
			return err
		}
	}
}

// append writes a batch. won is false when somebody else wrote first; what they wrote is folded
// in. A lost answer is told from a lost race by the batch's id, since a single server and a cluster
// answer a second try with different errors: the try is repeated, with the same id and the same
// expectation, until the history shows the batch or another one in its place.
//
// The message that follows the expected one is all that need be read: it is the batch, or what came
// in its place. When still more was written, the next append loses once more.
func (j *Journal) append(ctx context.Context, batch *protocol.Batch, expected uint64) (won bool, err error) {
	tried := false
	for pause := firstPause; ; pause = nextPause(pause) {
		try, cancel := context.WithTimeout(ctx, appendTry)
		record, err := j.conn.Append(try, batch, expected)
		cancel()
		if err == nil {
			batch.Fill(record)
			return true, nil
		}
		if err != ErrConflict && !isOneOf(err, protocol.DeadlineExceeded, protocol.Unavailable) {
			return false, err
		}
		if err == ErrConflict && !tried && j.isBeyond(expected) {
			return false, nil // the winner was heard of meanwhile
		}
		tried = true
		j.makeStale()
		try, cancel = context.WithTimeout(ctx, appendTry)
		written, last, readErr := j.conn.historyNext(try, j.cfg.Tenant, j.cfg.Sandbox, expected)
		cancel()
		if readErr == nil && last > expected {
			j.applyAll(written, last)
			j.Fresh()
			if len(written) > 0 && written[0].ID == batch.ID {
				batch.Fill(written[0].Record)
				return true, nil
			}
			return false, nil
		}
		if !sleep(ctx, pause) {
			return false, protocol.Errorf(protocol.Unavailable, "", "append to %s: %v", j.cfg.Sandbox, err)
		}
	}
}

// isBeyond says whether more than the expected record has been folded in.
func (j *Journal) isBeyond(expected uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.record > expected
}

// assemble asks the decisions of a group in order, each on the state that those before it leave,
// and makes one batch, which has no events when there is nothing to write. took is what the batch
// settles, refusals among it: they hold only if the batch does. rest is what did not fit.
//
// expected is the record that the decisions were made on, read together with the state: a batch
// that is folded in meanwhile must make the append lose, not shift what it expects.
func (j *Journal) assemble(group []*decision) (batch *protocol.Batch, expected uint64, took, rest []*decision) {
	scratch, expected := j.State()
	now := time.Now().UTC()
	batch = &protocol.Batch{
		Version: protocol.Version, Tenant: j.cfg.Tenant, Sandbox: j.cfg.Sandbox,
		ID: strings.ToLower(ulid.Make().String()), Writer: j.cfg.Writer,
	}
	if j.cfg.Token != nil {
		batch.Token = j.cfg.Token()
	}
	size := 0
	for i, d := range group {
		d.events, d.err = nil, translate(d.ctx.Err(), "append to "+j.cfg.Sandbox) // nobody waits any more
		var events []protocol.Event
		if d.err == nil {
			events, d.err = d.decide(scratch, now)
		}
		if d.err == nil && len(events) > 0 {
			cost := 0
			for k := range events {
				e := &events[k]
				e.Tenant, e.Sandbox = j.cfg.Tenant, j.cfg.Sandbox
				if e.Time.IsZero() {
					e.Time = now
				}
				cost += eventSize(e)
			}
			if size > 0 && size+cost > maxBatchBytes {
				return batch, expected, took, group[i:]
			}
			if d.err = scratch.Number(events); d.err != nil {
				scratch = j.replay(batch.Events)
			} else {
				size += cost
				batch.Events = append(batch.Events, events...)
				d.events = events
			}
		}
		took = append(took, d)
	}
	return batch, expected, took, nil
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

// eventSize is about how many bytes an event takes in a batch.
func eventSize(e *protocol.Event) int {
	n := 256
	if e.Exec != nil {
		n += len(e.Exec.Stdout) + len(e.Exec.Stderr)
		if e.Exec.Spec != nil {
			n += len(e.Exec.Spec.Stdin)
			for _, a := range e.Exec.Spec.Command {
				n += len(a) + 5
			}
			for k, v := range e.Exec.Spec.Env {
				n += len(k) + len(v) + 10
			}
		}
	}
	return n
}
