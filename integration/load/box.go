package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/progress"
)

// box is one sandbox on a simulated host. It does one operation after another until the host is in the state that the
// log asks for. The host has no engine: a timer stands for the time that each operation takes.
type box struct {
	host    *host
	key     key
	journal *jetstream.Journal
	round   atomic.Int64 // notification round of the last notification; see park.mark

	mu    sync.Mutex
	stale bool // the log may have events that the journal lacks
	busy  bool
	again bool // news arrived while the sandbox was busy
	runs  map[string]bool
}

func newBox(h *host, k key) *box {
	b := &box{host: h, key: k, stale: true, runs: map[string]bool{}}
	b.round.Store(-1)
	b.journal = h.conn.Journal(jetstream.JournalConfig{Tenant: k.tenant, Sandbox: k.id, Writer: h.name, Token: h.token,
		KeepEnded: 1})
	return b
}

// told handles a notification to this sandbox's host.
func (b *box) told(ctx context.Context, batch *protocol.Batch) {
	b.round.Store(b.host.park.round.Load())
	gap := batch == nil || b.journal.Receive(batch)
	b.wake(ctx, gap)
}

// look makes the box read the history of its sandbox again.
func (b *box) look(ctx context.Context) { b.wake(ctx, true) }

func (b *box) wake(ctx context.Context, stale bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = b.stale || stale
	if b.busy {
		b.again = true
		return
	}
	b.busy = true
	go b.run(ctx)
}

func (b *box) run(ctx context.Context) {
	pause := retryFirst
	for {
		err := b.settle(ctx)
		if ctx.Err() == nil && err != nil && !errors.Is(err, errSuperseded) {
			b.host.park.log.Warn("retrying a failed operation", "worker", b.host.name, "sandbox", b.key.id,
				"error", err)
			if sleep(ctx, pause) {
				pause = min(2*pause, retryMost)
				continue
			}
		}
		pause = retryFirst
		b.mu.Lock()
		if !b.again || ctx.Err() != nil {
			b.busy, b.again = false, false
			b.mu.Unlock()
			return
		}
		b.again = false
		b.mu.Unlock()
	}
}

// here reports whether the sandbox is assigned to this host and has not ended.
func (b *box) here() bool {
	here := false
	b.journal.View(func(st *protocol.State, _ uint64) {
		s := &st.Sandbox
		here = s.HostID == b.host.id && s.State != protocol.StateDeleted && s.State != protocol.StateFailed
	})
	return here
}

// errSuperseded means that the log has changed since the decision.
var errSuperseded = errors.New("superseded")

func (b *box) refresh(ctx context.Context) error {
	b.mu.Lock()
	stale := b.stale
	b.stale = false
	b.mu.Unlock()
	if !stale {
		return nil
	}
	b.host.park.reading <- struct{}{}
	err := b.journal.Refresh(ctx)
	<-b.host.park.reading
	if err != nil {
		b.mu.Lock()
		b.stale = true
		b.mu.Unlock()
	}
	return err
}

// settle brings the host to the state that the log asks for.
func (b *box) settle(ctx context.Context) error {
	if err := b.refresh(ctx); err != nil {
		return err
	}
	var s protocol.Sandbox
	var active []*protocol.Exec
	b.journal.View(func(st *protocol.State, _ uint64) {
		s = st.Sandbox
		if s.ActiveExecs > 0 {
			active = st.Active()
		}
	})
	if s.HostID != b.host.id {
		b.host.forget(b.key)
		return nil
	}
	if err := b.host.fence(); err != nil {
		return err
	}
	switch s.State {
	case protocol.StatePending:
		if s.Assigned {
			return b.create(ctx, &s)
		}
	case protocol.StateReady:
		if s.Desired != protocol.StateReady {
			return b.append(ctx, &s, func(st *protocol.State) []protocol.Event {
				return append(endAll(st), protocol.Event{Kind: protocol.SandboxStopped})
			})
		}
		for _, x := range active {
			b.start(ctx, x)
		}
	case protocol.StateDeleting:
		return b.append(ctx, &s, func(st *protocol.State) []protocol.Event {
			if st.Sandbox.State != protocol.StateDeleting {
				return nil
			}
			return append(endAll(st), protocol.Event{Kind: protocol.SandboxDeleted})
		})
	case protocol.StateDeleted:
		b.host.forget(b.key)
	}
	return nil
}

