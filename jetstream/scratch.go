package jetstream

import "github.com/boxfleet/boxfleet/protocol"

// scratch is a copy of the fold that decisions are tried on. That of a sandbox with many execs is kept from
// one append to the next, and brought up to date where it differs, so that an append costs by what it
// changes, and not by how many execs there are. A small one is copied each time: that costs less than to
// have every sandbox in memory twice.
type scratch struct {
	state  *protocol.State     // of who assembles
	differ map[string]struct{} // execs that may be others in the fold; under the journal's lock
}

// keptScratch is from how many execs on a scratch is kept.
const keptScratch = 256

// takeScratchLocked returns a copy of the fold, for the one who assembles.
func (j *Journal) takeScratchLocked() *protocol.State {
	if len(j.state.Execs) < keptScratch {
		j.scratch = nil
		return j.state.Clone()
	}
	if s := j.scratch; s != nil {
		s.state.Update(j.state, s.differ)
		clear(s.differ)
		return s.state
	}
	j.scratch = &scratch{state: j.state.Clone(), differ: map[string]struct{}{}}
	return j.scratch.state
}

// keepScratch notes which execs decisions changed in the state that they were tried on.
func (j *Journal) keepScratch(tried *protocol.State, events []protocol.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.scratch == nil {
		return
	}
	if j.scratch.state != tried {
		j.scratch = nil // one of them spoilt it
		return
	}
	j.scratch.changed(events)
}

// changed notes the execs of events.
func (s *scratch) changed(events []protocol.Event) {
	if s == nil {
		return
	}
	for i := range events {
		if x := events[i].Exec; x != nil {
			s.differ[x.ID] = struct{}{}
		}
	}
}

// trimmed notes the execs that a state is about to forget.
func (s *scratch) trimmed(state *protocol.State, keep int) {
	if s == nil {
		return
	}
	for i := range max(len(state.Ended)-keep, 0) {
		s.differ[state.Ended[i]] = struct{}{}
	}
}
