package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

// Sandbox is one sandbox on this host: a goroutine that compares the log with the host, and does one operation after
// another until they agree. Its execs and services have goroutines of their own.
type Sandbox struct {
	host     *Host
	key      protocol.SandboxKey
	journal  *jetstream.Journal
	log      *slog.Logger
	wake     wake.Signal
	execs    *execs
	services *services
	conn     *connection
	networks networks
	phases   *createPhases
	diskStop *diskStop

	mu        sync.Mutex
	stale     bool      // the log may have events that the journal has not read
	listened  uint64    // Host.Listening when the log was read last
	readAgain time.Time // when to read the log again, even without a notification
	dirty     bool      // the host may have changed since the last inspection
	ended     bool      // the goroutine has ended
	network   bool      // the engine listed a network of the sandbox since its networks were last removed
	busy      bool      // the engine is working on a request, and its answer must be awaited
	operation decide.Operation
	cancel    context.CancelFunc // ends the operation
	home      string             // directory that the container's label names; "": there is no container
	objects   []Object           // on the engine, when they were last listed

	// Used by the goroutine only.
	local        *local
	revivals     revivals
	assigned     assignment
	waitingSince time.Time // since when the container waits for a host's port or mount source; zero: it does not
}

// New returns a sandbox whose goroutine does not run yet.
func New(host *Host, k protocol.SandboxKey, log *slog.Logger) *Sandbox {
	s := &Sandbox{
		host: host, key: k, log: log.With("sandbox", k.ID), wake: wake.New(), stale: true, dirty: true,
	}
	s.conn, s.networks, s.phases, s.diskStop = newConnection(s), networks{s}, &createPhases{s: s}, &diskStop{s: s}
	s.execs = &execs{s: s, runs: map[string]*execRun{}}
	s.services = newServices(s)
	s.local = &local{s: s, epoch: -1}
	if host.Conn != nil {
		s.journal = host.Conn.Journal(jetstream.JournalConfig{
			Tenant: k.Tenant, Sandbox: k.ID, Writer: host.Worker, Token: host.Token, KeepEnded: 1, FromSnapshot: true,
		})
	}
	return s
}

// Notify takes news of the sandbox: the newest batch of its history, or nil. It returns false if the goroutine has
// ended: the caller must then start a new one.
func (s *Sandbox) Notify(b *protocol.Batch) bool {
	gap := b == nil || s.journal.Receive(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.stale = s.stale || gap
	s.cancelSuperseded()
	s.wake.Wake()
	return true
}

// Inspect makes the sandbox and its services inspect the host again. The services must do so too, because the sandbox
// may be waiting for them. It returns false if the goroutine has ended.
func (s *Sandbox) Inspect() bool {
	s.mu.Lock()
	s.dirty = true
	ended := s.ended
	s.mu.Unlock()
	s.wake.Wake()
	for _, v := range s.services.all() {
		v.Inspect()
	}
	return !ended
}

// Found stores the list of the sandbox's objects on the engine, and makes the sandbox inspect the host again. It
// returns false if the goroutine has ended.
func (s *Sandbox) Found(objects []Object) bool {
	s.mu.Lock()
	s.objects = objects
	s.refreshIfDue(time.Now())
	s.network = s.network || slices.ContainsFunc(objects, func(o Object) bool { return o.Network })
	s.mu.Unlock()
	return s.Inspect()
}

// Ended reports whether the goroutine has ended.
func (s *Sandbox) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Pids returns the pid of the first process of each container whose supervisor is connected.
func (s *Sandbox) Pids() (pids []int) {
	if p := s.conn.get(); p != nil {
		pids = append(pids, p.Pid)
	}
	for _, v := range s.services.all() {
		if a, _, _ := v.Container(); a != nil {
			pids = append(pids, a.Pid)
		}
	}
	return pids
}

const (
	retryFirst  = 100 * time.Millisecond
	retryMost   = 5 * time.Second
	crashPeriod = time.Second // between two checks of a command that may loop
	maxSteps    = 32          // operations in a row before settle gives up
)

// Run settles the sandbox each time it is woken, until ctx ends or the host has no trace of the sandbox.
func (s *Sandbox) Run(ctx context.Context) {
	defer s.leave()
	pause := backoff.New(retryFirst, retryMost)
	for {
		timer := time.Duration(0)
		err := s.settle(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, decide.ErrSuperseded):
			s.log.Warn("a step failed; retrying", "error", err)
			timer = pause.Next()
		default:
			if !s.local.inBackground() { // otherwise the result of background work is still open
				pause.Reset()
			}
			if s.retire() {
				return
			}
			if p := s.conn.get(); p != nil && p.failing() {
				timer = crashPeriod
			}
		}
		if !s.wake.WaitFor(ctx, timer) {
			return
		}
	}
}

