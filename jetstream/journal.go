package jetstream

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// Decide returns the events that should follow a sandbox's state, without numbers. It changes nothing, does no I/O, and
// may be called several times: if another process wrote first, it is called again on the newer state. If it returns an
// error or no events, nothing is appended.
//
// If the events exceed one message, the first ones that fit are appended, and Decide is called again on the resulting
// state until its events fit. So a decision that may return many events must state what remains to be done: "end the
// active execs", not "end these execs". If the process dies in between, the next process decides the rest.
type Decide func(s *protocol.State, now time.Time) ([]protocol.Event, error)

// JournalConfig configures a journal.
type JournalConfig struct {
	Tenant, Sandbox string
	Writer          string        // name of the coordinator or worker
	Token           func() uint64 // fencing token of the writer's lock; nil if it has no lock
	KeepEnded       int           // how many ended execs the state keeps; default 256

	// FromSnapshot lets a long history start from the sandbox's stored snapshot, if the snapshot is usable and the log
	// has the snapshot's last message. The state then lacks the ended execs that are not in the snapshot.
	FromSnapshot bool

	// OnApply is called after each batch was folded in, in order, with the resulting state. Callers use it to maintain
	// a copy of the state. It is called under the journal's lock, so it must be quick, do no I/O and not call the
	// journal. While a history is read from its beginning, the resulting state is older than the journal's own. OnApply
	// may be nil.
	OnApply func(s *protocol.State, b *protocol.Batch)

	// OnAppended is called for each batch that this journal appended, one batch at a time, in the order of the log. It
	// is called after the log acknowledged the batch and the journal folded it in, but before Do returns for the
	// batch's decisions. The journal's lock is not held, but the journal's next append waits for OnAppended. OnAppended
	// is not called for batches of other writers, or for a batch of which it stayed unknown whether the log has it.
	// OnAppended may be nil.
	OnAppended func(a Appended)

	// OnReset is called when the log no longer has the messages that were folded, before the history is folded again
	// from its beginning or from a snapshot. It is called under the journal's lock, like OnApply. OnReset may be nil.
	OnReset func()

	// OnOpen is called after a history was read from its beginning or from a snapshot, with the journal's new state and
	// the record it was folded up to. It is called under the journal's lock, like OnApply. OnOpen may be nil.
	OnOpen func(s *protocol.State, record uint64)
}

// Appended is a batch that a journal appended.
type Appended struct {
	Batch  *protocol.Batch
	Before protocol.Sandbox // the sandbox as the batch's decisions saw it
	After  protocol.Sandbox // the sandbox after the acknowledgement; may include later batches of other writers
}

// Journal is one writer's view of one sandbox's history: it folds the history and appends to it. Decisions that arrive
// while an append is in flight wait. Their events are then appended as one message (group commit), and each event has
// its own number.
type Journal struct {
	journals *Journals
	cfg      JournalConfig

	reading chan struct{} // slot for a long read

	mu sync.Mutex
	fold
	stale    bool                // the history must be read before the next decision
	made     *protocol.Signature // signature of the batch that is being appended; nil: the batch is not signed
	queue    []*decision
	busy     bool
	moved    chan struct{} // closed when the next batch is folded in; nil: no goroutine waits for it
	opening  *opening      // nil: the history is not being read from its beginning
	begun    int           // how often an opening replaced the fold
	progress uint64        // number of messages read
	scratch  *scratch

	noSnapshot bool // the opening has already searched for a snapshot; guarded by the slot in reading
	whole      bool // the journal remembers all messages that it refused

	// The server of the next connection may have another history. life is the value of connection.life when the history
	// was last read. doubt is the end of the fold when the connection was lost: the journal must check that the log
	// still has this position.
	life  uint64
	doubt Position
}

// decision is one waiting call of Do.
type decision struct {
	ctx    context.Context
	decide Decide
	before []protocol.Event // the decision's events in earlier messages
	events []protocol.Event
	more   bool  // not all events of the decision fit into the message
	err    error // error of decide
	done   chan error
}

