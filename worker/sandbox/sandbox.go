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
	"github.com/boxfleet/boxfleet/worker/execs"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

// Sandbox is one sandbox on this host. Its goroutine compares the log with the host, and does one operation after
// another until the host is in the state in the log. Its execs and services have goroutines of their own.
type Sandbox struct {
	host     *Host
	key      protocol.SandboxKey
	journal  *jetstream.Journal
	log      *slog.Logger
	wake     wake.Signal
	execs    *execs.Execs
	services *services
	conn     *connection
	networks networks
	phases   *createPhases
	diskStop *diskStop

	mu        sync.Mutex
	stale     bool      // the log may have events that the journal does not have
	listened  uint64    // value of Host.Listening when the log was last read
	readAgain time.Time // when to read the log again even without a notification
	dirty     bool      // the host may have changed since the last inspection
	ended     bool      // the goroutine has ended
	network   bool      // the engine listed a network of the sandbox since its networks were last removed
	busy      bool      // the goroutine must wait for the engine's answer to a request
	operation decide.Operation
	cancel    context.CancelFunc // ends the operation
	home      string             // directory named in the container's label; "": there is no container
	objects   []Object           // the sandbox's containers and networks when the engine last listed them

	// Only the sandbox's goroutine uses these fields.
	local        *local
	revivals     revivals
	assigned     assignment
	noSecrets    error     // why the last start got no values of secrets; nil: it got them, or there is none
	waitingSince time.Time // when the restart of the container began to wait for a mount or a port; zero: no wait
}

// New returns a sandbox. Call Run in a new goroutine, the sandbox's goroutine.
func New(host *Host, k protocol.SandboxKey, log *slog.Logger) *Sandbox {
	s := &Sandbox{
		host: host, key: k, log: log.With("sandbox", k.ID), wake: wake.New(), stale: true, dirty: true,
	}
	s.conn, s.networks, s.phases, s.diskStop = newConnection(s), networks{s}, &createPhases{s: s}, &diskStop{s: s}
	s.execs = newExecs(s)
	s.services = newServices(s)
	s.local = &local{s: s, epoch: -1}
	if host.Conn != nil {
		s.journal = host.Conn.Journal(jetstream.JournalConfig{
			Tenant: k.Tenant, Sandbox: k.ID, Writer: host.Worker, Token: host.Token, KeepEnded: 1, FromSnapshot: true,
		})
	}
	return s
}

// Notify tells the sandbox that its history has news: b is the newest batch, or nil if the caller does not have it.
// Notify returns false if the goroutine has ended; a new goroutine must then handle the news.
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

// Inspect asks the goroutines of the sandbox and of its services to inspect the host again. The services take part
// because the sandbox may be waiting for a service. Inspect returns false if the sandbox's goroutine has ended.
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

// Found records the objects of the sandbox that the engine listed, and asks the goroutine to inspect the host again. It
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

// Pids returns the ids of the first processes of the containers whose supervisors are connected.
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
	crashPeriod = time.Second // pause between two checks for a crash loop
	maxSteps    = 32          // limit on operations in a row without a pause
)

// Run settles the sandbox each time it is woken, until ctx ends or nothing of the sandbox is on the host.
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
			s.log.Warn("could not bring the sandbox to its desired state; retrying", "error", err)
			timer = pause.Next()
		default:
			if !s.local.inBackground() { // a background inspection could still fail
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

// settle does one operation after another, until the host is in the state in the log. step starts the goroutines of
// execs before and after each operation. There is one exception: when containers are stopped or removed,
// teardown.finishExecs starts the goroutines that execs still need.
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
	return protocol.Errorf(protocol.Internal, "", "the sandbox needs more than %d operations in a row", maxSteps)
}

// step inspects the host, starts the execs that can start, and does the next operation. It returns true if nothing is
// left to do.
func (s *Sandbox) step(ctx context.Context) (done bool, err error) {
	if background, err := s.local.inspectInBackground(ctx); background || err != nil {
		s.execs.Start(ctx)
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
	s.execs.Start(ctx)
	switch {
	case op == decide.Discard && s.host.DryRun:
		s.log.Warn("dry run: would remove what is left of the sandbox on this host",
			"container", s.local.container.Name, "generation", s.local.Inspection.Generation, "state", b.State)
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
	s.execs.Start(ctx) // execs that waited for the supervisor need no new inspection to start
	return false, nil
}

// do carries out one operation, with a context that ends when the log no longer wants the operation.
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
	s.log.Debug("starting an operation of the sandbox", "operation", op, "state", b.State)
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

// awaitEngine sends the engine a request to make something, and waits for the answer even if the log no longer wants
// the operation. The engine carries out a request even if the worker stops waiting. Without the wait, the new object
// could therefore appear after the worker has removed everything else of the sandbox.
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

// refresh reads the log if it may have events that the journal does not have.
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

// readPeriod is how long, at least, a sandbox waits for a notification before it reads the log without one. When a
// sandbox moves to another host, the old host's worker is notified once. The notification is lost if its sender dies,
// and all later notifications go to the new host's worker. The old host's worker then learns of the move only by
// reading the log.
const readPeriod = 10 * time.Minute

// refreshIfDue marks the journal as stale if a notification may have been lost. Hold s.mu.
func (s *Sandbox) refreshIfDue(now time.Time) {
	s.stale = s.stale || s.listened != s.host.Listening() || now.After(s.readAgain)
}

// leave ends everything that the goroutine started. Run calls leave before it returns. Containers keep running.
func (s *Sandbox) leave() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	p := s.conn.get()
	s.execs.Await()
	if p != nil {
		p.close()
	}
	s.local.awaitBackground()
	s.services.end()
	s.services.drop()
}

// retire marks the goroutine as ended if nothing of the sandbox is on this host, and reports whether it did.
func (s *Sandbox) retire() bool {
	here := true
	s.journal.View(func(st *protocol.State, _ uint64) {
		b := &st.Sandbox
		here = b.HostID == s.host.ID && b.State != protocol.StateDeleted && b.State != protocol.StateNone
	})
	if here || s.execs.Any() || s.services.any() || s.conn.get() != nil {
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

// name returns the engine's name for the sandbox's primary container and for its network.
func (s *Sandbox) name() string { return docker.ObjectName(s.host.Deployment, s.key) }

// dir returns the directory of a generation of the sandbox. It uses the path in the container's label, because an
// earlier worker with another state directory may have made the directory. Without a container, the directory is in
// this worker's state directory.
func (s *Sandbox) dir(generation uint64) hostdir.Dir {
	d := s.host.Dirs.Of(s.key, generation)
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.At(s.home)
}
