package coordinator

import (
	"maps"
	"sync"

	"github.com/boxfleet/boxfleet/jetstream"
)

// snapshotBacklog is the set of sandboxes whose latest changes the leader still has to store. On a coordinator that
// does not lead, the set stays empty.
type snapshotBacklog struct {
	mu *sync.RWMutex // the projection's lock

	active   bool             // this coordinator writes the snapshots
	changed  map[key]struct{} // sandboxes that have changed since their last stored snapshot
	retained map[key]struct{} // deleted sandboxes whose journals stay in memory until their last snapshots are stored
}

func newSnapshotBacklog(mu *sync.RWMutex) *snapshotBacklog {
	return &snapshotBacklog{mu: mu, changed: map[key]struct{}{}, retained: map[key]struct{}{}}
}

// maxRetained limits how many journals of deleted sandboxes stay in memory. While as many are retained, the journal of
// a further deleted sandbox is dropped, and the leader folds that sandbox's history again to store its last snapshot.
const maxRetained = 1000

// start begins to record changes.
func (s *snapshotBacklog) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = true
}

func (s *snapshotBacklog) addLocked(k key) {
	if s.active {
		s.changed[k] = struct{}{}
	}
}

// retainLocked reports whether the journal of a deleted sandbox stays in memory until its last snapshot is stored.
func (s *snapshotBacklog) retainLocked(k key, saved bool) bool {
	if saved || !s.active || len(s.retained) >= maxRetained {
		delete(s.retained, k)
		return false
	}
	s.retained[k] = struct{}{}
	return true
}

func (s *snapshotBacklog) retainsLocked(k key) bool {
	_, retained := s.retained[k]
	return retained
}

func (s *snapshotBacklog) removeLocked(k key) {
	delete(s.changed, k)
	delete(s.retained, k)
}

// put adds sandboxes to the backlog again, because their snapshots could not be stored.
func (s *snapshotBacklog) put(keys map[key]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.changed, keys)
}

// takeUnsaved empties the backlog. It returns the sandboxes in the backlog, and the position up to which the log had
// been followed.
func (p *projection) takeUnsaved() (changed map[key]struct{}, covered jetstream.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed, p.unsaved.changed = p.unsaved.changed, map[key]struct{}{}
	return changed, p.followed
}

// addUnsavedSince adds every sandbox with a change after a record to the backlog.
func (p *projection) addUnsavedSince(record uint64) {
	p.mu.Lock()
	journals := maps.Clone(p.journals)
	for k, d := range p.read.deleted {
		if d.record > record || !d.saved {
			p.unsaved.changed[k] = struct{}{}
		}
	}
	p.mu.Unlock()
	changed := map[key]struct{}{}
	for k, j := range journals { // not earlier: a journal must not be called while p.mu is held
		if j.Position().Record > record {
			changed[k] = struct{}{}
		}
	}
	p.unsaved.put(changed)
}

// stopSaving empties the backlog when this coordinator stops leading.
func (p *projection) stopSaving() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsaved.active = false
	for k := range p.unsaved.changed {
		if _, deleted := p.read.deleted[k]; deleted {
			p.execs.Forget(k)
		}
	}
	clear(p.unsaved.changed)
	for k := range p.unsaved.retained {
		delete(p.journals, k)
	}
	clear(p.unsaved.retained)
}

// deletedSaved notes that the last snapshot of a deleted sandbox is stored.
func (p *projection) deletedSaved(k key, record uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read.savedLocked(k, record) {
		delete(p.unsaved.retained, k)
		delete(p.journals, k)
	}
}
