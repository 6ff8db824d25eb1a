package coordinator

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/coordinator/execindex"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// keptExecs is how many ended execs of a sandbox stay in memory. Older execs are read from the log on request.
const keptExecs = 128

// key identifies a sandbox.
type key = protocol.SandboxKey

// projection folds the whole event log. It follows the log; the batches that this coordinator appends itself are folded
// at once, by the journals. Each fold updates three parts:
//
//   - read, the read model: the data that reads are answered from
//   - work, the working state: the data that the scheduler and the watchdog work on
//   - unsaved, the snapshot backlog: the changes that the leader still has to store
//
// One lock guards the parts, because one batch changes all of them. A journal calls the projection while it holds its
// own lock, so the projection never calls a journal while it holds mu.
type projection struct {
	conn   *jetstream.Conn
	log    *slog.Logger
	writer string
	fresh  time.Duration                      // time limit of the refresh before a read
	route  func(hostID, worker string) string // returns the worker that has the host now

	nextDeadline func(b *protocol.Sandbox) time.Time // when the watchdog must inspect a sandbox; zero: never

	mu       sync.RWMutex
	read     *readModel
	work     *workingState
	unsaved  *snapshotBacklog
	journals map[key]*jetstream.Journal // journals of living sandboxes, and of sandboxes that the backlog retains
	followed jetstream.Position         // position up to which the log was followed since the last restore
	restored int                        // how often the projection was restored
	settled  bool                       // the last restore is complete
	current  bool                       // the log has been followed to its end since the last restore
	reached  uint64                     // each batch of the log up to this record is folded

	schedulerDue atomic.Bool      // a folded batch concerns the scheduler, which has not been woken yet
	execs        *execindex.Index // has its own lock
	refreshes    refreshes        // has its own lock
}

func newProjection(conn *jetstream.Conn, log *slog.Logger, writer string, fresh time.Duration) *projection {
	p := &projection{
		conn: conn, log: log, writer: writer, fresh: fresh, journals: map[key]*jetstream.Journal{},
		route:        func(_, worker string) string { return worker },
		nextDeadline: func(*protocol.Sandbox) time.Time { return time.Time{} },
		execs:        execindex.New(conn, log),
	}
	p.read = newReadModel(&p.mu)
	p.work = newWorkingState(&p.mu, p.read.sandboxes)
	p.unsaved = newSnapshotBacklog(&p.mu)
	return p
}

// journal returns the journal of a sandbox. It creates the journal if memory has none.
func (p *projection) journal(k key) *jetstream.Journal {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.journals[k]
	if j == nil {
		j = p.conn.Journal(jetstream.JournalConfig{
			Tenant: k.Tenant, Sandbox: k.ID, Writer: p.writer, KeepEnded: keptExecs,
			OnApply: p.applied, OnAppended: p.appended,
			OnReset: func() { p.drop(k) },
			OnOpen:  func(s *protocol.State, record uint64) { p.opened(k, s, record) },
		})
		p.journals[k] = j
	}
	return j
}

// applied updates the parts after a batch. The journal calls applied while it holds its lock, so applied sends no
// notifications. The methods appended and observe send them afterwards.
func (p *projection) applied(s *protocol.State, b *protocol.Batch) {
	handle := s.Sandbox
	k := key{Tenant: b.Tenant, ID: b.Sandbox}
	p.execs.Applied(k, s, b) // before the read model retires a deleted sandbox
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work.tenants.landClaimsLocked(k, b.Events)
	if p.putLocked(k, &handle, b.Record) {
		p.schedulerDue.Store(true)
	}
}

// opened updates the parts after a journal was read from its beginning or from a snapshot.
func (p *projection) opened(k key, s *protocol.State, record uint64) {
	if !s.Exists() {
		return
	}
	handle := s.Sandbox
	p.execs.Restored(k, s)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work.tenants.landClaimsInLocked(k, s)
	p.putLocked(k, &handle, record)
}

// appended notifies the parties that a batch of this coordinator concerns: the sandbox's worker, the worker that had
// the sandbox before, and the scheduler.
func (p *projection) appended(a jetstream.Appended) {
	if a.After.Worker != "" {
		p.notifyWorker(p.route(a.After.HostID, a.After.Worker), a.Batch)
	}
	if a.Before.HostID != "" && a.Before.HostID != a.After.HostID {
		p.notifyWorker(p.route(a.Before.HostID, a.Before.Worker), a.Batch)
	}
	p.wakeSchedulerIfDue()
}

// notifyWorker sends a worker a batch of one of its sandboxes. If the notification is lost, the leader notifies the
// worker again, see notify.go.
func (p *projection) notifyWorker(worker string, b *protocol.Batch) {
	if err := p.conn.Notify(worker, b); err != nil {
		p.log.Warn("could not notify a worker; it will be notified again",
			"worker", worker, "sandbox", b.Sandbox, "error", err)
	}
}

