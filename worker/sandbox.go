package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// sandbox is the mailbox of one sandbox on this host: one goroutine, which compares what the log
// says with what the host shows and does one operation after another until they agree. What runs
// beside it are the sandbox's execs, one goroutine each.
type sandbox struct {
	w       *worker
	key     key
	journal *jetstream.Journal
	log     *slog.Logger
	wake    wake.Signal

	mu          sync.Mutex
	stale       bool      // the log may have more than the journal
	listened    uint64    // the worker began to hear work items so often when the log was read last
	readAgain   time.Time // the log is read again then, also where nobody says that it has more
	dirty       bool      // the host may show something else than seen
	gone        bool      // the goroutine has ended
	networkSeen bool      // the engine's list had a network of it, since its networks were last removed
	making      bool      // the engine is making something, and must be waited for
	services    map[string]*service
	commands    map[string]chan control.Result // by id: what the worker itself runs in the sandbox's containers
	cancelOp    context.CancelFunc
	op          decide.Operation
	runs        map[string]*execRun
	again       time.Duration        // the pause before execs are taken up again; 0: none failed since
	againAt     time.Time            // when that is over
	unstarted   map[string]time.Time // execs that are accepted and not started, and since when that is known here
	attached    *attachment
	lastOwn     decide.PrimaryRun // what was heard of the sandbox's own command before its container ended
	home        string            // directory that the container says it uses; "": there is no container
	attaching   chan struct{}     // closed and replaced when attached changes
	labelled    []labelled        // what carries its labels on the host, when that was last listed
	diskStop    *protocol.Error   // why the watch over the disk stopped it; nil: it did not, or see its note
	phases      createPhases      // of its create, while that goes on

	// Only the goroutine's own.
	inspection decide.Inspection
	container  docker.Container
	fresh      bool      // container was looked at in this step
	aside      chan view // the outcome of a look that goes on beside the mailbox; nil: none does
	epoch      int64     // of the engine, when the container was last seen running; -1: never in this tenure
	revived    revivals
	allEnded   bool // every container has ended: execs find out what became of them

	assigned     assignment
	waitingSince time.Time // for what the container needs of its host to start again; zero: it does not
}

func newSandbox(w *worker, k key) *sandbox {
	s := &sandbox{
		w: w, key: k, log: w.log.With("sandbox", k.ID), wake: wake.New(),
		stale: true, dirty: true, runs: map[string]*execRun{},
		services: map[string]*service{}, commands: map[string]chan control.Result{}, attaching: make(chan struct{}), epoch: -1,
	}
	s.journal = w.conn.Journal(jetstream.JournalConfig{
		Tenant: k.Tenant, Sandbox: k.ID, Writer: w.cfg.Name, Token: w.token, KeepEnded: 1, FromSnapshot: true,
	})
	return s
}

// told takes a work item: the newest batch of the history, or nil. It reports false when the
// mailbox has ended, and the item needs a new one.
func (s *sandbox) told(b *protocol.Batch) bool {
	gap := b == nil || s.journal.Observe(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return false
	}
	s.stale = s.stale || gap
	s.breakOff()
	s.wakeUp()
	return true
}

// breakOff ends the operation in hand where the log no longer wants it: each can be begun anew. The
// caller holds the lock.
func (s *sandbox) breakOff() {
	if s.cancelOp != nil && !s.making && s.superseded() {
		s.cancelOp()
	}
}

// whole has the engine make something, and waits for its answer also where the log no longer wants
// it: an engine goes on with a request that nobody waits for, and what it makes then would come
// after everything of the sandbox was removed.
func (s *sandbox) whole(make func() error) error {
	s.mu.Lock()
	s.making = true
	s.mu.Unlock()
	err := make()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making = false
	s.breakOff()
	return err
}

// superseded says whether the log no longer wants the operation in hand.
func (s *sandbox) superseded() bool {
	wanted := true
	s.journal.View(func(st *protocol.State, _ uint64) {
		b := &st.Sandbox
		switch s.op {
		case decide.Create, decide.Resume:
			wanted = b.State == protocol.StatePending && b.HostID == s.w.hostID
		case decide.Revive, decide.Attach:
			wanted = b.State == protocol.StateReady && b.Desired == protocol.StateReady
		case decide.Stop:
			wanted = b.State == protocol.StateReady
		}
	})
	return !wanted
}

// look has the host looked at again, by the services too, which the mailbox may be waiting for. It
// reports false when the mailbox has ended.
func (s *sandbox) look() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = true
	s.wakeUp()
	for _, v := range s.services {
		v.dirty = true
		v.wakeUp()
	}
	return !s.gone
}

func (s *sandbox) wakeUp() { s.wake.Wake() }

// errSuperseded says that the log moved on while an operation was under way.
var errSuperseded = errors.New("superseded")

