package stream

import "sync/atomic"

const (
	// leastWindow is how many bytes each direction of a stream may use even if the budget is used up, so that each stream
	// makes progress.
	leastWindow = 16 << 10
	// budgetShare limits how much one call takes: an eighth of the bytes that are left. So a later stream gets less than
	// an earlier one, but the budget is never used up.
	budgetShare = 8
	// leastShare is the smallest number of bytes that is worth taking.
	leastShare = 4 << 10
)

// Budget limits the bytes that many streams may use together: the bytes that they have granted to the other ends, and
// the bytes that they keep until these are acknowledged. In addition, each stream may use 16 KiB in each direction. A
// nil Budget has no limit. It is safe for concurrent use.
type Budget struct {
	most int64
	used atomic.Int64
}

// NewBudget returns a budget of this many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{most: bytes} }

// Window takes a stream's first window from the budget, and returns its size: at least 16 KiB, and at most the wanted
// bytes, which must exceed 16 KiB. A stream whose Config has this Window and this Budget gives the bytes back when it
// ends.
func (b *Budget) Window(want int) int {
	if b == nil {
		return want
	}
	return leastWindow + b.take(want-leastWindow)
}

// Return gives back the bytes that Window took for a stream that was then not opened.
func (b *Budget) Return(window int) {
	if b != nil {
		b.give(window - leastWindow)
	}
}

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// take takes at most this many bytes. It returns 0 if too little is left.
func (b *Budget) take(want int) int {
	if b == nil {
		return want
	}
	for {
		used := b.used.Load()
		got := min(int64(want), (b.most-used)/budgetShare)
		if got < min(int64(want), leastShare) || got <= 0 {
			return 0
		}
		if b.used.CompareAndSwap(used, used+got) {
			return int(got)
		}
	}
}

func (b *Budget) give(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}

// lent counts the bytes that one end has borrowed from its budget.
type lent struct {
	grants int // bytes that it borrowed for its window
	keeps  int // bytes that it borrowed for data that is not acknowledged

	askedFor uint64 // value of sent when this end last asked for an acknowledgement because room was short
}

// borrow counts the bytes that this end has at first. Its window was taken from the budget by [Budget.Window].
func (s *sending) borrow() {
	if s.allowed = s.cfg.MaxWindow; s.cfg.Budget != nil {
		s.lent.grants = max(0, s.cfg.Window-leastWindow)
		s.allowed = min(leastWindow, s.cfg.MaxWindow)
	}
}

// aheadMost limits for how many frames beyond its credit an end borrows memory. Otherwise a peer that does not read
// could use up the budget.
const aheadMost = 2

// makeRoom tries to make room for a whole frame, and reports whether write would keep a byte.
func (s *sending) makeRoom() bool {
	lacks := min(s.cfg.Frame-s.room(), s.cfg.MaxWindow-s.allowed)
	if lacks > 0 && s.cfg.Budget != nil && s.end < s.credit+uint64(aheadMost*s.cfg.Frame) {
		more := s.cfg.Budget.take(lacks)
		s.allowed, s.lent.keeps = s.allowed+more, s.lent.keeps+more
	}
	return s.room() > 0
}

// isShort reports whether this end must ask for an acknowledgement, because it has sent everything that the budget lets
// it keep. The other end does not know about this lack of room: it acknowledges at once only after a large part of its
// own window.
func (s *sending) isShort() bool {
	return s.cfg.Budget != nil && s.room() <= 0 && s.allowed < s.cfg.MaxWindow && s.lent.askedFor != s.sent &&
		s.cursor == len(s.queue) && s.sent > s.ackedBy
}

// giveRoom gives back room that is not used. If everything is acknowledged, this end keeps no memory.
func (s *sending) giveRoom() {
	if s.cfg.Budget == nil {
		return
	}
	surplus := s.room() - spareMost*s.cfg.Frame
	if len(s.queue) == 0 {
		surplus, s.spare = s.lent.keeps, nil
	}
	if surplus = min(surplus, s.lent.keeps); surplus > 0 {
		s.cfg.Budget.give(surplus)
		s.allowed, s.lent.keeps = s.allowed-surplus, s.lent.keeps-surplus
	}
}

// giveBack gives back everything when the stream ends.
func (l *lent) giveBack(b *Budget) {
	b.give(l.grants + l.keeps)
	*l = lent{}
}
