package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// fold is a state, and where in the log it ends.
type fold struct {
	state *protocol.State
	at    Position  // of the last message folded in
	last  time.Time // of its last event; zero after a snapshot
}

// opening is the fold of a history that is read from its beginning, or from a snapshot. It becomes the
// journal's when all of it is read: nobody sees the state of a sandbox as it was long ago. What a try has
// read stays for the next one.
type opening struct {
	fold
	life  uint64 // the connection's, when it was last compared with the log
	again bool   // the log does not have what the journal folded before
}

const (
	// openingsAtOnce is how many histories are read from their beginning at a time, on one connection.
	openingsAtOnce = 16
	// shortHistory is how many messages are read before the snapshot is looked for, which costs two questions.
	shortHistory = directBatch
	// fewNew is how many new messages are read one by one, from the leader.
	fewNew = 4
)

// alone keeps others from reading much of the same history at the same time, until release is called.
func (j *Journal) alone(ctx context.Context) (release func(), err error) {
	select {
	case j.reading <- struct{}{}:
		return func() { <-j.reading }, nil
	case <-ctx.Done():
		return nil, translate(ctx.Err(), "read the history of "+j.cfg.Sandbox)
	}
}

// open reads a history that nothing was folded of.
func (j *Journal) open(ctx context.Context) error {
	release, err := j.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if j.Position().Record != 0 { // somebody else has read it meanwhile, or it was heard of from its beginning
		j.mu.Lock()
		if o := j.opening; o != nil && !o.again {
			j.opening = nil
			j.tellLocked()
		}
		j.mu.Unlock()
		return j.catchUpAlone(ctx)
	}
	return j.openAlone(ctx)
}

