package sandbox

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

// starter starts the primary container of a sandbox, for the first time or again.
type starter struct {
	s *Sandbox
	b *protocol.Sandbox
}

// start starts the container if it does not run, and connects to its supervisor. Of c, start needs only the id.
func (t *starter) start(ctx context.Context, d hostdir.Dir, secret []byte, c docker.Container) (*primary, error) {
	s := t.s
	s.conn.detach() // an earlier try may have left a connection
	if s.local.Container == decide.ContainerExited {
		// An engine that shuts down still answers requests on open connections, but no longer answers Ping. A container
		// that such an engine begins to start could never be removed.
		if err := s.host.Engine.Ping(ctx); err != nil {
			return nil, err
		}
	}
	epoch := s.host.Epoch.Load()
	p, err := listenPrimary(s, t.b, d, secret)
	if err != nil {
		return nil, err
	}
	if c, err = t.connect(ctx, p, d, c, epoch); err != nil {
		p.close()
		return nil, err
	}
	s.host.Probe("after-hello")
	s.local.container, s.local.epoch = c, epoch
	s.local.Container, s.local.Generation, s.local.Leftovers = decide.ContainerRunning, docker.GenerationOf(c.Labels), true
	s.conn.attach(p)
	return p, nil
}

// connect starts the container if it does not run, checks that it has the right mounts, and waits for its supervisor.
// It returns the started container.
func (t *starter) connect(ctx context.Context, p *primary, d hostdir.Dir, c docker.Container,
	epoch int64) (docker.Container, error) {
	s := t.s
	mounted, err := t.startMounted(ctx, d, c.ID)
	defer func() { mounted.Close() }()
	if err != nil {
		return c, err
	}
	if c, err = t.inspectStarted(ctx, c, epoch); err != nil {
		return c, err
	}
	if mounted != nil {
		if err := mounted.Verify(c.Pid); err != nil {
			return c, errors.Join(err, s.host.Engine.KillContainer(ctx, c.ID))
		}
	}
	defaults, err := d.Defaults()
	if err != nil {
		return c, err
	}
	if err := hostfiles.UncoverVolumes(c.Pid, defaults.Volumes); err != nil {
		return c, err
	}
	if p.ports, err = network.PublishedPorts(t.b.Spec.Ports, c.Ports); err != nil {
		return c, err
	}
	if err := d.SetAddress(c.Hostname, c.Address); err != nil {
		return c, err
	}
	s.host.Probe("before-hello")
	s.host.LimitTerminals(c.Pid)
	if err := t.greet(ctx, p, c.Pid); err != nil {
		return c, err
	}
	s.host.Track(s.key, c.Pid, p.Home)
	return c, nil
}

// greet waits for the supervisor. If the time for the start ends first, the error is why an earlier try could not get
// the values of the sandbox's secrets: the supervisor does not answer because it waits for them.
func (t *starter) greet(ctx context.Context, p *primary, pid int) error {
	err := p.Greet(ctx, pid)
	if why := p.Link.Refused(); why != nil || err == nil {
		t.s.noSecrets = why
	} else if ctx.Err() != nil && t.s.noSecrets != nil {
		return t.s.noSecrets
	}
	return err
}

// startMounted starts the container if it does not run. It returns the mounts to verify, or nil if there are no such
// mounts.
func (t *starter) startMounted(ctx context.Context, d hostdir.Dir, id string) (*hostfiles.Opened, error) {
	s := t.s
	lenient := t.b.State == protocol.StateReady // a sandbox that was ready may start without optional files
	if s.local.Container == decide.ContainerRunning {
		if !hostfiles.Unverified(d) {
			return nil, nil
		}
		// An earlier worker started the container, but ended before it verified the mounts.
		mounted, err := s.host.Files.Open(d, lenient)
		if err == nil {
			err = mounted.Hide()
		}
		return mounted, err
	}
	if err := s.host.GPUs.Claim(s.key, GPUsOf(s.local.container.Labels)); err != nil {
		return nil, err
	}
	mounted, err := s.host.Files.Open(d, lenient)
	if err != nil {
		return nil, err
	}
	if err = mounted.Show(); err == nil {
		s.host.Probe("before-container-start")
		err = s.awaitEngine(func() error { return s.host.Engine.StartContainer(ctx, id) })
		s.host.Probe("before-mounts-hidden")
	}
	if hideErr := mounted.Hide(); err == nil {
		err = hideErr
	}
	if err == nil {
		s.host.Probe("after-container-start")
	}
	return mounted, err
}

