package worker

import (
	"context"
	"errors"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/network"
)

const (
	helloWithin = 20 * time.Second       // how long a supervisor may take to connect once its container runs
	aliveCheck  = 250 * time.Millisecond // between two looks whether it still does
)

// start starts the container, where it does not run, and waits for its supervisor. Of the container its
// id must be known.
func (s *sandbox) start(ctx context.Context, b *protocol.Sandbox, d hostdir.Dir, secret []byte, c docker.Container) (*attachment, error) {
	s.detach() // of an earlier try
	if s.inspection.Container == decide.ContainerExited {
		// It may have ended with its engine, and one that is about to end still answers on connections that
		// it has: what it began to start then could never be removed.
		if err := s.w.engine.Ping(ctx); err != nil {
			return nil, err
		}
	}
	epoch := s.w.epoch.Load()
	a, err := s.listen(b, d, secret)
	if err != nil {
		return nil, err
	}
	var mounted *hostfiles.Opened
	defer func() { mounted.Close() }()
	// A sandbox that was ready is brought back with what there is.
	lenient := b.State == protocol.StateReady
	if s.inspection.Container != decide.ContainerRunning {
		if err = s.w.gpus.Claim(s.key, labelledGPUs(s.container.Labels)); err == nil {
			mounted, err = s.startMounted(ctx, d, c.ID, lenient)
		}
	} else if hostfiles.Unverified(d) { // a worker that started it came no further
		if mounted, err = s.w.files.Open(d, lenient); err == nil {
			err = mounted.Hide()
		}
	}
	if err != nil {
		a.close()
		return nil, err
	}
	if c.Pid == 0 || s.inspection.Container != decide.ContainerRunning || !s.fresh {
		c, err = s.w.engine.Inspect(ctx, c.ID)
	}
	if err == nil && !c.Running {
		err = s.w.sameEngine(ctx, epoch)
	}
	if err == nil && !c.Running {
		err = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited, "the container ended at once, with exit code %d %s", c.ExitCode, c.Error)
	}
	if err == nil && mounted != nil {
		if err = mounted.Verify(c.Pid); err != nil {
			err = errors.Join(err, s.w.engine.KillContainer(ctx, c.ID))
		}
	}
	if err == nil {
		err = uncoverVolumes(d, c.Pid)
	}
	if err == nil {
		a.ports, err = network.PublishedPorts(b.Spec.Ports, c.Ports)
	}
	if err == nil {
		err = d.SetAddress(c.Hostname, c.Address)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	s.w.cfg.Probe("before-hello")
	s.w.limitTerminals(c.Pid)
	if err := a.greet(ctx, c.Pid); err != nil {
		a.close()
		return nil, err
	}
	s.w.cfg.Probe("after-hello")
	s.container, s.epoch = c, epoch
	s.inspection.Container, s.inspection.Generation, s.inspection.Leftovers = decide.ContainerRunning, docker.GenerationOf(c.Labels), true
	s.attach(a)
	return a, nil
}

// startMounted starts a container while the links of its mounts lead to their sources.
func (s *sandbox) startMounted(ctx context.Context, d hostdir.Dir, id string, lenient bool) (*hostfiles.Opened, error) {
	mounted, err := s.w.files.Open(d, lenient)
	if err != nil {
		return nil, err
	}
	if err = mounted.Show(); err == nil {
		s.w.cfg.Probe("before-container-start")
		err = s.whole(func() error { return s.w.engine.StartContainer(ctx, id) })
		s.w.cfg.Probe("before-mounts-hidden")
	}
	if hideErr := mounted.Hide(); err == nil {
		err = hideErr
	}
	if err == nil {
		s.w.cfg.Probe("after-container-start")
	}
	return mounted, err
}

// startAgain starts a container that was made, and ran, before. What is missing is not repaired in
// secret.
func (s *sandbox) startAgain(ctx context.Context, b *protocol.Sandbox) (*attachment, error) {
	d := s.directory(b.Generation)
	secret, err := d.Secret()
	if err != nil && hosterr.Temporary(err) {
		return nil, err
	}
	if s.container.ID == "" || err != nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the sandbox's container or directory is gone")
	}
	if s.inspection.Container != decide.ContainerRunning {
		if err := s.protectAgain(ctx, &b.Spec); err != nil {
			return nil, err
		}
	}
	a, err := s.start(ctx, b, d, secret, s.container)
	err, _ = network.PortConflict(err, b.Ports)
	return a, err
}

// attachRunning connects to the supervisor of a container that runs, after a restart of the worker, and
// says that the container was started again, where the log has that not yet.
func (s *sandbox) attachRunning(ctx context.Context, b *protocol.Sandbox) error {
	if a := s.attachedTo(""); a != nil {
		return s.restarted(ctx, b, a)
	}
	a, err := s.startAgain(ctx, b)
	if err != nil && !hosterr.Temporary(err) {
		return s.fail(ctx, b, protocol.AsError(err))
	}
	if err != nil || a.boot == b.Boot {
		return err
	}
	return s.restarted(ctx, b, a)
}

