package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// fold is a state and its position in the log.
type fold struct {
	state   *protocol.State
	at      Position       // position of the last message that was folded in, or refused
	last    time.Time      // time of the last event; zero after a snapshot
	chain   protocol.Chain // the chain that the next message must continue
	refused recordRanges   // messages that are not part of the history
	skipped bool           // a message after at was received and refused, but is not in the list refused

	// forgotten is the last record for which the list refused may lack a message; 0: it lacks none.
	forgotten uint64
}

// opening is the fold of a history that is being read from its beginning or from a snapshot. It becomes the journal's
// fold at the end of the history, so that no caller sees a sandbox's past state as its present one. If an attempt to
// read the history fails, the next attempt continues the opening.
type opening struct {
	fold
	life  uint64 // connection.life when the opening was last compared with the log
	again bool   // the log does not have the messages that the journal folded before
	bare  bool   // no state is stored that replaces expired segments
}

const (
	// openingsAtOnce is how many histories one connection reads from their beginning at a time.
	openingsAtOnce = 16
	// shortHistory is how many messages are read before a snapshot is searched for. The search costs two requests.
	shortHistory = directBatch
	// fewNew is how many new messages are read one by one from the leader.
	fewNew = 4
)

// refresh is one call of [Journal.Refresh].
type refresh struct {
	*Journal
	hasSlot bool // this call holds the journal's slot for long reads
}

// takeSlot prevents other long reads of the same history until release is called.
func (j *refresh) takeSlot(ctx context.Context) (release func(), err error) {
	select {
	case j.reading <- struct{}{}:
		j.hasSlot = true
		return func() { j.hasSlot = false; <-j.reading }, nil
	case <-ctx.Done():
		return nil, translate(ctx.Err(), "read the history of "+j.cfg.Sandbox)
	}
}

// open reads a history of which no message is folded yet.
func (j *refresh) open(ctx context.Context) error {
	release, err := j.takeSlot(ctx)
	if err != nil {
		return err
	}
	defer release()
	if j.Position().Record != 0 { // another reader was faster, or the history was received from its beginning
		j.mu.Lock()
		if o := j.opening; o != nil && !o.again {
			j.opening = nil
			j.reportOpenLocked()
		}
		j.mu.Unlock()
		return j.catchUp(ctx)
	}
	return j.openAlone(ctx)
}

// openAlone reads a history, and makes the result the journal's fold. It reads from the beginning or, if the history is
// long and the journal may use snapshots, from a snapshot. After an earlier attempt, it continues that one. The caller
// holds the journal's slot for long reads.
func (j *refresh) openAlone(ctx context.Context) error {
	select {
	case j.journals.openings <- struct{}{}:
		defer func() { <-j.journals.openings }()
	case <-ctx.Done():
		return translate(ctx.Err(), "read the history of "+j.cfg.Sandbox)
	}
	if err := j.resumeOpening(ctx); err != nil {
		return err
	}
	for {
		err := j.readOpening(ctx)
		if !errors.Is(err, errLong) {
			if err == nil {
				j.opened()
			}
			return err
		}
		if err := j.startFromSnapshot(ctx); err != nil {
			return err
		}
	}
}