// wakeSchedulerIfDue wakes the scheduler if a batch that was folded since the last call concerns the scheduler.
func (p *projection) wakeSchedulerIfDue() {
	if p.schedulerDue.Swap(false) {
		p.work.schedulerWake.Wake()
	}
}

// putLocked stores a sandbox's new handle in the three parts. It reports whether the change concerns the scheduler.
func (p *projection) putLocked(k key, b *protocol.Sandbox, record uint64) (concerns bool) {
	p.unsaved.addLocked(k)
	if b.State == protocol.StateDeleted {
		concerns = p.work.usesHostLocked(k)
		p.retireLocked(k, deletedEntryOf(b, record))
		return concerns
	}
	before := p.read.putLocked(k, b)
	concerns = p.work.moveLocked(k, before, b)
	p.work.setDeadlineLocked(k, p.nextDeadline(b))
	return concerns
}

// retireLocked reduces a deleted sandbox to its entry in the read model.
func (p *projection) retireLocked(k key, d deletedEntry) {
	before, newest := p.read.retireLocked(k, d)
	if !newest {
		return
	}
	p.work.removeLocked(k, before)
	if !p.unsaved.active { // if active, the execs are forgotten once the sandbox's last snapshot is stored
		p.execs.Forget(k)
	}
	if !p.unsaved.retainLocked(k, p.read.deleted[k].saved) {
		delete(p.journals, k)
	}
}

// drop removes a sandbox's handle until its history is folded again. The ids of its execs stay used.
func (p *projection) drop(k key) {
	p.execs.Reset(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work.removeLocked(k, p.read.dropLocked(k))
}

// forgetDeleted removes a deleted sandbox that was purged.
func (p *projection) forgetDeleted(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read.forgetDeletedLocked(k)
	p.unsaved.removeLocked(k)
	delete(p.journals, k)
	p.execs.Forget(k)
}

// forgetJournal drops the journal of a sandbox that is not living.
func (p *projection) forgetJournal(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read.sandboxes[k] == nil && !p.unsaved.retainsLocked(k) {
		delete(p.journals, k)
	}
}

// restore loads the snapshots and returns the record from which to follow the log, or 0 and an error. A later call, for
// example after the log was rewound, also compares memory with the log. The events that the snapshots cover are not
// followed again. The index of execs covers at least these events, because it is stored before the snapshots.
func (p *projection) restore(ctx context.Context) (from uint64, err error) {
	p.mu.Lock()
	p.followed = jetstream.Position{}
	p.restored++
	p.settled, p.current = false, false
	unread := slices.Collect(maps.Keys(p.journals))
	p.read.clearDeletedLocked() // deleted sandboxes are read again or followed
	p.mu.Unlock()
	from, err = p.conn.ReadSnapshots(ctx, func(tenant, sandbox string, s *jetstream.Snapshot) {
		k := key{Tenant: tenant, ID: sandbox}
		if s == nil {
			unread = append(unread, k)
			return
		}
		if s.State.Sandbox.State == protocol.StateDeleted { // stored by an older version of Boxfleet
			p.mu.Lock()
			defer p.mu.Unlock()
			p.retireLocked(k, deletedEntryOf(&s.State.Sandbox, s.Record))
			return
		}
		j := p.journal(k)
		j.Restore(s)
		j.View(func(s *protocol.State, record uint64) { p.opened(k, s, record) })
	})
	if err == nil {
		err = p.readHistories(ctx, unread)
	}
	p.wakeSchedulerIfDue()
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled, p.reached = true, from-1
	return from, nil
}

// historiesAtOnce is how many histories are read concurrently.
const historiesAtOnce = 16

// readHistories refreshes the journals of the given sandboxes.
func (p *projection) readHistories(ctx context.Context, keys []key) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(historiesAtOnce)
	for _, k := range keys {
		group.Go(func() error {
			j := p.journal(k)
			err := j.Refresh(ctx)
			if p.read.get(k) == nil {
				p.forgetJournal(k) // the sandbox is deleted, or its history is gone
			}
			if err != nil && !unavailable(err) { // one unreadable history must not stop the others from being read
				p.log.Error("could not read the history of a sandbox", "sandbox", k.ID, "error", err)
				return nil
			}
			return err
		})
	}
	return group.Wait()
}

// follow keeps the projection current. It advances *from, so that it can be called again after an error. If the log no
// longer has the messages that were followed, it sets *from to 0; then the projection must be restored.
func (p *projection) follow(ctx context.Context, from *uint64, caughtUp func()) error {
	err := p.conn.FollowEvents(ctx, *from, func(b *protocol.Batch) {
		p.observe(ctx, b)
		*from = b.Record + 1
		p.mu.Lock()
		p.followed, p.reached = jetstream.Position{Record: b.Record, Batch: b.ID}, b.Record
		p.mu.Unlock()
	}, func() {
		p.execs.LogFollowed()
		p.mu.Lock()
		p.current = true
		p.mu.Unlock()
		caughtUp()
	})
	if jetstream.IsRewound(err) {
		*from = 0
	}
	return err
}