// inspectStarted inspects a container that should run, unless this step has inspected it already. It returns an error
// if the container has ended.
func (t *starter) inspectStarted(ctx context.Context, c docker.Container, epoch int64) (_ docker.Container, err error) {
	host, here := t.s.host, t.s.local
	if c.Pid == 0 || here.Container != decide.ContainerRunning || !here.fresh {
		if c, err = host.Engine.Inspect(ctx, c.ID); err != nil {
			return c, err
		}
	}
	if c.Running {
		return c, nil
	}
	if err := host.Epoch.EndedByItself(ctx, host.Engine.Ping, epoch); err != nil {
		return c, err
	}
	return c, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
		"the container ended right after its start, with exit code %d %s", c.ExitCode, c.Error)
}

// again starts a container that has run before. A container or directory that is gone is not replaced, because nobody
// would notice that the contents were lost. The error then has the reason container_missing.
func (t *starter) again(ctx context.Context) (*primary, error) {
	s := t.s
	d := s.dir(t.b.Generation)
	secret, err := d.Secret()
	if err != nil && hosterr.Temporary(err) {
		return nil, err
	}
	if s.local.container.ID == "" || err != nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing,
			"the sandbox's container or directory is gone")
	}
	if s.local.Container != decide.ContainerRunning {
		if err := s.containers().RestoreRules(ctx, &t.b.Spec); err != nil {
			return nil, err
		}
	}
	p, err := t.start(ctx, d, secret, s.local.container)
	err, _ = network.PortConflict(err, t.b.Ports)
	return p, err
}

// attachRunning connects to the supervisor of a running container after a restart of the worker. If the log does not
// have the container's last start, attachRunning appends an event for this start.
func (t *starter) attachRunning(ctx context.Context) error {
	if p := t.s.conn.get(); p != nil {
		return t.appendRestarted(ctx, p)
	}
	p, err := t.again(ctx)
	if err != nil && !hosterr.Temporary(err) {
		return t.s.fail(ctx, t.b, protocol.AsError(err))
	}
	if err != nil || p.Boot == t.b.Boot {
		return err
	}
	return t.appendRestarted(ctx, p)
}

func (t *starter) appendRestarted(ctx context.Context, p *primary) error {
	reason := protocol.ReasonContainerExited
	if p.revived {
		reason = protocol.ReasonEngineRestarted
	}
	return t.s.append(ctx, t.b.Generation, func(st *protocol.State) []protocol.Event {
		return decide.Restarted(st, reason, p.Boot, p.ports)
	})
}

// resume starts the container of a stopped sandbox again.
func (t *starter) resume(ctx context.Context) error {
	s, b := t.s, t.b
	if why := s.diskStop.noted(b.Generation); why != nil {
		return s.fail(ctx, b, why)
	}
	bounded, cancel := context.WithTimeout(ctx, s.assigned.left(b, s.host.Now()))
	defer cancel()
	p, err := t.again(bounded)
	if err == nil {
		err = s.services.awaitReady(bounded, p)
	}
	retry := hosterr.Temporary(err) || network.PortTaken(err)
	switch {
	case err == nil:
	case errors.Is(err, decide.ErrSuperseded), ctx.Err() != nil, retry && bounded.Err() == nil:
		return err
	case hosterr.Temporary(err):
		return s.fail(ctx, b, timeoutError(b, err))
	default:
		return s.fail(ctx, b, protocol.AsError(err))
	}
	s.host.Probe("before-resumed")
	err = s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		return decide.Resumed(st, p.Boot, p.ports)
	})
	s.host.Probe("after-resumed")
	return err
}

