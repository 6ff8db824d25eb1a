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

// keptExecs is how many ended execs of a sandbox are kept in memory; older ones are read from the
// log when somebody asks.
const keptExecs = 128

// key identifies a sandbox.
type key = protocol.SandboxKey

// projection is what a coordinator knows of all sandboxes: the fold of the whole log, kept current
// by following it and by the coordinator's own appends. Of a sandbox that is over it keeps no more than that,
// see over.go. Its map of handles can be read while a journal works; journals call into it, never the other way
// round with its lock held.
type projection struct {
	conn   *jetstream.Conn
	log    *slog.Logger
	writer string
	fresh  time.Duration                      // bounds the look at the log before a read
	route  func(hostID, worker string) string // who has the host now

	look     func(b *protocol.Sandbox) time.Time // when the watchdog is to look at a sandbox; zero: never
	wake     chan struct{}                       // something changed that the scheduler may care for
	alarm    chan struct{}                       // another sandbox is the next one for the watchdog
	overRead signal                              // what is stored of those that are over was read

	mu          sync.RWMutex
	journals    map[key]*jetstream.Journal // of living sandboxes, and of those in ending
	sandboxes   map[key]*protocol.Sandbox  // living ones: copies, replaced on each change
	index       sandboxIndex               // of the living ones
	over        map[key]over               // all others whose history is kept
	livingIDs   idIndex                    // the generated ids of the living ones
	livingNames map[key]string             // who of them has a name, by tenant and name
	overIDs     idIndex                    // and of those that are over
	firstOver   int64                      // none ended before, ns since 1970; 0: not known
	tenants     map[string]string          // their names, each once
	execs       *execindex.Index           // has a lock of its own
	looks       refreshes                  // too
	followed    jetstream.Position         // how far the log was followed, since it was last begun
	restored    int                        // how often that was
	settled     bool                       // what is known of sandboxes was compared with the log since

	schedulerDue atomic.Bool // the scheduler is to be woken for batches that were folded in

	saving  bool             // this coordinator writes the snapshots
	unsaved map[key]struct{} // what changed since they were written
	ending  map[key]struct{} // sandboxes that are over, and whose journals are kept until they are stored
}

func newProjection(conn *jetstream.Conn, log *slog.Logger, writer string, fresh time.Duration) *projection {
	return &projection{
		conn: conn, log: log, writer: writer, fresh: fresh, route: func(_, worker string) string { return worker },
		look: func(*protocol.Sandbox) time.Time { return time.Time{} },
		wake: make(chan struct{}, 1), alarm: make(chan struct{}, 1), overRead: newSignal(),
		journals: map[key]*jetstream.Journal{}, sandboxes: map[key]*protocol.Sandbox{}, execs: execindex.New(conn, log),
		index: newSandboxIndex(), livingNames: map[key]string{}, over: map[key]over{}, tenants: map[string]string{},
		unsaved: map[key]struct{}{}, ending: map[key]struct{}{},
	}
}

// journal returns the journal of a sandbox, made when it is not there.
func (p *projection) journal(k key) *jetstream.Journal {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.journals[k]
	if j == nil {
		j = p.conn.Journal(jetstream.JournalConfig{
			Tenant: k.Tenant, Sandbox: k.ID, Writer: p.writer, KeepEnded: keptExecs,
			OnApply: p.applied, OnAppended: p.appended,
			OnReset: func() { p.drop(k) },
			OnOpen:  func(s *protocol.State, record uint64) { p.handle(k, s, record) },
		})
		p.journals[k] = j
	}
	return j
}

// applied takes over a sandbox's new state. The journal calls it under its lock: whoever needs to know of the
// change is notified later, by appended and observe.
func (p *projection) applied(s *protocol.State, b *protocol.Batch) {
	handle := s.Sandbox
	k := key{Tenant: b.Tenant, ID: b.Sandbox}
	p.execs.Applied(k, s, b) // before it is over
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.putLocked(k, &handle, b.Record) {
		p.schedulerDue.Store(true)
	}
}