// Journals opens the journals of sandboxes.
type Journals struct {
	*streams

	events    *EventLog
	segments  *segments
	histories *Histories
	snapshots *Snapshots
	writers   *Writers
	openings  chan struct{} // slots for histories that are read from their beginning
}

// Journal opens the history of a sandbox without reading anything yet.
func (j *Journals) Journal(cfg JournalConfig) *Journal {
	if cfg.KeepEnded == 0 {
		cfg.KeepEnded = 256
	}
	return &Journal{
		journals: j,
		cfg:      cfg,
		reading:  make(chan struct{}, 1),
		fold:     fold{state: &protocol.State{}},
		stale:    true,
		life:     j.life.Load(),
	}
}

// Restore replaces the journal's state with the state of a snapshot, if the snapshot is newer.
func (j *Journal) Restore(s *Snapshot) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s.Record > j.at.Record {
		j.fold, j.scratch = s.fold(), nil
	}
}

// Fresh says that the history up to now is folded in, so that the next decision need not read the history. A follower
// of the whole log calls Fresh when it has caught up. If the state is behind after all, the compare-and-set of an
// append fails, and the decision is repeated.
func (j *Journal) Fresh() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stale = false
}

// View calls f with the folded state, which f must neither change nor retain.
func (j *Journal) View(f func(s *protocol.State, record uint64)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(j.state, j.at.Record)
}

// State returns a copy of the folded state and the record it was folded up to.
func (j *Journal) State() (*protocol.State, uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.Clone(), j.at.Record
}

// Snapshot returns a copy of the folded state and its position.
func (j *Journal) Snapshot() *Snapshot {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &Snapshot{
		Version: protocol.Version,
		Record:  j.at.Record,
		Batch:   j.at.Batch,
		Fold:    protocol.FoldVersion,
		State:   j.state.Clone(),
	}
	return s.chained(&j.fold)
}