// phases are the phases of a create, each with its share of the total time.
var phases = []struct {
	name string
	part float64
}{{"image", 0.02}, {"network", 0.2}, {"container", 0.28}, {"start", 0.5}}

func (b *box) create(ctx context.Context, s *protocol.Sandbox) error {
	told := progress.Begin(s.Phase)
	lasting, stop := context.WithCancel(ctx)
	defer stop()
	// Run reports the phases while the create lasts. An error of such a report is ignored: a later append includes the
	// phases.
	go told.Run(lasting, func() { _ = b.afterPhases(ctx, s, told) })
	for _, p := range phases {
		told.Enter(p.name, b.host.conn.Now().UTC())
		if !sleep(ctx, time.Duration(float64(b.host.park.role.Create)*p.part)) {
			return ctx.Err()
		}
	}
	return b.afterPhases(ctx, s, told, protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{
		Image: "sha256:" + strings.Repeat("0", 64), Isolation: "runc", Container: strings.Repeat("0",
			64), Subnet: "10.201.0.0/28", Boot: newID(),
	}})
}

// afterPhases appends the given events. If the log lacks phases of the create, it first appends these phases, as
// package worker does.
func (b *box) afterPhases(
	ctx context.Context, s *protocol.Sandbox, told *progress.Phases, events ...protocol.Event,
) error {
	return told.Append(func(untold []protocol.Event) error {
		return b.append(ctx, s, func(st *protocol.State) []protocol.Event {
			if st.Sandbox.State != protocol.StatePending {
				return nil
			}
			return append(progress.Missing(untold, st.Sandbox.Phase), events...)
		})
	})
}

func endAll(st *protocol.State) []protocol.Event {
	var events []protocol.Event
	for _, x := range st.Active() {
		events = append(events, protocol.Event{Kind: protocol.ExecCancelled, Reason: protocol.ReasonSandboxStopped,
			Exec: &protocol.ExecDetails{ID: x.ID, Inline: true}})
	}
	return events
}

// start runs an exec unless the exec is already running.
func (b *box) start(ctx context.Context, x *protocol.Exec) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.runs[x.ID] {
		return
	}
	b.runs[x.ID] = true
	go func() {
		if err := b.exec(ctx, x.ID); err != nil && ctx.Err() == nil {
			b.host.park.log.Warn("could not append the start or the end of an exec", "worker", b.host.name, "sandbox", b.key.id,
				"error",
				err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.runs, x.ID)
	}()
}

func (b *box) exec(ctx context.Context, id string) error {
	s, _ := b.journal.State()
	about := func(state protocol.ExecState, e protocol.Event) func(*protocol.State) []protocol.Event {
		return func(st *protocol.State) []protocol.Event {
			if x := st.Execs[id]; x == nil || x.State != state {
				return nil
			}
			return []protocol.Event{e}
		}
	}
	started := time.Now().UTC()
	err := b.append(ctx, &s.Sandbox, about(protocol.ExecStateAccepted, protocol.Event{Kind: protocol.ExecStarted,
		Exec: &protocol.ExecDetails{ID: id, Boot: s.Sandbox.Boot}}))
	if err != nil {
		return ignoreSuperseded(err)
	}
	exit := 0
	return ignoreSuperseded(b.append(ctx, &s.Sandbox,
		about(protocol.ExecStateRunning, protocol.Event{Kind: protocol.ExecFinished,
			Exec: &protocol.ExecDetails{ID: id, ExitCode: &exit, Started: started, Ended: time.Now().UTC(),
				Inline: true}})))
}

func ignoreSuperseded(err error) error {
	if errors.Is(err, errSuperseded) {
		return nil
	}
	return err
}

// append calls the function decide and appends the returned events, unless the sandbox is no longer assigned to this
// host in this generation.
func (b *box) append(ctx context.Context, s *protocol.Sandbox, decide func(*protocol.State) []protocol.Event) error {
	events, err := b.journal.Do(ctx, func(st *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if err := b.host.fence(); err != nil {
			return nil, err
		}
		if st.Sandbox.HostID != b.host.id || st.Sandbox.Generation != s.Generation {
			return nil, nil
		}
		return decide(st), nil
	})
	if err == nil && len(events) == 0 {
		return errSuperseded
	}
	return err
}
