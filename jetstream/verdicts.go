package jetstream

import (
	"context"
	"slices"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

// Whether a message is part of the history depends on the messages before it, because the state decides who may append.
// So only a fold can tell. Journals fold, and remember which messages they refused. All other readers ask a journal.

// Judged says which messages of a history are refused.
type Judged struct {
	At   uint64 // record up to which the history was folded
	Last uint64 // record of the last message that is part of the history; 0: none

	refused   recordRanges
	forgotten uint64 // see fold.forgotten
	whole     bool   // the verdicts come from a fold of everything that is stored
}

// Judge returns the verdicts on a sandbox's history, folded at least up to a record if the log has that record.
type Judge func(ctx context.Context, tenant, sandbox string, record uint64) (*Judged, error)

// JudgeBy sets the judge that readers of histories ask. The judge keeps the folded histories in memory. Without it,
// each read folds the history again.
func (h *Histories) JudgeBy(judge Judge) { h.judge.Store(&judge) }

// judgeByFolding folds a history for one read, from its snapshot if the snapshot is usable.
func (h *Histories) judgeByFolding(ctx context.Context, tenant, sandbox string, _ uint64) (*Judged, error) {
	j := h.journals.Journal(JournalConfig{Tenant: tenant, Sandbox: sandbox, KeepEnded: 1, FromSnapshot: true})
	if err := j.Refresh(ctx); err != nil {
		return nil, err
	}
	return j.Judged(), nil
}

// Judged returns which messages the journal refused.
func (j *Journal) Judged() *Judged {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &Judged{At: j.at.Record, Last: j.state.Sandbox.Record, refused: slices.Clip(slices.Clone(j.refused)),
		forgotten: j.forgotten, whole: j.whole}
}

// wholeFolds are the journals of histories with more refused messages than other journals remember. These journals
// start at the oldest stored message and remember all messages that they refuse. Folding takes longer than reading a
// page, so wholeFolds keeps a few journals: the next reader continues the fold where the previous reader stopped.
type wholeFolds struct {
	mu   sync.Mutex
	kept []*Journal // the most recently used last
}

// wholeFoldsKept is how many journals wholeFolds keeps.
const wholeFoldsKept = 16

// completeJournal returns a journal that remembers all refused messages of a history.
func (h *Histories) completeJournal(tenant, sandbox string) *Journal {
	w := &h.whole
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.kept, func(j *Journal) bool { return j.cfg.Tenant == tenant && j.cfg.Sandbox == sandbox })
	var j *Journal
	switch {
	case i >= 0:
		j, w.kept = w.kept[i], slices.Delete(w.kept, i, i+1)
	case len(w.kept) == wholeFoldsKept:
		w.kept = slices.Delete(w.kept, 0, 1)
	}
	if j == nil {
		j = h.journals.Journal(JournalConfig{Tenant: tenant, Sandbox: sandbox, KeepEnded: 1})
		j.whole = true
	}
	w.kept = append(w.kept, j)
	return j
}

// verdicts tells one reader which messages of one history are refused.
type verdicts struct {
	histories       *Histories
	tenant, sandbox string
	judged          *Judged // nil until asked
}

func (h *Histories) verdicts(tenant, sandbox string) verdicts {
	return verdicts{histories: h, tenant: tenant, sandbox: sandbox}
}

// accepts reports whether a message is part of the history. It returns an error if the message is part of the history
// but cannot be decoded.
func (v *verdicts) accepts(ctx context.Context, e *entry) (bool, error) {
	rules, err := v.histories.writers.currentRules(ctx)
	if err != nil {
		return false, err
	}
	if e.foreign != nil {
		v.histories.writers.refusals.add(v.histories.log, e, e.foreign)
		return false, nil
	}
	if rules.Signed {
		if refused, err := v.refuses(ctx, e.record); err != nil || refused {
			return false, err
		}
	}
	return e.broken == nil, e.broken
}

// refuses reports whether the message at a record is not part of the history. If too many messages were refused to
// remember them all, refuses folds the history again. Without the messages before the record, no fold can judge the
// record. It then counts as expired, because it may be forged.
func (v *verdicts) refuses(ctx context.Context, record uint64) (bool, error) {
	if err := v.fold(ctx, record); err != nil {
		return false, err
	}
	if record <= v.judged.forgotten && !v.judged.whole {
		j := v.histories.completeJournal(v.tenant, v.sandbox)
		if err := j.Refresh(ctx); err != nil {
			return false, err
		}
		v.judged = j.Judged()
	}
	return record <= v.judged.forgotten || v.judged.refused.has(record), nil
}

// fold asks the judge about the messages up to a record, unless the judge has already answered about them.
func (v *verdicts) fold(ctx context.Context, record uint64) (err error) {
	if v.judged != nil && v.judged.At >= record {
		return nil
	}
	judge := v.histories.judgeByFolding
	if j := v.histories.judge.Load(); j != nil {
		judge = *j
	}
	judged, err := judge(ctx, v.tenant, v.sandbox, record)
	if err == nil && judged.At < record {
		err = protocol.Errorf(protocol.Unavailable, "",
			"the history of %s could not be folded up to record %d: try again", v.sandbox, record)
	}
	if err == nil {
		v.judged = judged
	}
	return err
}

// recordRange is a range of records of one history, both ends included. Records of other histories may lie between
// them.
type recordRange [2]uint64

// recordRanges are ranges in ascending order.
type recordRanges []recordRange

// rangesKept is how many ranges a journal remembers, unless it remembers all. An attacker makes a new range with each
// message that it appends between two messages of the history. Readers treat the list in a snapshot as incomplete if it
// has this many ranges, so the number may not grow.
const rangesKept = 1000

// The method "with" returns the ranges with one more record, which must be later than all of them. The parameter
// previous is the record before that record in the history.
func (r recordRanges) with(previous, record uint64) recordRanges {
	if n := len(r); n > 0 && r[n-1][1] == previous {
		r[n-1][1] = record
		return r
	}
	return append(r, recordRange{record, record})
}

func (r recordRanges) has(record uint64) bool {
	i, found := slices.BinarySearchFunc(r, record, func(x recordRange, record uint64) int {
		switch {
		case x[1] < record:
			return -1
		case x[0] > record:
			return 1
		}
		return 0
	})
	return found && i < len(r)
}