// settle does one operation after another, until the host is as the log says. Execs start in step, before and right
// after each operation. There is one exception: if the worker was restarted during a stop, teardown.finishExecs starts
// the goroutines that append the ends of execs.
func (s *Sandbox) settle(ctx context.Context) error {
	for range maxSteps {
		if err := s.refresh(ctx); err != nil {
			return err
		}
		done, err := s.step(ctx)
		if done || err != nil {
			return err
		}
	}
	return protocol.Errorf(protocol.Internal, "", "the sandbox does not settle")
}

// step inspects the host, starts the execs that can start, and does the next operation. It returns true if nothing is
// left to do.
func (s *Sandbox) step(ctx context.Context) (done bool, err error) {
	if background, err := s.local.inspectInBackground(ctx); background || err != nil {
		s.execs.start(ctx)
		return true, errors.Join(err, s.conn.check(ctx))
	}
	if err := s.local.inspect(ctx); err != nil {
		return true, err
	}
	st, _ := s.journal.State()
	b := &st.Sandbox
	op := decide.Next(b, s.host.ID, s.local.Inspection)
	settleGPUs(s, b)
	s.host.Admission.Settle(s.key, b, s.host.ID, s.local.Inspection)
	if op != decide.Discard && op != decide.Halt && op != decide.Nothing {
		s.host.Settled(s.key)
	}
	s.services.keep(ctx, b, op)
	s.execs.start(ctx)
	switch {
	case op == decide.Discard && s.host.DryRun:
		s.log.Warn("would remove leftovers of the sandbox", "container", s.local.container.Name,
			"generation", s.local.Inspection.Generation, "state", b.State)
		s.host.Settled(s.key)
		return true, nil
	case op == decide.Nothing:
		if err := removeStrays(ctx, s); err != nil {
			return true, err
		}
		if s.local.Inspection.Container != decide.ContainerUnknown {
			s.host.Settled(s.key)
		}
		return true, s.conn.check(ctx)
	}
	if err := s.do(ctx, op, b); err != nil && !errors.Is(err, decide.ErrSuperseded) {
		return true, err
	}
	s.execs.start(ctx) // the operation may have connected the supervisor; execs that waited for it can start now
	return false, nil
}

// do carries out one operation, under a context that ends when the log no longer wants it.
func (s *Sandbox) do(ctx context.Context, op decide.Operation, b *protocol.Sandbox) error {
	if err := s.host.Fence(); err != nil && op != decide.Attach {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.operation, s.cancel = op, cancel
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.operation, s.cancel, s.dirty = decide.Nothing, nil, true
	}()
	s.log.Debug("step", "operation", op, "state", b.State)
	err := s.perform(ctx, op, b)
	s.mu.Lock()
	superseded := err != nil && s.superseded()
	s.mu.Unlock()
	if superseded {
		return decide.ErrSuperseded
	}
	return err
}