// resumeOpening continues the opening of an earlier attempt if the log still has the opening's last message. Otherwise
// it starts a new opening.
func (j *refresh) resumeOpening(ctx context.Context) error {
	life := j.journals.life.Load()
	j.mu.Lock()
	o := j.opening
	j.mu.Unlock()
	if o != nil && o.life != life && o.at.Record != 0 {
		held, err := j.journals.segments.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, o.at)
		if err != nil {
			return err
		}
		if !held {
			o = nil
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if o == nil {
		o = &opening{again: j.at.Record != 0}
		j.beginLocked(o, fold{state: &protocol.State{}})
	}
	o.life = life
	return nil
}

// beginLocked starts an opening from a fold.
func (j *Journal) beginLocked(o *opening, f fold) {
	reset := o.again || o.at.Record != 0 || j.opening != nil && j.opening.at.Record != 0
	j.opening, o.fold = o, f
	if reset && j.cfg.OnReset != nil {
		j.cfg.OnReset()
	}
}

// errLong says that a history is so long that a snapshot is worth searching for.
var errLong = errors.New("a long history")

// readOpening folds the messages after the opening's position into the opening. If the journal may start from a
// snapshot and the history is not short, readOpening returns errLong, but only once.
func (j *refresh) readOpening(ctx context.Context) error {
	j.mu.Lock()
	o := j.opening
	after, mayRestore := o.at.Record, j.cfg.FromSnapshot && !j.noSnapshot
	j.mu.Unlock()
	read := 0
	r := j.journals.histories.historyReader(j.cfg.Tenant, j.cfg.Sandbox, after, func(e *entry) (bool, error) {
		if read++; mayRestore && read > shortHistory {
			return false, errLong
		}
		if err := j.journals.writers.prove(ctx, e); err != nil {
			return false, err
		}
		if j.lacksEvents(o, e) {
			if err := j.startFromBase(ctx, o, e); err != nil {
				return false, err
			}
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		return true, j.foldLocked(&o.fold, e)
	})
	if mayRestore {
		r.moved = func(context.Context) error { return errLong }
	}
	return r.all(ctx)
}

// lacksEvents reports whether events before a message are missing. A stored state may replace these events. A message
// that must be proven may number its events falsely. It shows a loss only if its signature covers an earlier message
// that the opening does not have, or if the opening has only refused messages: an older message may have expired.
func (j *refresh) lacksEvents(o *opening, e *entry) bool {
	b := e.batch
	if b == nil || b.First() <= o.state.Sandbox.Sequence+1 {
		return false
	}
	if !o.chain.Requires(j.journals.writers.knownRules(), e.record, e.proof) {
		return !isTombstone(b)
	}
	behindRefused := o.state.Sandbox.Sequence == 0 && o.at.Record != 0 && !o.bare
	return e.proof.Signature != nil && e.proof.Fault == nil && (e.after > o.at.Record || behindRefused)
}

func isTombstone(b *protocol.Batch) bool {
	return b.Events[len(b.Events)-1].Kind == protocol.SandboxDeleted
}

// startFromSnapshot replaces the opening's fold with the stored snapshot, if three conditions hold: the snapshot is
// usable, it covers more messages than the opening has read, and the log or a segment has the snapshot's last message.
func (j *refresh) startFromSnapshot(ctx context.Context) error {
	j.noSnapshot = true // search for a snapshot only once
	s, err := j.journals.snapshots.Snapshot(ctx, j.cfg.Tenant, j.cfg.Sandbox)
	if isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded, protocol.Cancelled) {
		j.noSnapshot = false
		return err
	}
	if err != nil || !s.Usable() {
		return nil // no usable snapshot is stored
	}
	held, err := j.journals.segments.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, s.position())
	if err != nil {
		j.noSnapshot = false
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if o := j.opening; held && s.Record > o.at.Record {
		s.State.Trim(j.cfg.KeepEnded)
		j.beginLocked(o, s.fold())
	}
	return nil
}

// startFromBase starts the opening from the state that replaces expired segments. If there is no such state, the
// history of a deleted sandbox is being purged, or segments were lost. startFromBase then fails: nothing may be decided
// on a state that lacks events, because event numbers would be used twice.
func (j *refresh) startFromBase(ctx context.Context, o *opening, e *entry) error {
	s, err := j.journals.segments.historyBase(ctx, j.cfg.Tenant, j.cfg.Sandbox)
	if err != nil {
		return err
	}
	if (s == nil || s.State == nil) && isTombstone(e.batch) {
		return nil // the history was purged
	}
	if s == nil && e.proof.Signature != nil && e.after <= o.at.Record {
		o.bare = true
		return nil // no event is missing: the history begins with refused messages
	}
	// If the segment covers the event, no event is missing: e numbers its events falsely.
	covered := e.proof.Signature != nil && s != nil && s.Record >= e.after
	if s == nil || s.State == nil || s.State.Sandbox.Sequence+1 < e.batch.First() && !covered {
		return protocol.Errorf(protocol.Internal, "", "the history of %s lacks the events before event %d",
			j.cfg.Sandbox, e.batch.First())
	}
	if s.Fold != protocol.FoldVersion {
		j.journals.log.Warn("the state of a sandbox may lack fields: it was stored by another version, "+
			"and the history before it has expired",
			"sandbox", j.cfg.Sandbox, "fold", s.Fold, "now", protocol.FoldVersion)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s.State.Trim(j.cfg.KeepEnded)
	j.beginLocked(o, s.fold())
	return nil
}

// opened makes the opening's fold the journal's fold.
func (j *refresh) opened() {
	j.mu.Lock()
	defer j.mu.Unlock()
	o := j.opening
	j.opening, j.noSnapshot = nil, false
	defer j.reportOpenLocked()
	if !o.again && j.at.Record > o.at.Record {
		return // the journal has received newer batches in the meantime
	}
	j.fold, j.scratch = o.fold, nil
	j.begun++
	if o.again {
		j.doubt = Position{}
	}
}

// reportOpenLocked calls OnOpen with the journal's own state, after OnApply was called with the states of an opening.
func (j *Journal) reportOpenLocked() {
	if j.cfg.OnOpen != nil {
		j.cfg.OnOpen(j.state, j.at.Record)
	}
}

// foldLocked folds in a message of the history, or refuses it. The fold moves to the message's position in both cases,
// because the next append must name the last message on the history's subject. It returns an error if the message is
// part of the history but cannot be decoded.
func (j *Journal) foldLocked(f *fold, e *entry) error {
	j.progress++
	if e.record <= f.at.Record {
		return nil
	}
	refused, err := j.judgeLocked(f, e)
	if err != nil {
		return err
	}
	b := e.batch
	switch {
	case refused != nil:
		j.refuseLocked(f, e, refused)
	case b.First() > f.state.Sandbox.Sequence+1:
		// The batches before b were removed, so b must be a tombstone.
		tombstone := &protocol.State{}
		if err := tombstone.ApplyTombstone(&b.Events[len(b.Events)-1]); err != nil {
			j.journals.log.Error("the history of a sandbox lacks events", "sandbox", b.Sandbox, "event", b.First(), "error", err)
		} else {
			f.state = tombstone
			f.chain.Accept(e.proof)
			j.scratch = nil
		}
	default:
		j.applyLocked(f, b)
	}
	if p := e.position(); p.Record > f.at.Record {
		f.at = p
	}
	return nil
}

// refuseLocked records that a message is not part of the history.
func (j *Journal) refuseLocked(f *fold, e *entry, why error) {
	f.refused = f.refused.with(f.at.Record, e.record)
	j.forgetLocked(f)
	f.at = e.position()
	j.journals.writers.refusals.add(j.journals.log, e, why)
}

// forgetLocked drops the oldest ranges of refused messages if there are too many.
func (j *Journal) forgetLocked(f *fold) {
	if n := len(f.refused) - rangesKept; n > 0 && !j.whole {
		f.forgotten, f.refused = f.refused[n-1][1], f.refused[n:]
	}
}

// judgeLocked decides whether a message is part of the history. If it is not, refused says why. err is not nil if the
// message is part of the history but cannot be decoded.
func (j *Journal) judgeLocked(f *fold, e *entry) (refused, err error) {
	rules, b := j.journals.writers.knownRules(), e.batch
	switch {
	case e.foreign != nil:
		return e.foreign, nil
	case !f.chain.Requires(rules, e.record, e.proof):
		return nil, e.broken
	case e.broken != nil: // a message of a newer version ends the reading only if a coordinator wrote it
		b = &protocol.Batch{Record: e.record, Writer: e.proof.Writer.Name}
		if refused := f.chain.Verify(rules, f.state, b, e.proof); refused != nil {
			return refused, nil
		}
		if e.proof.Writer.Role != protocol.OwnerCoordinator ||
			protocol.AsError(e.broken).Reason != protocol.ReasonUnsupportedVersion {
			return e.broken, nil
		}
		return nil, e.broken
	case e.proof.Signature != nil && !e.afterKnown && !e.proof.Notified:
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonNotProven,
			"it does not expect a last message"), nil
	}
	state, next := f.state, f.state.Sandbox.Sequence+1
	if b.First() > next && e.after > f.at.Record {
		state = nil // the messages between the fold and this one were purged
	} else if b.First() != next && e.proof.Fault == nil {
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonNotProven,
			"it begins with event %d instead of %d", b.First(), next), nil
	}
	return f.chain.Verify(rules, state, b, e.proof), nil
}