// resume starts a stopped sandbox's container again.
func (s *sandbox) resume(ctx context.Context, b *protocol.Sandbox) error {
	if why := s.stoppedForDisk(b.Generation); why != nil {
		return s.fail(ctx, b, why)
	}
	starting, cancel := context.WithTimeout(ctx, s.createLeft(b))
	defer cancel()
	a, err := s.startAgain(starting, b)
	if err == nil {
		err = s.servicesReady(starting, a)
	}
	switch {
	case err == nil:
	case errors.Is(err, errSuperseded), ctx.Err() != nil, (hosterr.Temporary(err) || network.PortTaken(err)) && starting.Err() == nil:
		return err
	case hosterr.Temporary(err):
		return s.fail(ctx, b, overdue(b, err))
	default:
		return s.fail(ctx, b, protocol.AsError(err))
	}
	s.w.cfg.Probe("before-resumed")
	err = s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Resumed(st, a.boot, a.ports) })
	s.w.cfg.Probe("after-resumed")
	return err
}

// restarted appends that the container was started again.
func (s *sandbox) restarted(ctx context.Context, b *protocol.Sandbox, a *attachment) error {
	reason := protocol.ReasonContainerExited
	if a.revived {
		reason = protocol.ReasonEngineRestarted
	}
	return s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		return decide.Restarted(st, reason, a.boot, a.ports)
	})
}

// revivals are the times a container was started again because its engine or machine had ended it, as
// far as they came soon after one another: a container that never stays up is given up.
type revivals struct {
	n    int
	last time.Time
}

// maxRevivals is how often a container is started again that ends within the crash window each time.
const maxRevivals = 5

// another says whether the container c may be started once more: one that ran for the guard stayed up.
func (r *revivals) another(c docker.Container, now time.Time, window, guard time.Duration) bool {
	if now.Sub(r.last) > window || c.FinishedAt.Sub(c.StartedAt) >= guard {
		r.n = 0
	}
	r.n, r.last = r.n+1, now
	return r.n <= maxRevivals
}

// undo takes the last one back: it was not for the container that it failed.
func (r *revivals) undo() { r.n-- }

// revive deals with a container that should run and does not. One that ended because the engine or
// the machine did is started again; one that ended by itself has failed.
func (s *sandbox) revive(ctx context.Context, b *protocol.Sandbox) error {
	c := s.container
	if err := s.runsEnded(ctx, b.Spec.Grace.Std(), ofPrimary); err != nil { // they read how they ended
		return err
	}
	if why := s.stoppedForDisk(b.Generation); why != nil {
		return s.fail(ctx, b, why)
	}
	if c.ID == "" {
		return s.fail(ctx, b, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the sandbox's container is gone"))
	}
	if s.epoch >= 0 { // it ran when it was last seen
		switch err := s.w.sameEngine(ctx, s.epoch); {
		case err == nil:
			return s.fail(ctx, b, endedByItself(b, c))
		case protocol.AsError(err).Reason != protocol.ReasonEngineRestarted:
			s.waitingSince = time.Time{} // nothing comes while the engine is away
			return err
		}
	}
	if !s.revived.another(c, time.Now(), s.w.cfg.CrashWindow, s.w.cfg.CrashGuard) {
		return s.fail(ctx, b, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
			"the sandbox's container does not keep running (exit code %d)", c.ExitCode))
	}
	a, err := s.startAgain(ctx, b)
	waits := hostfiles.SourceMissing(err) || network.PortTaken(err)
	if !waits {
		s.waitingSince = time.Time{}
	}
	switch {
	case err == nil:
		a.revived = true
		return s.restarted(ctx, b, a)
	case waits:
		s.revived.undo()
		return s.awaitHost(ctx, b, err)
	case hosterr.Temporary(err) && protocol.AsError(err).Reason == protocol.ReasonSupervisorUnhealthy:
		return err
	case hosterr.Temporary(err): // it was not for the container
		s.revived.undo()
		return err
	}
	return s.fail(ctx, b, protocol.AsError(err))
}

// awaitHost has a sandbox wait for what is to be mounted, or for a port, for as long as its create might
// have taken: after a restart of the machine a file system may come later than the engine, and somebody
// else may have the port for a while.
func (s *sandbox) awaitHost(ctx context.Context, b *protocol.Sandbox, missing error) error {
	why := protocol.AsError(missing)
	if s.waitingSince.IsZero() {
		s.waitingSince = time.Now()
	}
	if time.Since(s.waitingSince) > b.Spec.CreateTimeout.Std() {
		return s.fail(ctx, b, why)
	}
	if b.Error != nil && b.Error.Message == why.Message { // said already
		return missing
	}
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Waiting(st, why) })
	if err != nil {
		return err
	}
	return missing
}

// sameEngine says whether what ended since the engine's epoch was read may have ended by itself: nil where
// the engine was never away. Error: unavailable, with reason engine_restarted where it is back. While the engine
// is not followed, nobody would notice that it was replaced by another, so nothing is known.
func (w *worker) sameEngine(ctx context.Context, epoch int64) error {
	if err := w.engine.Ping(ctx); err != nil {
		return err
	}
	return w.epoch.same(epoch)
}

// endedByItself is what a sandbox fails with whose container ended while its engine went on.
func endedByItself(b *protocol.Sandbox, c docker.Container) *protocol.Error {
	if endedForMemory(c) {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled, "the sandbox ran out of memory (%s)", b.Spec.Memory)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited, "the sandbox's container ended with exit code %d", c.ExitCode)
}

// endedForMemory says whether a container that ended by itself did so for want of memory. An engine notes
// the end of any process in it for want of memory, and forgets that only when the container is started.
func endedForMemory(c docker.Container) bool { return c.OOMKilled && c.ExitCode == decide.KilledExit }