// Receive folds in a batch that the caller received, if it is the next batch of the history and its writer is proven.
// gap is true if earlier batches may be missing; [Journal.Refresh] reads them.
func (j *Journal) Receive(b *protocol.Batch) (gap bool) {
	p := b.Proof
	if p == nil {
		p = &protocol.Proof{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if b.Last() > j.state.Sandbox.Sequence && p.Signature != nil && !p.Notified && !j.madeLocked(p) {
		j.mu.Unlock() // unlocked, because the check takes as long as all other work of an append
		p.Check(j.journals.writers.knownRules().Deployment, b.Tenant, b.Sandbox)
		j.mu.Lock()
	}
	e := &entry{record: b.Record, tenant: b.Tenant, sandbox: b.Sandbox, batch: b, proof: p}
	rules, next := j.journals.writers.knownRules(), j.state.Sandbox.Sequence+1
	required := !p.Notified && j.chain.Requires(rules, b.Record, p)
	switch {
	case required && (p.Signature == nil || p.Fault != nil):
		// The fold does not move, because messages before this one may be missing. The next append reads the log.
		if b.Record > j.at.Record {
			j.journals.writers.refusals.add(j.journals.log, e, j.chain.Verify(rules, j.state, b, p))
			j.skipped = true
		}
		return false
	case b.First() > next:
		return true
	case required && b.Record <= j.at.Record && j.life == j.journals.life.Load():
		return false
	}
	j.doubtLocked()
	if b.First() < next {
		j.skipped = j.skipped || b.Record > j.at.Record
		return false
	}
	if required && (j.chain.Unknown || p.Signature.Previous != j.chain.Last) {
		return true
	}
	if required {
		if refused := j.chain.Verify(rules, j.state, b, p); refused != nil {
			j.refuseLocked(&j.fold, e, refused)
			return false
		}
	}
	if j.skipped && b.Record > j.at.Record+1 { // all messages between the last accepted one and b are refused
		j.refused = append(j.refused, recordRange{j.at.Record + 1, b.Record - 1})
		j.forgetLocked(&j.fold)
	}
	j.skipped = false
	j.applyLocked(&j.fold, b)
	return false
}

// madeLocked reports whether this journal made the signature. Such a signature need not be checked.
func (j *Journal) madeLocked(p *protocol.Proof) bool {
	return j.made != nil && *j.made == *p.Signature
}

// doubtLocked remembers the end of the fold after a lost connection. A later read checks that the log still has this
// position.
func (j *Journal) doubtLocked() {
	if j.doubt.Record == 0 && j.life != j.journals.life.Load() {
		j.doubt = j.at
	}
}

// applyLocked folds a batch in, unless it was folded in already.
func (j *Journal) applyLocked(f *fold, b *protocol.Batch) {
	if b.Last() <= f.state.Sandbox.Sequence || b.First() != f.state.Sandbox.Sequence+1 {
		return
	}
	for i := range b.Events {
		if err := f.state.Apply(&b.Events[i]); err != nil {
			// All processes fold the same events with the same code, so the event's writer has a defect. Count the
			// event, so that later events can be folded.
			j.journals.log.Error("ignoring an event of the event log that the sandbox's state does not allow",
				"sandbox", b.Sandbox, "event", b.Events[i].Sequence, "kind", b.Events[i].Kind, "error", err)
			f.state.Sandbox.Sequence = b.Events[i].Sequence
		}
	}
	f.at, f.last = Position{b.Record, b.ID}, b.Events[len(b.Events)-1].Time
	if p := b.Proof; p != nil {
		f.chain.Accept(p)
	} else {
		f.chain.Unknown = true
	}
	if j.moved != nil {
		close(j.moved)
		j.moved = nil
	}
	if f == &j.fold {
		j.scratch.changed(b.Events)
		j.scratch.trimmed(f.state, j.cfg.KeepEnded)
		if s := j.scratch; s != nil && len(s.differ) > 2*reuseScratch {
			j.scratch = nil // there was no decision for a long time
		}
	}
	f.state.Trim(j.cfg.KeepEnded)
	if j.cfg.OnApply != nil {
		j.cfg.OnApply(f.state, b)
	}
}

// Refresh folds in everything that the history has now. If a server lost messages that were folded before, the history
// is folded again from its beginning. If ctx ends early, the next call continues where this one stopped. While a
// history is read for the first time, the state stays empty.
func (j *Journal) Refresh(ctx context.Context) error {
	life := j.journals.life.Load()
	j.mu.Lock()
	j.doubtLocked()
	empty := j.at.Record == 0
	j.mu.Unlock()
	r := &refresh{Journal: j}
	var err error
	if empty {
		err = r.open(ctx)
	} else {
		err = r.catchUp(ctx)
	}
	if err == nil {
		err = r.findLast(ctx)
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stale, j.life = false, life
	return nil
}

// lacksLastLocked reports whether the hash of the last message is needed but unknown.
func (j *Journal) lacksLastLocked() bool {
	return j.chain.Unknown && j.at.Record != 0 &&
		(j.journals.writers.key() != nil || j.journals.writers.knownRules().Signed)
}

// findLast reads the hash of the last message if the fold does not know this hash. The hash is unknown if the fold
// began with a snapshot that an older version of Boxfleet stored.
func (j *refresh) findLast(ctx context.Context) error {
	j.mu.Lock()
	at, lacks := j.at, j.lacksLastLocked()
	j.mu.Unlock()
	if !lacks {
		return nil
	}
	e, err := j.journals.segments.at(ctx, j.cfg.Tenant, j.cfg.Sandbox, at.Record)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.isAt(at) && j.at == at {
		j.chain.Last, j.chain.Unknown = e.proof.Hash, false
		j.chain.Signed = j.chain.Signed || e.proof.Signature != nil
	}
	return nil
}

func (c *core) singleReplica() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.meta != nil && c.meta.replicas == 1
}

// maxGroup is the largest number of decisions in one append.
const maxGroup = 256

// Do calls decide and appends the events that decide returns, in several messages if necessary. It returns the events
// as they are in the log. When ctx ends, Do returns immediately; an append in flight continues. If one of several
// messages fails, the messages before it stay in the log.
//
// Errors: the error of decide; invalid_argument with reason too_large if a single event is larger than a message;
// unavailable if the outcome is unknown. decide must make it safe to call Do again after unavailable.
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

// run appends until the queue is empty. Callers whose append has just finished often call Do again immediately. run
// lets them go first, so that one message carries all their decisions. (With 8 writers this saves a quarter of the
// messages and half of the lost races; a single writer loses nothing.)
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
		(&commit{j, newPatience()}).run(group)
	}
}

