package jetstream

import "github.com/boxfleet/boxfleet/protocol"

// scratch is a copy of the fold on which decisions are tried. A large sandbox's scratch is reused for the next append;
// only the execs that differ from the fold are updated. The cost of an append therefore depends on what it changes, not
// on the number of execs. A small sandbox's state is copied each time, which is cheaper than having every sandbox in
// memory twice.
type scratch struct {
	state  *protocol.State     // only the commit in progress uses it
	differ map[string]struct{} // execs that may differ from the fold; guarded by the journal's lock
}

// reuseScratch is the number of execs at which a scratch is reused.
const reuseScratch = 256

// takeScratchLocked returns a copy of the fold for a commit.
func (j *Journal) takeScratchLocked() *protocol.State {
	if len(j.state.Execs) < reuseScratch {
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

// returnScratch records which execs the decisions changed in the state that they were tried on.
func (j *Journal) returnScratch(tried *protocol.State, events []protocol.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.scratch == nil {
		return
	}
	if j.scratch.state != tried {
		j.scratch = nil // a decision corrupted the scratch
		return
	}
	j.scratch.changed(events)
}

// changed adds the execs of these events to the execs that may differ from the fold.
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

// trimmed adds the execs that the fold is about to drop to the execs that may differ from the fold.
func (s *scratch) trimmed(state *protocol.State, keep int) {
	if s == nil {
		return
	}
	for i := range max(len(state.Ended)-keep, 0) {
		s.differ[state.Ended[i]] = struct{}{}
	}
}