// revivals counts how often a container was started again in quick succession, each time after its engine or machine
// had ended the container. After maxRevivals such starts, the container is not started any more.
type revivals struct {
	n    int
	last time.Time
}

// maxRevivals is how many times a container is started again if each start follows the one before within the crash
// window.
const maxRevivals = 5

// another counts one more start of the container, and reports whether the start is allowed. The count begins at zero
// again after a run that lasted for guard, or if the time window has passed since the last start.
func (r *revivals) another(c docker.Container, now time.Time, window, guard time.Duration) bool {
	if now.Sub(r.last) > window || c.FinishedAt.Sub(c.StartedAt) >= guard {
		r.n = 0
	}
	r.n, r.last = r.n+1, now
	return r.n <= maxRevivals
}

// undo reverts the last count. Call undo if a start failed for a reason outside the container.
func (r *revivals) undo() { r.n-- }

// revive handles a container that should run but does not. If the engine or the machine ended the container, revive
// starts it again. If the container ended by itself, revive fails the sandbox.
func (t *starter) revive(ctx context.Context) error {
	s, b, c := t.s, t.b, t.s.local.container
	// The goroutines of execs still read results from files of the container's last start.
	if err := s.execs.AwaitEnds(ctx, b.Spec.Grace.Std(), true); err != nil {
		return err
	}
	if why := s.diskStop.noted(b.Generation); why != nil {
		return s.fail(ctx, b, why)
	}
	if c.ID == "" {
		return s.fail(ctx, b, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing,
			"the sandbox's container is gone"))
	}
	if s.local.epoch >= 0 { // the container ran in this tenure
		switch err := s.host.Epoch.EndedByItself(ctx, s.host.Engine.Ping, s.local.epoch); {
		case err == nil:
			return s.fail(ctx, b, exitError(b, c))
		case protocol.AsError(err).Reason != protocol.ReasonEngineRestarted:
			s.waitingSince = time.Time{} // the time without an engine does not count as waiting for a mount or a port
			return err
		}
	}
	if !s.revivals.another(c, time.Now(), s.host.CrashWindow, s.host.CrashGuard) {
		return s.fail(ctx, b, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
			"the sandbox's container ended soon after its start too many times; its last exit code was %d", c.ExitCode))
	}
	p, err := t.again(ctx)
	if err == nil {
		s.waitingSince = time.Time{}
		p.revived = true
		return t.appendRestarted(ctx, p)
	}
	return t.afterFailedRevival(ctx, err)
}

func (t *starter) afterFailedRevival(ctx context.Context, err error) error {
	s := t.s
	if hostfiles.SourceMissing(err) || network.PortTaken(err) {
		s.revivals.undo()
		return t.awaitHost(ctx, err)
	}
	s.waitingSince = time.Time{}
	if !hosterr.Temporary(err) {
		return s.fail(ctx, t.b, protocol.AsError(err))
	}
	if protocol.AsError(err).Reason != protocol.ReasonSupervisorUnhealthy {
		s.revivals.undo()
	}
	return err
}

// awaitHost makes a sandbox wait for a mount's source or for a port, but not longer than the sandbox's create timeout.
// After a restart of the machine, the engine may start before a file system is mounted, and another process may use the
// port for a while.
func (t *starter) awaitHost(ctx context.Context, missing error) error {
	s, b, why := t.s, t.b, protocol.AsError(missing)
	if s.waitingSince.IsZero() {
		s.waitingSince = time.Now()
	}
	if time.Since(s.waitingSince) > b.Spec.CreateTimeout.Std() {
		return s.fail(ctx, b, why)
	}
	if b.Error != nil && b.Error.Message == why.Message { // the log already says what the sandbox waits for
		return missing
	}
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Waiting(st, why) })
	if err != nil {
		return err
	}
	return missing
}

// exitError returns the error of a sandbox whose container ended by itself.
func exitError(b *protocol.Sandbox, c docker.Container) *protocol.Error {
	if c.OutOfMemory() {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled,
			"the sandbox ran out of memory (%s)", b.Spec.Memory)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
		"the sandbox's container ended with exit code %d", c.ExitCode)
}