// openAlone goes on reading a history from its beginning, and makes what it gives the journal's fold.
func (j *Journal) openAlone(ctx context.Context) error {
	c := j.conn
	select {
	case c.openings <- struct{}{}:
		defer func() { <-c.openings }()
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

// resumeOpening takes up what an earlier try has read, if the log still has that.
func (j *Journal) resumeOpening(ctx context.Context) error {
	life := j.conn.life.Load()
	j.mu.Lock()
	o := j.opening
	j.mu.Unlock()
	if o != nil && o.life != life && o.at.Record != 0 {
		held, err := j.conn.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, o.at)
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

// beginLocked has an opening begin with a fold.
func (j *Journal) beginLocked(o *opening, f fold) {
	reset := o.again || o.at.Record != 0 || j.opening != nil && j.opening.at.Record != 0
	j.opening, o.fold = o, f
	if reset && j.cfg.OnReset != nil {
		j.cfg.OnReset()
	}
}

// errLong says that a history is long enough to look for its snapshot.
var errLong = errors.New("a long history")

// readOpening folds what follows the opening's place into it. It returns errLong, once, where the
// journal may begin with a snapshot and there is more than a little to read.
func (j *Journal) readOpening(ctx context.Context) error {
	j.mu.Lock()
	o := j.opening
	after, mayRestore := o.at.Record, j.cfg.FromSnapshot && !j.noSnapshot
	j.mu.Unlock()
	read := 0
	r := j.conn.historyReader(j.cfg.Tenant, j.cfg.Sandbox, after, func(e *entry) (bool, error) {
		if read++; mayRestore && read > shortHistory {
			return false, errLong
		}
		if b := e.batch; b != nil && b.First() > o.state.Sandbox.Sequence+1 && !isTombstone(b) {
			if err := j.startFromBase(ctx, o, e); err != nil {
				return false, err
			}
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.foldLocked(&o.fold, e)
		return true, nil
	})
	if mayRestore {
		r.moved = func(context.Context) error { return errLong }
	}
	return r.all(ctx)
}

func isTombstone(b *protocol.Batch) bool {
	return b.Events[len(b.Events)-1].Kind == protocol.SandboxDeleted
}

// startFromSnapshot has the opening begin with the stored snapshot, if there is one that can be used and
// that the log has the last message of, and that says more than what is read.
func (j *Journal) startFromSnapshot(ctx context.Context) error {
	j.noSnapshot = true // not again, in this tenure of the journal
	s, err := j.conn.Snapshot(ctx, j.cfg.Tenant, j.cfg.Sandbox)
	if isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded, protocol.Cancelled) {
		j.noSnapshot = false
		return err
	}
	if err != nil || !s.Usable() {
		return nil // there is none, or it is another version's
	}
	held, err := j.conn.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, s.position())
	if err != nil {
		j.noSnapshot = false
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if o := j.opening; held && s.Record > o.at.Record {
		s.State.Trim(j.cfg.KeepEnded)
		j.beginLocked(o, fold{state: s.State, at: s.position()})
	}
	return nil
}

// startFromBase has the opening begin with the state that is kept in place of segments which are kept no
// longer. Without one a deleted history is just being purged, or segments were lost: nothing may be decided on a state
// that lacks events, and its numbers would repeat.
func (j *Journal) startFromBase(ctx context.Context, o *opening, e *entry) error {
	s, err := j.conn.historyBase(ctx, j.cfg.Tenant, j.cfg.Sandbox)
	if err != nil {
		return err
	}
	if s == nil || s.State == nil || s.State.Sandbox.Sequence+1 < e.batch.First() {
		return protocol.Errorf(protocol.Internal, "", "the history of %s goes on with event %d, and what comes before it is not there",
			j.cfg.Sandbox, e.batch.First())
	}
	if s.Fold != protocol.FoldVersion {
		j.conn.log.Warn("the beginning of a history is no longer kept, and its fold is of another version: fields may be missing",
			"sandbox", j.cfg.Sandbox, "fold", s.Fold, "now", protocol.FoldVersion)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s.State.Trim(j.cfg.KeepEnded)
	j.beginLocked(o, fold{state: s.State, at: s.position()})
	return nil
}

// opened makes the opening's fold the journal's.
func (j *Journal) opened() {
	j.mu.Lock()
	defer j.mu.Unlock()
	o := j.opening
	j.opening, j.noSnapshot = nil, false
	defer j.tellLocked()
	if !o.again && j.at.Record > o.at.Record {
		return // it was heard of meanwhile
	}
	j.fold, j.scratch = o.fold, nil
	j.begun++
	if o.again {
		j.doubt = Position{}
	}
}

// tellLocked tells of the journal's own state, after the states of an opening were told.
func (j *Journal) tellLocked() {
	if j.cfg.OnOpen != nil {
		j.cfg.OnOpen(j.state, j.at.Record)
	}
}

// foldLocked folds in a message of the history. What the next append expects is the last message, even
// when there is something in it that does not fold.
func (j *Journal) foldLocked(f *fold, e *entry) {
	j.progress++
	if b := e.batch; b != nil && b.First() > f.state.Sandbox.Sequence+1 {
		// What comes between is no longer kept: a tombstone is all there is.
		buried := &protocol.State{}
		if err := buried.Bury(&b.Events[len(b.Events)-1]); err != nil {
			j.conn.log.Error("a history goes on with a gap", "sandbox", b.Sandbox, "event", b.First(), "error", err)
		} else {
			f.state = buried
			j.scratch = nil
		}
	} else if b != nil {
		j.applyLocked(f, b)
	}
	if p := e.position(); p.Record > f.at.Record {
		f.at = p
	}
}

// catchUp folds in what is new, and begins again at the history's beginning where the log does not have
// what was folded before.
func (j *Journal) catchUp(ctx context.Context) error { return j.catchUpWith(ctx, false) }

// catchUpAlone is catchUp for a caller that already holds a slot for large reads.
func (j *Journal) catchUpAlone(ctx context.Context) error { return j.catchUpWith(ctx, true) }

func (j *Journal) catchUpWith(ctx context.Context, alone bool) error {
	for try := 1; ; try++ {
		j.mu.Lock()
		at, doubt := j.at, j.doubt
		j.mu.Unlock()
		last, err := j.conn.lastEntry(ctx, j.cfg.Tenant, j.cfg.Sandbox)
		if err != nil && protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
		broken := err != nil || last.record < at.Record || last.record == at.Record && !last.isAt(at)
		if !broken && last.record > at.Record {
			if broken, err = j.readOn(ctx, at, last, alone); err != nil {
				return err
			}
		}
		if !broken && doubt.Record != 0 && (doubt != at || last.record != at.Record) {
			there, err := j.conn.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, doubt)
			if err != nil {
				return err
			}
			broken = !there
		}
		if !broken {
			j.caughtUp(doubt)
			return nil
		}
		for _, p := range []Position{at, doubt} {
			if p.Record == 0 {
				continue
			}
			if over, err := j.startOver(ctx, p, try > 2, alone); over || err != nil {
				return err
			}
		}
	}
}

// caughtUp notes that the log has what was in doubt, and what is folded.
func (j *Journal) caughtUp(doubt Position) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.doubt == doubt {
		j.doubt = Position{}
	}
	if o := j.opening; o != nil && o.again && len(j.reading) == 0 {
		j.opening = nil // a server that was behind had it seem that the log was rewound
		j.tellLocked()
	}
}

// readOn folds in what follows a position, up to the last entry. It reports true where that follows
// something else.
func (j *Journal) readOn(ctx context.Context, at Position, last entry, alone bool) (broken bool, err error) {
	reached := at.Record
	r := j.conn.historyReader(j.cfg.Tenant, j.cfg.Sandbox, at.Record, func(e *entry) (bool, error) {
		if e.told && e.after != reached {
			broken = true
			return false, nil
		}
		reached = e.record
		j.mu.Lock()
		defer j.mu.Unlock()
		j.foldLocked(&j.fold, e)
		return reached < last.record, nil
	})
	if last.told && last.after == at.Record { // there is nothing between
		_, err := r.take(&last)
		return broken, err
	}
	for range fewNew {
		none, err := r.step(ctx)
		if none || err != nil || r.ended { // none: purged meanwhile
			return broken, err
		}
	}
	if !alone {
		release, err := j.alone(ctx)
		if err != nil {
			return false, err
		}
		defer release()
		if j.Position().Record >= last.record {
			return false, nil // somebody else has read it meanwhile
		}
	}
	if err := r.bulk(ctx); err != nil || r.ended {
		return broken, err
	}
	return broken, r.tail(ctx)
}

// startOver folds the history from its beginning, if the log still does not have a position that was
// folded, after a moment, or in any case. It reports whether it did.
func (j *Journal) startOver(ctx context.Context, folded Position, inAnyCase, alone bool) (over bool, err error) {
	if !backoff.Sleep(ctx, lookAgain) {
		return false, translate(ctx.Err(), "read the history of "+j.cfg.Sandbox)
	}
	there, err := j.conn.holds(ctx, j.cfg.Tenant, j.cfg.Sandbox, folded)
	if err != nil || there && !inAnyCase {
		return false, err
	}
	if !alone {
		j.mu.Lock()
		begun := j.begun
		j.mu.Unlock()
		release, err := j.alone(ctx)
		if err != nil {
			return false, err
		}
		defer release()
		j.mu.Lock()
		already := j.begun != begun
		j.mu.Unlock()
		if already {
			return false, nil // it is looked at again
		}
	}
	last, err := j.conn.lastEntry(ctx, j.cfg.Tenant, j.cfg.Sandbox)
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return false, err
	}
	if at := j.Position(); at.Record > last.record && at.Record > folded.Record {
		return false, nil // it was written meanwhile, and is read again
	}
	j.conn.log.Warn("the log does not have what was folded from it: it is folded again from its beginning",
		"sandbox", j.cfg.Sandbox, "folded", folded.Record, "log", last.record)
	return true, j.openAlone(ctx)
}