// appended notifies others of a batch that this coordinator appended: the sandbox's worker, the worker that had
// the sandbox before, and the scheduler.
func (p *projection) appended(a jetstream.Appended) {
	if a.After.Worker != "" {
		p.notify(p.route(a.After.HostID, a.After.Worker), a.Batch)
	}
	if a.Before.HostID != "" && a.Before.HostID != a.After.HostID {
		p.notify(p.route(a.Before.HostID, a.Before.Worker), a.Batch)
	}
	p.wakeSchedulerIfDue()
}

// notify sends a worker a batch of one of its sandboxes. A worker that misses it is notified again, see telling.go.
func (p *projection) notify(worker string, b *protocol.Batch) {
	if err := p.conn.Tell(worker, b); err != nil {
		p.log.Warn("could not notify a worker; it is notified again later", "worker", worker, "sandbox", b.Sandbox, "error", err)
	}
}

// wakeSchedulerIfDue wakes the scheduler if a batch that was folded in since the last call may concern it.
func (p *projection) wakeSchedulerIfDue() {
	if p.schedulerDue.Swap(false) {
		p.wakeUp()
	}
}

// putLocked takes over a sandbox's new handle, made at a record of the log. It reports whether that is something
// for the scheduler. p.mu is held for writing.
func (p *projection) putLocked(k key, b *protocol.Sandbox, record uint64) (matters bool) {
	if p.saving {
		p.unsaved[k] = struct{}{}
	}
	if b.State == protocol.StateDeleted {
		matters = p.index.places[k].used.n > 0
		p.retireLocked(k, overOf(b, record))
		return matters
	}
	p.notOverLocked(k)
	if p.sandboxes[k] == nil {
		p.livingIDs.add(k)
	}
	matters = p.index.move(k, p.sandboxes[k], b)
	p.renameLocked(k, p.sandboxes[k], b)
	p.sandboxes[k] = b
	p.setWakeLocked(k, p.look(b))
	return matters
}

func (p *projection) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// restore loads the snapshots and returns the record to follow the log from, 0 with an error; then it can
// be called again, as after the log was rewound: what is known of sandboxes is compared with it then. The ids
// of execs are read after the snapshots: they are written before, so that they go at least as far as those do.
// What lies between is never followed.
func (p *projection) restore(ctx context.Context) (from uint64, err error) {
	p.mu.Lock()
	p.followed = jetstream.Position{}
	p.restored++
	p.settled = false
	read := slices.Collect(maps.Keys(p.journals))
	clear(p.over) // they are read again, or followed
	p.overIDs = idIndex{}
	p.mu.Unlock()
	from, err = p.conn.ReadSnapshots(ctx, func(tenant, sandbox string, s *jetstream.Snapshot) {
		k := key{Tenant: tenant, ID: sandbox}
		if s == nil {
			read = append(read, k)
			return
		}
		if s.State.Sandbox.State == protocol.StateDeleted { // as an earlier version stored it
			p.mu.Lock()
			defer p.mu.Unlock()
			p.retireLocked(k, overOf(&s.State.Sandbox, s.Record))
			return
		}
		j := p.journal(k)
		j.Restore(s)
		j.View(func(s *protocol.State, record uint64) { p.handle(k, s, record) })
	})
	if err == nil {
		err = p.readHistories(ctx, read)
	}
	p.wakeSchedulerIfDue()
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled = true
	return from, nil
}

// handle takes over a sandbox's state of which no batches are read, or not the last.
func (p *projection) handle(k key, s *protocol.State, record uint64) {
	if !s.Exists() {
		return
	}
	handle := s.Sandbox
	p.execs.Restored(k, s)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(k, &handle, record)
}

// historiesAtOnce is how many histories are read at a time.
const historiesAtOnce = 16

// readHistories folds histories, each by itself.
func (p *projection) readHistories(ctx context.Context, keys []key) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(historiesAtOnce)
	for _, k := range keys {
		group.Go(func() error {
			j := p.journal(k)
			err := j.Refresh(ctx)
			if p.get(k) == nil {
				p.forget(k) // nothing is left of it, or it is over
			}
			if err != nil && !away(err) { // it is lost, and holds nobody else up
				p.log.Error("a history cannot be read", "sandbox", k.ID, "error", err)
				return nil
			}
			return err
		})
	}
	return group.Wait()
}