// catchUp folds in the new messages. If the log no longer has the messages that were folded before, catchUp folds the
// history again from its beginning.
func (j *refresh) catchUp(ctx context.Context) error {
	for try := 1; ; try++ {
		j.mu.Lock()
		at, doubt := j.at, j.doubt
		j.mu.Unlock()
		last, err := j.journals.events.lastEntry(ctx, j.cfg.Tenant, j.cfg.Sandbox)
		if err != nil && protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
		broken := err != nil || last.record < at.Record || last.record == at.Record && !last.isAt(at)
		if !broken && last.record > at.Record {
			if broken, err = j.readOn(ctx, at, last); err != nil {
				return err
			}
		}
		if !broken && doubt.Record != 0 && (doubt != at || last.record != at.Record) {
			held, err := j.journals.segments.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, doubt)
			if err != nil {
				return err
			}
			broken = !held
		}
		if !broken {
			j.caughtUp(doubt)
			return nil
		}
		for _, p := range []Position{at, doubt} {
			if p.Record == 0 {
				continue
			}
			if done, err := j.startOver(ctx, p, try > 2); done || err != nil {
				return err
			}
		}
	}
}

// caughtUp records that the log still has every folded message. It ends the doubt about the given position.
func (j *refresh) caughtUp(doubt Position) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.doubt == doubt {
		j.doubt = Position{}
	}
	if o := j.opening; o != nil && o.again && len(j.reading) == 0 {
		j.opening = nil // the log had only seemed rewound, because a server was behind
		j.reportOpenLocked()
	}
}