func (s *Sandbox) perform(ctx context.Context, op decide.Operation, b *protocol.Sandbox) error {
	starting, ending := starter{s, b}, teardown{s, b}
	switch op {
	case decide.Create:
		if err := starting.admit(ctx); err != nil {
			return err
		}
		return starting.create(ctx)
	case decide.Resume:
		if err := starting.admit(ctx); err != nil {
			return err
		}
		return starting.resume(ctx)
	case decide.Attach:
		return starting.attachRunning(ctx)
	case decide.Revive:
		return starting.revive(ctx)
	case decide.Stop:
		return ending.stop(ctx)
	case decide.Halt:
		return ending.halt(ctx)
	case decide.Delete:
		return ending.delete(ctx)
	case decide.Discard:
		return ending.discard(ctx)
	}
	return nil
}

// cancelSuperseded ends the operation if the log no longer wants it. Hold s.mu.
func (s *Sandbox) cancelSuperseded() {
	if s.cancel != nil && !s.busy && s.superseded() {
		s.cancel()
	}
}

// superseded reports whether the log no longer wants the operation. Hold s.mu.
func (s *Sandbox) superseded() bool {
	wanted := true
	s.journal.View(func(st *protocol.State, _ uint64) {
		b := &st.Sandbox
		switch s.operation {
		case decide.Create, decide.Resume:
			wanted = b.State == protocol.StatePending && b.HostID == s.host.ID
		case decide.Revive, decide.Attach:
			wanted = b.State == protocol.StateReady && b.Desired == protocol.StateReady
		case decide.Stop:
			wanted = b.State == protocol.StateReady
		}
	})
	return !wanted
}

// awaitEngine asks the engine to make something, and waits for the answer even if the log no longer wants the
// operation. The engine finishes a request even if the caller has gone. Without the wait, a container or network could
// appear after the sandbox was removed.
func (s *Sandbox) awaitEngine(request func() error) error {
	s.mu.Lock()
	s.busy = true
	s.mu.Unlock()
	err := request()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	s.cancelSuperseded()
	return err
}

// refresh reads the log if it may have events that the journal has not read.
func (s *Sandbox) refresh(ctx context.Context) error {
	s.mu.Lock()
	stale := s.stale
	s.stale = false
	s.mu.Unlock()
	if !stale {
		return nil
	}
	listened := s.host.Listening()
	err := s.journal.Refresh(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.stale = true
		return err
	}
	s.listened, s.readAgain = listened, time.Now().Add(readPeriod+rand.N(readPeriod))
	return nil
}

// readPeriod is the shortest time after which a worker reads the log again without a notification. It needs to: when a
// sandbox moves to another host, its old worker is notified only once. If the sender dies and that notification is
// lost, all later ones go to the new worker.
const readPeriod = 10 * time.Minute

// refreshIfDue makes the next refresh read the log if a notification may have been lost. Hold s.mu.
func (s *Sandbox) refreshIfDue(now time.Time) {
	s.stale = s.stale || s.listened != s.host.Listening() || now.After(s.readAgain)
}

// leave ends everything that the goroutine started, at the end of the tenure or of the sandbox. Containers run on.
func (s *Sandbox) leave() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	p := s.conn.get()
	s.execs.await()
	if p != nil {
		p.close()
	}
	s.local.awaitBackground()
	s.services.end()
	s.services.drop()
}

// retire ends the goroutine if the log does not want the sandbox here, and none of its execs, services or connections
// remains. It reports whether the goroutine ends.
func (s *Sandbox) retire() bool {
	here := true
	s.journal.View(func(st *protocol.State, _ uint64) {
		b := &st.Sandbox
		here = b.HostID == s.host.ID && b.State != protocol.StateDeleted && b.State != protocol.StateNone
	})
	if here || s.execs.any() || s.services.any() || s.conn.get() != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale || s.dirty || s.wake.Pending() {
		return false
	}
	s.ended = true
	return true
}

// name is what the engine calls the sandbox's container and network.
func (s *Sandbox) name() string { return docker.ObjectName(s.host.Deployment, s.key) }

// dir returns the directory of a generation of the sandbox. If the container's label names a directory, it is that one:
// a worker with another state directory may have made it. Otherwise it is below this worker's state directory.
func (s *Sandbox) dir(generation uint64) hostdir.Dir {
	d := s.host.Dirs.Of(s.key, generation)
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.At(s.home)
}