// observe folds a batch that the log delivered, and wakes the scheduler if the batch concerns it.
func (p *projection) observe(ctx context.Context, b *protocol.Batch) {
	defer p.wakeSchedulerIfDue()
	k := key{Tenant: b.Tenant, ID: b.Sandbox}
	living, ended := p.read.endedAt(k)
	if b.Record <= ended {
		return // already folded: the batch is not after the last batch of the deleted sandbox
	}
	if !living && b.First() > 1 && b.Events[len(b.Events)-1].Kind == protocol.SandboxDeleted {
		return // a tombstone: reads of the sandbox go to the log
	}
	j := p.journal(k)
	if !j.Receive(b) {
		j.Fresh()
	} else if err := j.Refresh(ctx); err != nil {
		p.log.Warn("could not read the missing batches of a history; trying again later", "sandbox", k.ID, "error", err)
	}
	if !living && p.read.get(k) == nil {
		p.forgetJournal(k)
	}
}

// find returns the journal of an existing sandbox, from memory or from the log. The state of the journal has at least
// the sequence min. find returns not_found if there is no such sandbox.
func (p *projection) find(ctx context.Context, k key, min uint64) (*jetstream.Journal, error) {
	b := p.read.get(k)
	if b != nil && b.Sequence >= min {
		return p.journal(k), nil
	}
	if b != nil {
		j := p.journal(k)
		return j, j.Refresh(ctx)
	}
	j, err := p.openDeleted(ctx, k)
	if err != nil {
		return j, err
	}
	living := false
	j.View(func(s *protocol.State, _ uint64) {
		living = s.Exists() && s.Sandbox.State != protocol.StateDeleted
		if !s.Exists() {
			err = errNoSandbox()
		}
	})
	if !living || p.read.isDeleted(k) { // sandboxes that do not exist, or are purged or deleted, take no memory
		return j, err
	}
	j = p.journal(k) // the sandbox is new, and the log has not been followed this far yet
	return j, j.Refresh(ctx)
}

// findFresh is like find, but also refreshes the journal from the log. If the log does not answer, the journal keeps
// the state in memory.
func (p *projection) findFresh(ctx context.Context, k key, min uint64) (*jetstream.Journal, error) {
	living := p.read.get(k) != nil
	j, err := p.find(ctx, k, min)
	if err != nil || !living { // find has just read the journal from the log
		return j, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.fresh)
	defer cancel()
	if err := p.refreshes.refresh(ctx, k, j, p.fresh); err != nil {
		p.log.Warn("the log does not answer; a read is answered from memory", "sandbox", k.ID, "error", err)
	}
	return j, nil
}

// openDeleted opens the journal of a sandbox that is not living, and keeps nothing in memory. It folds the history from
// the sandbox's last snapshot and the later part of the log, or from the log alone.
func (p *projection) openDeleted(ctx context.Context, k key) (*jetstream.Journal, error) {
	p.mu.RLock()
	j := p.journals[k]
	p.mu.RUnlock()
	if j == nil {
		j = p.conn.Journal(jetstream.JournalConfig{
			Tenant: k.Tenant, Sandbox: k.ID, Writer: p.writer, KeepEnded: keptExecs,
		})
		s, err := p.conn.Snapshot(ctx, k.Tenant, k.ID)
		switch {
		case err == nil && s.Usable():
			j.Restore(s)
		case err != nil && protocol.CodeOf(err) != protocol.NotFound:
			return nil, err
		}
	}
	return j, j.Refresh(ctx)
}

// judge tells readers of a history which of its messages are refused.
func (p *projection) judge(ctx context.Context, tenant, sandbox string, record uint64) (*jetstream.Judged, error) {
	k := key{Tenant: tenant, ID: sandbox}
	p.mu.RLock()
	j := p.journals[k]
	p.mu.RUnlock()
	if j != nil {
		if judged := j.Judged(); judged.At >= record {
			return judged, nil
		}
		err := j.Refresh(ctx)
		return j.Judged(), err
	}
	j, err := p.openDeleted(ctx, k)
	if err != nil {
		return nil, err
	}
	return j.Judged(), nil
}

// reachedRecord returns the record up to which each batch of the log is folded. settled is false while a restore is
// incomplete; then the record means nothing.
func (p *projection) reachedRecord() (record uint64, settled bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.reached, p.settled
}

// isCurrent reports whether the log has been followed to its end since the last restore. Until then, sums over the
// sandboxes may be too small.
func (p *projection) isCurrent() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.current
}

// generation returns how often the projection was restored. settled is false while a restore is incomplete.
func (p *projection) generation() (restored int, settled bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.restored, p.settled
}