const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
	crashCheck = time.Second
)

// run settles the sandbox each time it is woken, until ctx ends or nothing of it is here.
func (s *sandbox) run(ctx context.Context) {
	defer s.leave()
	pause := retryFirst
	for {
		timer := time.Duration(0)
		err := s.settle(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, errSuperseded):
			s.log.Warn("a step failed and is tried again", "error", err)
			timer, pause = pause, min(2*pause, retryMost)
		default:
			if s.aside == nil { // else it is to be seen how the look goes
				pause = retryFirst
			}
			if s.retire() {
				return
			}
			if s.crashing() {
				timer = crashCheck
			}
		}
		if !s.wake.WaitFor(ctx, timer) {
			return
		}
	}
}

// leave ends the mailbox at the end of the worker's life or tenure. What runs on the host goes on.
func (s *sandbox) leave() {
	s.mu.Lock()
	s.gone = true
	a := s.attached
	runs := make([]*execRun, 0, len(s.runs))
	for _, r := range s.runs {
		runs = append(runs, r)
	}
	s.mu.Unlock()
	for _, r := range runs {
		<-r.done
	}
	if a != nil {
		a.close()
	}
	if s.aside != nil {
		<-s.aside
	}
	s.endServices()
	s.dropServices()
}

// retire ends the mailbox of a sandbox of which nothing is here, unless something came in.
func (s *sandbox) retire() bool {
	here := true
	s.journal.View(func(st *protocol.State, _ uint64) {
		b := &st.Sandbox
		here = b.HostID == s.w.hostID && b.State != protocol.StateDeleted && b.State != protocol.StateNone
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if here || s.stale || s.dirty || len(s.runs) > 0 || s.attached != nil || len(s.services) > 0 || s.wake.Pending() {
		return false
	}
	s.gone = true
	return true
}

func (s *sandbox) retired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// settle does one operation after another, until the host shows what the log says.
func (s *sandbox) settle(ctx context.Context) error {
	for range maxSteps {
		if err := s.refresh(ctx); err != nil {
			return err
		}
		if looking, err := s.lookAside(ctx); looking || err != nil {
			s.startExecs(ctx)
			return errors.Join(err, s.checkPrimary(ctx))
		}
		if err := s.observe(ctx); err != nil {
			return err
		}
		st, _ := s.journal.State()
		op := decide.Next(&st.Sandbox, s.w.hostID, s.inspection)
		s.w.settleGPUs(s.key, &st.Sandbox, s.inspection.Container)
		s.w.admissions.settle(s.key, &st.Sandbox, s.w.hostID, s.inspection)
		if op != decide.Discard && op != decide.Halt && op != decide.Nothing {
			s.looked()
		}
		s.keepServices(ctx, &st.Sandbox, op)
		s.startExecs(ctx)
		if op == decide.Discard && s.w.cfg.ReapDryRun {
			s.log.Warn("would remove what is over", "container", s.container.Name, "generation", s.inspection.Generation, "state", st.Sandbox.State)
			s.looked()
			return nil
		}
		if op == decide.Nothing {
			if err := s.removeStrays(ctx); err != nil {
				return err
			}
			if s.inspection.Container != decide.ContainerUnknown {
				s.looked()
			}
			return s.checkPrimary(ctx)
		}
		if err := s.do(ctx, op, st); err != nil && !errors.Is(err, errSuperseded) {
			return err
		}
		s.startExecs(ctx) // those that waited for the supervisor, before the host is looked at again
	}
	return protocol.Errorf(protocol.Internal, "", "the sandbox does not settle")
}

// looked says that what is here of the sandbox may be here.
func (s *sandbox) looked() {
	if s.w.firstLook.looked(s.key) {
		s.w.listening.nudge()
		s.w.changed.Wake()
	}
}

// maxSteps is how many operations follow one another without a pause.
const maxSteps = 32

func (s *sandbox) refresh(ctx context.Context) error {
	s.mu.Lock()
	stale := s.stale
	s.stale = false
	s.mu.Unlock()
	if !stale {
		return nil
	}
	listened := s.w.listening.times.Load()
	err := s.journal.Refresh(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.stale = true
		return err
	}
	s.listened, s.readAgain = listened, time.Now().Add(readAgain+rand.N(readAgain))
	return nil
}

// readAgain is how long at least the log is not read where nobody says that it has more. A sandbox that is moved to
// another host is told of once: who moved it may have ended before, and who is told again is the other host's worker.
const readAgain = 10 * time.Minute

// mayBeStale notes that the log may have more, where that may not have been heard. The caller holds the lock.
func (s *sandbox) mayBeStale(now time.Time) {
	s.stale = s.stale || s.listened != s.w.listening.times.Load() || now.After(s.readAgain)
}

// view is what a look at the host shows.
type view struct {
	container docker.Container
	directory bool
	services  bool
	epoch     int64 // of the engine, before the look: what is seen then may end with it
	err       error
}

// view looks at the host.
func (s *sandbox) view(ctx context.Context) view {
	v := view{epoch: s.w.epoch.Load()}
	if v.container, v.err = s.inspect(ctx); v.err == nil {
		v.directory, v.err = s.w.dirs.Has(s.key)
	}
	if v.err == nil {
		v.services, v.err = s.servicesRun(ctx)
	}
	return v
}

// lookAside looks at a host where nothing is to be done, as far as is known, beside the mailbox: an engine
// that is slow, or hangs, is no reason for the sandbox's execs to wait, which do not need it. It reports
// true while such a look goes on. One that shows a change has the mailbox look itself.
func (s *sandbox) lookAside(ctx context.Context) (looking bool, err error) {
	s.mu.Lock()
	idle := s.aside == nil && !s.dirty
	s.mu.Unlock()
	if idle {
		return false, nil
	}
	a, restful := s.restful()
	if s.aside != nil {
		var v view
		select {
		case v = <-s.aside:
		default:
			if restful {
				return true, nil
			}
			v = <-s.aside
		}
		s.aside = nil
		switch {
		case !restful || v.err == nil && !v.shows(a, s.inspection.Generation):
			s.mu.Lock()
			s.dirty = true
			s.mu.Unlock()
			return false, nil
		case v.err != nil:
			s.mu.Lock()
			s.dirty = true
			s.mu.Unlock()
			return false, v.err
		}
		s.container, s.epoch = v.container, v.epoch
	}
	s.mu.Lock()
	s.home = s.container.Labels[docker.LabelDirectory]
	dirty := s.dirty
	s.dirty = dirty && !restful
	s.mu.Unlock()
	if !dirty || !restful {
		return false, nil
	}
	s.aside = make(chan view, 1)
	go func(seen chan<- view) {
		seen <- s.view(ctx)
		s.wakeUp()
	}(s.aside)
	return true, nil
}

// restful says whether nothing is to be done about a container that runs and is attached, as a.
func (s *sandbox) restful() (a *attachment, restful bool) {
	s.mu.Lock()
	a = s.attached
	s.inspection.Connected, s.inspection.Boot = a != nil, ""
	if a != nil {
		s.inspection.Boot = a.boot
	}
	s.mu.Unlock()
	if a == nil || s.inspection.Container != decide.ContainerRunning {
		return a, false
	}
	s.journal.View(func(st *protocol.State, _ uint64) {
		restful = decide.Next(&st.Sandbox, s.w.hostID, s.inspection) == decide.Nothing
	})
	return a, restful
}

// shows says whether the attached container runs on.
func (v *view) shows(a *attachment, generation uint64) bool {
	return v.container.Running && v.container.Pid == a.pid && docker.GenerationOf(v.container.Labels) == generation
}

// observe looks at the host, if it may have changed. An error leaves nothing known.
func (s *sandbox) observe(ctx context.Context) error {
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = false
	s.inspection.Connected, s.inspection.Boot, s.fresh = s.attached != nil, "", dirty
	if s.attached != nil {
		s.inspection.Boot = s.attached.boot
	}
	network := s.networkSeen
	s.mu.Unlock()
	if !dirty {
		return nil
	}
	v := s.view(ctx)
	if v.err != nil {
		s.inspection.Container = decide.ContainerUnknown
		s.mu.Lock()
		s.dirty = true
		s.mu.Unlock()
		return v.err
	}
	c := v.container
	s.inspection.Leftovers, s.inspection.Services = v.directory || network, v.services
	s.container = c
	s.mu.Lock()
	s.home = c.Labels[docker.LabelDirectory]
	s.mu.Unlock()
	s.inspection.Generation = docker.GenerationOf(c.Labels)
	switch {
	case c.ID == "":
		s.inspection.Container = decide.ContainerAbsent
	case c.Running:
		s.inspection.Container = decide.ContainerRunning
		s.epoch = v.epoch
	case c.StartedAt.IsZero() || c.State == "created":
		s.inspection.Container = decide.ContainerMade
	default:
		s.inspection.Container = decide.ContainerExited
	}
	if s.inspection.Container != decide.ContainerRunning || s.attached != nil && s.attached.pid != c.Pid {
		s.detach()
		s.inspection.Connected = false
	}
	return nil
}

// inspect returns the sandbox's container, the zero value when there is none. What somebody else
// gave the sandbox's name is none; it is only in the way of making one.
func (s *sandbox) inspect(ctx context.Context) (docker.Container, error) {
	return s.inspectNamed(ctx, s.name())
}

func (s *sandbox) inspectNamed(ctx context.Context, name string) (docker.Container, error) {
	c, err := s.w.engine.Inspect(ctx, name)
	if docker.IsNotFound(err) {
		return docker.Container{}, nil
	}
	if err != nil {
		return c, err
	}
	if k, ok := s.w.ours(&c); !ok || k != s.key {
		return docker.Container{}, nil
	}
	return c, nil
}

// name is what the Engine calls the sandbox's container and network.
func (s *sandbox) name() string { return docker.ObjectName(s.w.conn.Deployment(), s.key) }

// do carries out one operation, under a context that ends when the log no longer wants it.
func (s *sandbox) do(ctx context.Context, op decide.Operation, st *protocol.State) error {
	if err := s.w.fence(); err != nil && op != decide.Attach {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.op, s.cancelOp = op, cancel
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.op, s.cancelOp, s.dirty = decide.Nothing, nil, true
	}()
	b := &st.Sandbox
	s.log.Debug("step", "operation", op, "state", b.State)
	var err error
	switch op {
	case decide.Create:
		if err = s.admit(ctx, b); err == nil {
			err = s.create(ctx, b)
		}
	case decide.Resume:
		if err = s.admit(ctx, b); err == nil {
			err = s.resume(ctx, b)
		}
	case decide.Attach:
		err = s.attachRunning(ctx, b)
	case decide.Revive:
		err = s.revive(ctx, b)
	case decide.Stop:
		err = s.stop(ctx, b)
	case decide.Halt:
		err = s.halt(ctx, b)
	case decide.Delete:
		err = s.delete(ctx, b)
	case decide.Discard:
		err = s.discard(ctx)
	}
	s.mu.Lock()
	superseded := err != nil && s.superseded()
	s.mu.Unlock()
	if superseded {
		return errSuperseded
	}
	return err
}

// append appends what decide says of the newest state, if the sandbox is still this host's and of
// this generation. It returns errSuperseded where decide has nothing to say.
func (s *sandbox) append(ctx context.Context, generation uint64, choose decide.Decision) error {
	_, err := s.appendEvents(ctx, generation, choose)
	return err
}

// appendEvents appends as append does, and returns the events as they are in the log.
func (s *sandbox) appendEvents(ctx context.Context, generation uint64, choose decide.Decision) ([]protocol.Event, error) {
	events, err := s.journal.Do(ctx, func(st *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if err := s.w.fence(); err != nil {
			return nil, err
		}
		return decide.Here(st, s.w.hostID, generation, choose), nil
	})
	if err == nil && len(events) == 0 {
		return nil, errSuperseded
	}
	return events, err
}

// fail appends that the sandbox failed, and before it the end of its execs.
func (s *sandbox) fail(ctx context.Context, b *protocol.Sandbox, why *protocol.Error) error {
	if stopped := s.stoppedForDisk(b.Generation); stopped != nil {
		why = stopped
	}
	s.log.Warn("the sandbox fails", "error", why)
	return s.append(ctx, b.Generation, s.failed(why))
}

// failed is the decision to fail the sandbox.
func (s *sandbox) failed(why *protocol.Error) decide.Decision {
	return func(st *protocol.State) []protocol.Event { return decide.Failed(st, s.ownRun(), why) }
}

// crashing says whether the primary command has exited and may be looping.
func (s *sandbox) crashing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached != nil && s.attached.crash.Failing(time.Now())
}

// checkPrimary tells the log what became of the primary command, and fails a sandbox whose command exits
// again and again.
func (s *sandbox) checkPrimary(ctx context.Context) error {
	st, _ := s.journal.State()
	if st.Sandbox.State != protocol.StateReady {
		return nil
	}
	if err := s.tellPrimary(ctx, &st.Sandbox); err != nil {
		return err
	}
	why := s.loops(st.Sandbox.Spec.Memory)
	if why == nil {
		return nil
	}
	if err := s.w.fence(); err != nil {
		return err
	}
	if err := s.endAll(ctx, &st.Sandbox); err != nil {
		return err
	}
	if a := s.attachedTo(""); a != nil {
		why = a.withOutput(ctx, why)
	}
	err := s.fail(ctx, &st.Sandbox, why)
	s.wakeUp()
	return err
}

// loops says why a sandbox fails whose primary command exits again and again, nil where it does not. A
// supervisor that is not connected may have seen the command come to rest. What was found once stays so
// for this start of the container, since the command is ended before the log has it.
func (s *sandbox) loops(memory protocol.Bytes) *protocol.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.attached
	if a == nil {
		return nil
	}
	if a.loops == nil && a.crash.Looping(time.Now()) && a.link.Up() {
		a.loops = a.crash.Error("the primary command", memory)
	}
	return a.loops
}