// follow keeps the projection current. from moves on, so that it can be called again; it is 0 where the
// log no longer has what was followed, and the projection is to be restored again.
func (p *projection) follow(ctx context.Context, from *uint64, caughtUp func()) error {
	err := p.conn.FollowEvents(ctx, *from, func(b *protocol.Batch) {
		p.observe(ctx, b)
		*from = b.Record + 1
		p.mu.Lock()
		p.followed = jetstream.Position{Record: b.Record, Batch: b.ID}
		p.mu.Unlock()
	}, func() {
		p.execs.LogFollowed()
		caughtUp()
	})
	if jetstream.IsRewound(err) {
		*from = 0
	}
	return err
}

func (p *projection) observe(ctx context.Context, b *protocol.Batch) {
	defer p.wakeSchedulerIfDue()
	k := key{Tenant: b.Tenant, ID: b.Sandbox}
	p.mu.RLock()
	o, over := p.over[k]
	living := p.sandboxes[k] != nil
	p.mu.RUnlock()
	if over && b.Record <= o.record {
		return // it is known how it ended
	}
	if !living && b.First() > 1 && b.Events[len(b.Events)-1].Kind == protocol.SandboxDeleted {
		return // a tombstone: a read of it goes to the log
	}
	j := p.journal(k)
	if !j.Observe(b) {
		j.Fresh()
	} else if err := j.Refresh(ctx); err != nil {
		p.log.Warn("a gap in a history is not read, and will be later", "sandbox", k.ID, "error", err)
	}
	if !living && p.get(k) == nil {
		p.forget(k)
	}
}

// get returns the handle of a living sandbox, nil for any other.
func (p *projection) get(k key) *protocol.Sandbox {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.sandboxes[k]
}

// find returns the journal of a sandbox that exists, whose state has at least the sequence min: in
// memory, or read from the log. Error: not_found.
func (p *projection) find(ctx context.Context, k key, min uint64) (*jetstream.Journal, error) {
	b := p.get(k)
	if b != nil && b.Sequence >= min {
		return p.journal(k), nil
	}
	if b != nil {
		j := p.journal(k)
		return j, j.Refresh(ctx)
	}
	j, err := p.openOver(ctx, k)
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
	if !living || p.isOver(k) { // ids that somebody guessed, purged ones, and those that are over take no memory
		return j, err
	}
	j = p.journal(k) // it is new, and the log was not followed so far yet
	return j, j.Refresh(ctx)
}

// findFresh is find, with everything that is in the log now. When the log does not answer, memory does.
func (p *projection) findFresh(ctx context.Context, k key, min uint64) (*jetstream.Journal, error) {
	living := p.get(k) != nil
	j, err := p.find(ctx, k, min)
	if err != nil || !living { // what is not in memory was just read
		return j, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.fresh)
	defer cancel()
	if err := p.looks.refresh(ctx, k, j, p.fresh); err != nil {
		p.log.Warn("a read is answered from memory", "sandbox", k.ID, "error", err)
	}
	return j, nil
}

// living returns the handles of a tenant's living sandboxes.
func (p *projection) living(tenant string) (list []*protocol.Sandbox) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for k, b := range p.sandboxes {
		if k.Tenant == tenant {
			list = append(list, b)
		}
	}
	return list
}

// drop takes a sandbox's handle away, until its history is folded again. The ids of its execs stay.
func (p *projection) drop(k key) {
	p.execs.Reset(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.move(k, p.sandboxes[k], nil)
	p.renameLocked(k, p.sandboxes[k], nil)
	p.index.wakes.drop(k)
	delete(p.sandboxes, k)
	p.livingIDs.remove(k)
	p.notOverLocked(k)
}

// notOverLocked takes away that a sandbox is over. p.mu is held for writing.
func (p *projection) notOverLocked(k key) {
	if _, over := p.over[k]; over {
		delete(p.over, k)
		p.overIDs.remove(k)
	}
}

// forget drops the journal of a sandbox that is not living.
func (p *projection) forget(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ending := p.ending[k]; p.sandboxes[k] == nil && !ending {
		delete(p.journals, k)
	}
}

// followedTo is the record up to which the log was followed.
func (p *projection) followedTo() uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.followed.Record
}