// appendWithin bounds the append of one group, including a failover of NATS; appendTry bounds one attempt.
const (
	appendWithin = 30 * time.Second
	appendTry    = 3 * time.Second
)

// commit is the append of one group of decisions.
type commit struct {
	*Journal
	within *patience
}

// run lets a group of decisions decide and appends their events. Each time another process writes first, run lets them
// decide again and appends the new events.
func (j *commit) run(group []*decision) {
	defer func() { j.within.end() }()
	confirm, confirmed := false, false
	for len(group) > 0 {
		if err := j.refreshStale(confirm); err != nil {
			finish(group, err)
			return
		}
		// A decision may rely on a claim that expires, so the wait for the key comes before the decision.
		if err := j.journals.writers.awaitKey(j.within.ctx); err != nil {
			finish(group, err)
			return
		}
		confirm = false
		a := j.assemble(group)
		if len(a.batch.Events) == 0 && !confirmed {
			// No compare-and-set protects a decision without events: "refused" or "nothing to do" is valid only on a
			// state that was just read. A follower that calls Fresh may be behind.
			confirm, confirmed = true, true
			continue
		}
		if len(a.batch.Events) == 0 {
			finish(a.took, nil)
			group = a.rest
			continue
		}
		won, err := j.append(j.within.ctx, a)
		if err == nil && !won {
			group = append(a.took, a.rest...) // decide again on the state that the other writer left
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

// acknowledged folds in a batch that the log has acknowledged and calls OnAppended. It returns the decisions that the
// batch completes, and the decisions that must still be appended.
func (j *commit) acknowledged(a *attempt) (took, rest []*decision) {
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
	if d := a.took[last]; d.more { // the remaining events of d go first in the next message
		d.before = append(d.before, d.events...)
		return a.took[:last], append([]*decision{d}, a.rest...)
	}
	return a.took, a.rest
}

// finish ends decisions: with err if it is not nil, otherwise each with its own result.
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

func (j *commit) makeStale() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stale = true
}

// refreshStale reads the history if the journal is stale, or in any case if always is set. Like [commit.append], it
// retries during a failover of NATS. A long history may take many attempts: an attempt that made progress does not
// count as failed.
func (j *commit) refreshStale(always bool) error {
	for {
		j.mu.Lock()
		stale, before := j.stale || j.life != j.journals.life.Load() || j.lacksLastLocked(), j.progress
		j.mu.Unlock()
		if !stale && !always {
			return nil
		}
		try, end := context.WithTimeout(j.within.ctx, appendTry)
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
			j.within.renew()
		} else if !j.journals.sleep(j.within.ctx, retryPause) {
			return err
		}
	}
}

// patience limits how long appending a group may take.
type patience struct {
	ctx context.Context
	end context.CancelFunc
}

func newPatience() *patience {
	ctx, end := context.WithTimeout(context.Background(), appendWithin)
	return &patience{ctx, end}
}

// renew restarts the time limit.
func (p *patience) renew() {
	p.end()
	*p = *newPatience()
}

// append writes a batch. won is false if another process, the winner, wrote first; the winner's batch is then folded
// in.
//
// If the answer was lost, append repeats the batch with the same id and the same expected position, until the history
// shows this batch or another one in its place. The server's error does not tell which of the two happened, because a
// single server and a cluster answer a repeated append with different errors. So append compares the id of the stored
// batch with its own.
//
// Only the message after the expected position needs to be read: it is this batch or the winner's batch. If more
// messages follow, the next append loses too. If no message follows, append checks that the log still has the expected
// position.
func (j *commit) append(ctx context.Context, a *attempt) (won bool, err error) {
	m, err := j.sign(a)
	if err != nil {
		return false, err
	}
	batch, expected := a.batch, a.expected
	tried := false
	pause := backoff.New(firstPause, retryPause)
	for {
		try, cancel := context.WithTimeout(ctx, appendTry)
		record, err := j.journals.events.publish(try, m, int64(expected.Record))
		cancel()
		if err == nil {
			batch.Fill(record)
			return true, nil
		}
		if err != ErrConflict && !isOneOf(err, protocol.DeadlineExceeded, protocol.Unavailable) {
			return false, err
		}
		if err == ErrConflict && !tried && j.hearsBeyond(expected.Record) {
			return false, nil // the winner's batch is folded in
		}
		tried = true
		j.makeStale()
		won, lost := j.outcome(ctx, batch, expected)
		if won || lost {
			return won, nil
		}
		if !j.journals.sleep(ctx, pause.Next()) {
			return false, protocol.Errorf(protocol.Unavailable, "", "append to %s: %v", j.cfg.Sandbox, err)
		}
	}
}

// sign returns the message that carries a batch. If this process has a key, the message is signed.
func (j *commit) sign(a *attempt) (*nats.Msg, error) {
	payload := a.batch.Encode()
	a.batch.Proof = &protocol.Proof{Hash: protocol.PayloadHash(payload)}
	key, rules := j.journals.writers.key(), j.journals.writers.knownRules()
	var made *protocol.Signature
	switch {
	case key != nil && a.chain.Unknown:
		return nil, protocol.Errorf(protocol.Unavailable, "", "could not read the last message of sandbox %s", j.cfg.Sandbox)
	case key != nil:
		made = key.sign(rules.Deployment, j.cfg.Tenant, j.cfg.Sandbox, a.chain.Last, a.batch.Proof.Hash)
	case a.chain.Signed || rules.Signed:
		return nil, errNoKey(protocol.Writer{Role: "writer", Name: j.cfg.Writer})
	}
	a.batch.Proof.Signature = made
	j.mu.Lock()
	j.made = made
	j.mu.Unlock()
	return messageOf(a.batch, payload, made), nil
}

// outcome finds out whether a batch was stored. The batch won if it follows the expected position. It lost if another
// message follows that position. It also lost if the log does not have the position; the history is then folded again.
func (j *commit) outcome(ctx context.Context, batch *protocol.Batch, expected Position) (won, lost bool) {
	ctx, cancel := context.WithTimeout(ctx, appendTry)
	defer cancel()
	for range 3 {
		next, err := j.journals.events.historyNext(ctx, j.cfg.Tenant, j.cfg.Sandbox, expected.Record)
		if err != nil {
			return false, false
		}
		j.mu.Lock()
		known := j.life == j.journals.life.Load()
		j.mu.Unlock()
		if len(next) == 1 && known && (!next[0].afterKnown || next[0].after == expected.Record) {
			e := &next[0]
			won = isOwn(e, batch)
			if err := j.foldNext(ctx, expected, e); err != nil {
				return false, false
			}
			if won {
				batch.Fill(e.record)
			}
			return won, !won
		}
		// There is no next message yet, or the expected position belongs to another history.
		if err := j.Refresh(ctx); err != nil {
			return false, false
		}
		if now := j.Position(); now.Record <= expected.Record {
			return false, now != expected
		}
	}
	return false, true
}

// isOwn reports whether a message carries a batch that this journal made.
func isOwn(e *entry, batch *protocol.Batch) bool {
	own, stored := batch.Proof.Signature, e.proof.Signature
	return e.batch != nil && e.batch.ID == batch.ID && e.proof.Hash == batch.Proof.Hash &&
		(own == nil) == (stored == nil) && (own == nil || *own == *stored)
}

// foldNext folds in the message that follows a position, unless the fold's position has changed in the meantime. If the
// message is refused, thousands of other refused messages may follow. The next append then reads them together, because
// foldNext marks the journal as stale.
func (j *commit) foldNext(ctx context.Context, at Position, e *entry) error {
	if err := j.journals.writers.prove(ctx, e); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	sequence := j.state.Sandbox.Sequence
	if j.at == at {
		if err := j.foldLocked(&j.fold, e); err != nil {
			return err
		}
	}
	j.stale = j.state.Sandbox.Sequence == sequence
	return nil
}

// hearWithin is how long a writer that lost a race waits to receive the winner's batch before it reads that batch from
// the leader. Coordinators follow the log, and workers are notified of the coordinators' decisions, so the batch is
// already on its way. A question to the leader would cost the writer and the leader more than the rest of the append.
const hearWithin = 2 * time.Millisecond

// hearsBeyond reports whether the fold is beyond the expected record, now or within hearWithin.
func (j *commit) hearsBeyond(expected uint64) bool {
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

	// expected is the end of the fold that the decisions saw, read together with the state. If a batch is folded in
	// afterwards, the append must lose instead of following that batch.
	expected Position
	before   protocol.Sandbox // the sandbox at expected
	chain    protocol.Chain   // the chain that the batch must continue

	took []*decision // decisions that the batch completes, and refusals, which are valid only if the batch wins
	rest []*decision // decisions that did not fit
}

// assemble asks the decisions of a group in order, each on the state that the previous decisions leave, and puts their
// events into one batch. The batch has no events if there is nothing to append.
func (j *commit) assemble(group []*decision) *attempt {
	j.mu.Lock()
	scratch := j.takeScratchLocked()
	a := &attempt{expected: j.at, before: j.state.Sandbox, chain: j.chain}
	now := after(j.last, j.journals.Now())
	j.mu.Unlock()
	var tried []protocol.Event
	defer func() { j.returnScratch(scratch, tried) }()
	a.batch = j.newBatch()
	limit, size := j.journals.maxBatch(), 0
	for i, d := range group {
		d.events, d.more = nil, false
		d.err = translate(d.ctx.Err(), "append to "+j.cfg.Sandbox) // the caller may have given up
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
				a.rest = group[i:] // d goes into the next message
				return a
			}
			// Check all events, including those that go into a later message.
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

// newBatch returns this writer's next batch, without events.
func (j *commit) newBatch() *protocol.Batch {
	b := &protocol.Batch{
		Version: protocol.Version, Tenant: j.cfg.Tenant, Sandbox: j.cfg.Sandbox,
		ID: strings.ToLower(ulid.Make().String()), Writer: j.cfg.Writer,
	}
	if j.cfg.Token != nil {
		b.Token = j.cfg.Token()
	}
	return b
}

// The function "after" returns the later one of two times, unless last is far ahead of now. Two writers' measurements
// of the store's time differ by their round trips, and no event should seem to precede the event that it follows. If
// last is far ahead, a wrong clock stamped the earlier event, and the function returns now.
func after(last, now time.Time) time.Time {
	if last.After(now) && last.Sub(now) <= clockJump {
		return last
	}
	return now
}

// ask calls one decision. If the decision panics, only this decision fails: the journal's goroutine also runs the
// decisions of other callers.
func (j *commit) ask(d *decision, s *protocol.State, now time.Time) (events []protocol.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			j.journals.log.Error("a decision panicked",
				"sandbox", j.cfg.Sandbox, "panic", p, "stack", string(debug.Stack()))
			events, err = nil, protocol.Errorf(protocol.Internal, "", "the decision panicked: %v", p)
		}
	}()
	return d.decide(s, now)
}

// address fills in the fields that decisions leave empty.
func (j *commit) address(events []protocol.Event, now time.Time) {
	for k := range events {
		e := &events[k]
		e.Tenant, e.Sandbox = j.cfg.Tenant, j.cfg.Sandbox
		if e.Time.IsZero() {
			e.Time = now
		}
	}
}

// replay rebuilds the scratch state from the events of the earlier decisions, after a decision corrupted it.
func (j *commit) replay(events []protocol.Event) *protocol.State {
	scratch, _ := j.State()
	for i := range events {
		if err := scratch.Apply(&events[i]); err != nil {
			j.journals.log.Error("could not apply an event again while rebuilding a scratch state",
				"sandbox", j.cfg.Sandbox, "error", err)
		}
	}
	return scratch
}
