package coordinator

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// keptExecs is how many ended execs of a sandbox are kept in memory; older ones are read from the
// log when somebody asks.
const keptExecs = 128

// key names a sandbox.
type key struct{ tenant, id string }

// projection is what a coordinator knows of all sandboxes: the fold of the whole log, kept current
// by following it and by the coordinator's own appends. Its map of handles can be read while a
// journal works; journals call into it, never the other way round with its lock held.
type projection struct {
	conn   *jetstream.Conn
	log    *slog.Logger
	writer string
	fresh  time.Duration                      // bounds the look at the log before a read
	route  func(hostID, worker string) string // who has the host now

	mu        sync.RWMutex
	journals  map[key]*jetstream.Journal
	sandboxes map[key]*protocol.Sandbox // copies, replaced on each change
	execIDs   map[key]*execIDs
	followed  jetstream.Position // how far the log was followed, since it was last begun
	restored  int                // how often that was
	wake      chan struct{}      // something changed that the scheduler may care for
}

func newProjection(conn *jetstream.Conn, log *slog.Logger, writer string, fresh time.Duration) *projection {
	return &projection{
		conn: conn, log: log, writer: writer, fresh: fresh, route: func(_, worker string) string { return worker }, wake: make(chan struct{}, 1),
		journals: map[key]*jetstream.Journal{}, sandboxes: map[key]*protocol.Sandbox{}, execIDs: map[key]*execIDs{},
	}
}

// journal returns the journal of a sandbox, made when it is not there.
func (p *projection) journal(k key) *jetstream.Journal {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.journals[k]
	if j == nil {
		j = p.conn.Journal(jetstream.JournalConfig{
			Tenant: k.tenant, Sandbox: k.id, Writer: p.writer, KeepEnded: keptExecs, OnApply: p.applied,
			OnReset: func() { p.drop(k) },
		})
		p.journals[k] = j
	}
	return j
}

// applied takes over a sandbox's new state, and tells its worker what this coordinator decided.
func (p *projection) applied(s *protocol.State, b *protocol.Batch) {
	handle := s.Sandbox
	k := key{b.Tenant, b.Sandbox}
	p.mu.Lock()
	p.sandboxes[k] = &handle
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == protocol.ExecAccepted && e.Exec != nil {
			p.useExec(k, e.Exec.ID)
		}
	}
	p.mu.Unlock()
	if b.Writer == p.writer && handle.Worker != "" {
		worker := p.route(handle.HostID, handle.Worker)
		if err := p.conn.Tell(worker, b); err != nil {
			p.log.Warn("a worker is not told, and will be later", "worker", worker, "sandbox", b.Sandbox, "error", err)
		}
	}
	for i := range b.Events {
		switch b.Events[i].Kind {
		case protocol.ExecAccepted, protocol.ExecStarted, protocol.ExecFinished:
		default:
			p.wakeUp()
			return
		}
	}
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
	read := slices.Collect(maps.Keys(p.journals))
	p.mu.Unlock()
	from, err = p.conn.ReadSnapshots(ctx, func(tenant, sandbox string, s *jetstream.Snapshot) {
		k := key{tenant, sandbox}
		if s == nil {
			read = append(read, k)
			return
		}
		j := p.journal(k)
		j.Restore(s)
		j.View(func(s *protocol.State, _ uint64) {
			handle := s.Sandbox
			p.mu.Lock()
			defer p.mu.Unlock()
			p.sandboxes[k] = &handle
		})
	})
	if err == nil {
		err = p.restoreExecIDs(ctx)
	}
	if err == nil {
		err = p.readHistories(ctx, read)
	}
	if err != nil {
		return 0, err
	}
	return from, nil
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
				p.forget(k, nil) // nothing is left of it
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
	}, caughtUp)
	if jetstream.IsRewound(err) {
		*from = 0
	}
	return err
}

func (p *projection) observe(ctx context.Context, b *protocol.Batch) {
	k := key{b.Tenant, b.Sandbox}
	if p.get(k) == nil && b.First() > 1 && b.Events[len(b.Events)-1].Kind == protocol.SandboxDeleted {
		return // a tombstone; who asks for it reads the log
	}
	j := p.journal(k)
	if !j.Observe(b) {
		j.Fresh()
		return
	}
	if err := j.Refresh(ctx); err != nil {
		p.log.Warn("a gap in a history is not read, and will be later", "sandbox", k.id, "error", err)
	}
}

// get returns the handle of a sandbox that is in memory, nil when it is not.
func (p *projection) get(k key) *protocol.Sandbox {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.sandboxes[k]
}

// find returns the journal of a sandbox that exists, whose state has at least the sequence min: in
// memory, or read from the log. Error: not_found.
func (p *projection) find(ctx context.Context, k key, min uint64) (*jetstream.Journal, error) {
	if b := p.get(k); b != nil && b.Sequence >= min {
		return p.journal(k), nil
	}
	known := p.get(k) != nil
	j := p.journal(k)
	err := j.Refresh(ctx)
	if err == nil && p.get(k) == nil {
		j.View(func(s *protocol.State, _ uint64) {
			if !s.Exists() {
				err = errNoSandbox()
			}
		})
	}
	if !known && p.get(k) == nil {
		p.forget(k, nil) // ids that somebody guessed, and purged ones, take no memory
	}
	return j, err
}

// findFresh is find, with everything that is in the log now. When the log does not answer, memory does.
func (p *projection) findFresh(ctx context.Context, k key, min uint64) (*jetstream.Journal, error) {
	j, err := p.find(ctx, k, min)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.fresh)
	defer cancel()
	if err := j.Refresh(ctx); err != nil {
		p.log.Warn("a read is answered from memory", "sandbox", k.id, "error", err)
	}
	return j, nil
}

// all returns every handle in memory.
func (p *projection) all() []*protocol.Sandbox {
	p.mu.RLock()
	defer p.mu.RUnlock()
	list := make([]*protocol.Sandbox, 0, len(p.sandboxes))
	for _, b := range p.sandboxes {
		list = append(list, b)
	}
	return list
}

// drop takes a sandbox's handle away, until its history is folded again. The ids of its execs stay.
func (p *projection) drop(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sandboxes, k)
}

// forget drops a sandbox from memory, if its handle is still the one given. Where there is none, because
// it has no history, any ids of execs stay: that may be because its history was lost.
func (p *projection) forget(k key, handle *protocol.Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sandboxes[k] == handle {
		delete(p.sandboxes, k)
		delete(p.journals, k)
		if handle != nil {
			delete(p.execIDs, k)
		}
	}
}