// readOn folds in the messages after a position, up to the last entry. broken is true if these messages do not follow
// the position.
func (j *refresh) readOn(ctx context.Context, at Position, last entry) (broken bool, err error) {
	reached := at.Record
	r := j.journals.histories.historyReader(j.cfg.Tenant, j.cfg.Sandbox, at.Record, func(e *entry) (bool, error) {
		if e.afterKnown && e.after != reached {
			broken = true
			return false, nil
		}
		reached = e.record
		if err := j.journals.writers.prove(ctx, e); err != nil {
			return false, err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		return reached < last.record, j.foldLocked(&j.fold, e)
	})
	if last.afterKnown && last.after == at.Record { // no message is between at and last
		_, err := r.take(&last)
		return broken, err
	}
	for range fewNew {
		none, err := r.step(ctx)
		if none || err != nil || r.ended { // none: the other messages were purged in the meantime
			return broken, err
		}
	}
	if !j.hasSlot {
		release, err := j.takeSlot(ctx)
		if err != nil {
			return false, err
		}
		defer release()
		if j.Position().Record >= last.record {
			return false, nil // another reader was faster
		}
	}
	if err := r.bulk(ctx); err != nil || r.ended {
		return broken, err
	}
	return broken, r.tail(ctx)
}

// startOver waits for recheckAfter. If the log still does not have a folded position, or if inAnyCase is set, startOver
// folds the history again from its beginning. done says whether the history was folded again.
func (j *refresh) startOver(ctx context.Context, folded Position, inAnyCase bool) (done bool, err error) {
	if !backoff.Sleep(ctx, recheckAfter) {
		return false, translate(ctx.Err(), "read the history of "+j.cfg.Sandbox)
	}
	held, err := j.journals.segments.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, folded)
	if err != nil || held && !inAnyCase {
		return false, err
	}
	if !j.hasSlot {
		j.mu.Lock()
		begun := j.begun
		j.mu.Unlock()
		release, err := j.takeSlot(ctx)
		if err != nil {
			return false, err
		}
		defer release()
		j.mu.Lock()
		already := j.begun != begun
		j.mu.Unlock()
		if already {
			return false, nil // catchUp checks again
		}
	}
	last, err := j.journals.events.lastEntry(ctx, j.cfg.Tenant, j.cfg.Sandbox)
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return false, err
	}
	if at := j.Position(); at.Record > last.record && at.Record > folded.Record {
		return false, nil // newer messages were folded in the meantime; catchUp checks again
	}
	j.journals.log.Warn("the event log lost messages of a history that were already read; reading the history again",
		"sandbox", j.cfg.Sandbox, "folded", folded.Record, "log", last.record)
	return true, j.openAlone(ctx)
}
