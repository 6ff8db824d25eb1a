package sandbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/network"
)

// admit counts the sandbox's resources as used on the host, before a create or resume begins. If the host has no room,
// admit gives the sandbox back to the coordinators, which place it again.
func (t *starter) admit(ctx context.Context) error {
	s, b := t.s, t.b
	why, err := s.host.Admission.Admit(ctx, s.key, b.Spec.Totals())
	if why == "" || err != nil {
		return err
	}
	s.log.Warn("the host has no room for the sandbox; asking the coordinators to place the sandbox again", "why", why)
	err = s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Refused(st, why) })
	return cmp.Or(err, decide.ErrSuperseded)
}

// create makes everything that the sandbox does not have on the host yet. It can therefore continue an earlier,
// interrupted create. A permanent error fails the sandbox.
func (t *starter) create(ctx context.Context) error {
	s, b := t.s, t.b
	if why := s.diskStop.noted(b.Generation); why != nil {
		return s.phases.fail(ctx, b, why)
	}
	bounded, cancel := context.WithTimeout(ctx, s.assigned.left(b, s.host.Now()))
	defer cancel()
	stop := s.phases.run(bounded, b)
	err := (&creation{s: s, b: b}).run(bounded)
	stop()
	switch {
	case err == nil:
		s.phases.forget()
		return nil
	case errors.Is(err, decide.ErrSuperseded), ctx.Err() != nil:
		return err
	case bounded.Err() != nil:
		return s.phases.fail(ctx, b, timeoutError(b, err))
	case hosterr.Temporary(err) && !hosterr.DiskFull(err): // if the disk is full, do not retry on this host
		return err
	}
	return s.phases.fail(ctx, b, protocol.AsError(err))
}

// assignment records when the time limit of a create began to count.
type assignment struct {
	at   time.Time // when the assignment was appended, by the store's clock
	from time.Time // when the time limit began to count, by this process's monotonic clock
}

// maxLateness is the longest time that the coordinators need to end a create after its deadline.
const maxLateness = time.Minute

// left returns the time that remains until the sandbox must be ready. This process's monotonic clock measures the time
// limit. A change of the machine's wall clock therefore does not end the create.
func (a *assignment) left(b *protocol.Sandbox, now time.Time) time.Duration {
	timeout := b.Spec.CreateTimeout.Std()
	if !a.at.Equal(b.AssignedAt) {
		*a = firstRead(b.AssignedAt, now, timeout)
	}
	return timeout - time.Since(a.from)
}

// firstRead begins to count the time limit of a create. The two times are when the assignment was appended, and when
// this process reads the assignment for the first time, both by the store's clock. The time in between counts, too,
// unless it is negative or too long to be right. Otherwise, a host with a wrong clock would fail each create at once.
// Such a host would stay empty, so the scheduler would choose it for all creates.
func firstRead(at, now time.Time, timeout time.Duration) assignment {
	age := now.Sub(at)
	if age < 0 || age > timeout+maxLateness {
		age = 0
	}
	return assignment{at, time.Now().Add(-age)}
}

// timeoutError is the error of a sandbox that was not ready in time because of err.
func timeoutError(b *protocol.Sandbox, err error) *protocol.Error {
	why := protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout,
		"not ready within %s: %v", b.Spec.CreateTimeout, err)
	why.Field = protocol.AsError(err).Field
	return why
}

// creation is one try to create the sandbox. Each step fills in the fields that later steps need.
type creation struct {
	s *Sandbox
	b *protocol.Sandbox

	mounts   []hostfiles.Binding // the spec's mounts
	image    docker.Image
	dir      hostdir.Dir
	secret   []byte             // authenticates the supervisor's exit records
	earlier  bool               // an earlier try may have made the network
	bindings hostfiles.Bindings // mounts of the spec and of its tools
	targets  []string           // paths in the container at which something is mounted
	volumes  []string           // paths in the container that the image declares as volumes
	rules    firewall.Network   // firewall rules of the sandbox's network
}

func (c *creation) run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	release, err := c.getImage(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := c.makeDir(ctx); err != nil {
		return err
	}
	if err := c.makeNetwork(ctx); err != nil {
		return err
	}
	id, p, err := c.launch(ctx)
	if err != nil {
		return err
	}
	if err := c.awaitReady(ctx, p); err != nil {
		return err
	}
	return c.appendReady(ctx, id, p)
}

// check returns an error if the host does not offer what the spec needs.
func (c *creation) check() (err error) {
	host, spec := c.s.host, &c.b.Spec
	if err := host.Check(spec); err != nil {
		return err
	}
	if err := host.Network.Check(spec); err != nil {
		return err
	}
	if err := network.CheckPorts(host.Ports, spec); err != nil {
		return err
	}
	c.mounts, err = host.Files.Check(spec)
	return err
}

func (c *creation) getImage(ctx context.Context) (release func(), err error) {
	if err := c.s.phases.enter(c.b, "image"); err != nil {
		return nil, err
	}
	pull := c.b.Spec.Pull
	if pull == protocol.PullAlways && c.s.local.container.ID != "" { // an earlier try has pulled the image
		pull = protocol.PullMissing
	}
	c.image, release, err = c.s.containers().Image(ctx, c.b.Generation, c.b.Spec.Image, pull)
	return release, err
}

// makeDir makes the sandbox's directory, with all files that a start of the container needs.
func (c *creation) makeDir(ctx context.Context) (err error) {
	s, spec := c.s, &c.b.Spec
	c.dir = s.host.Dirs.Of(s.key, c.b.Generation)
	_, err = c.dir.Secret()
	c.earlier = err == nil
	if c.secret, err = c.dir.Create(); err != nil {
		return err
	}
	if err := c.dir.WriteEtc(hostname(c.b, s.key)); err != nil {
		return err
	}
	user, cwd := cmp.Or(spec.User, c.image.User), cmp.Or(spec.Cwd, c.image.Cwd)
	if c.bindings, err = s.host.Files.Choose(spec, c.dir, c.mounts, c.homeOf(ctx, user)); err != nil {
		return err
	}
	c.targets = append(mountTargets(spec, c.bindings), hostdir.EtcTargets...)
	if c.volumes, err = hostfiles.Volumes(c.image, c.targets, "spec.image"); err != nil {
		return err
	}
	if err := hostfiles.CheckCopies(spec, "", c.volumes, c.targets); err != nil {
		return err
	}
	return c.dir.SaveDefaults(hostdir.Defaults{User: user, Cwd: cwd, Volumes: c.volumes, StopSignal: c.image.StopSignal})
}

func (c *creation) makeNetwork(ctx context.Context) (err error) {
	if err := c.s.phases.enter(c.b, "network"); err != nil {
		return err
	}
	if c.rules, err = c.s.networks.make(ctx, c.b, c.earlier); err != nil {
		return err
	}
	c.s.services.networkExists()
	return nil
}

const maxPortTries = 5

// launch makes the container if it does not exist, and starts it. If another process has taken a port that the worker
// chose, launch removes the container, and makes a new container with another port.
func (c *creation) launch(ctx context.Context) (id string, p *primary, err error) {
	s := c.s
	id = s.local.container.ID
	for try := 1; ; try++ {
		if id == "" {
			if id, err = c.makeContainer(ctx); err != nil {
				return "", nil, err
			}
		}
		p, err = c.start(ctx, id)
		named, retry := network.PortConflict(err, c.b.Spec.Ports)
		if !retry || try == maxPortTries {
			return id, p, named
		}
		s.log.Info("another process took a host port chosen for the sandbox; choosing another port", "error", err)
		if err := s.host.Engine.RemoveContainer(ctx, id); err != nil {
			return "", nil, err
		}
		id, s.local.container, s.local.Container = "", docker.Container{}, decide.ContainerAbsent
	}
}

func (c *creation) makeContainer(ctx context.Context) (id string, err error) {
	s, spec := c.s, &c.b.Spec
	ports, err := s.host.Network.ChoosePorts(s.host.Ports, spec.Ports, s.log)
	if err != nil {
		return "", err
	}
	if err := s.phases.enter(c.b, "container"); err != nil {
		return "", err
	}
	gpus, err := s.host.GPUs.Take(s.key, spec.GPUCount())
	if err != nil {
		return "", err
	}
	container, err := c.containerSpec(gpus)
	if err != nil {
		return "", err
	}
	container.Ports = ports
	s.host.Probe("before-container-create")
	err = s.awaitEngine(func() error {
		id, err = s.host.Engine.CreateContainer(ctx, container)
		return hosterr.WithField(err, docker.ReasonNoDiskQuota, "spec.disk")
	})
	s.host.Probe("after-container-create")
	return id, err
}

// start copies the spec's trees into the container, starts the container if it does not run, and connects to its
// supervisor. If the container ran before, start copies no trees, because processes in the container may have changed
// the trees of an earlier copy.
func (c *creation) start(ctx context.Context, id string) (*primary, error) {
	s := c.s
	found := s.local.Container
	if found == decide.ContainerAbsent || found == decide.ContainerMade {
		if err := s.containers().CopyTrees(ctx, id, "", c.b.Spec.Copies, c.targets); err != nil {
			return nil, err
		}
	}
	if found != decide.ContainerRunning {
		if err := s.phases.enter(c.b, "start"); err != nil {
			return nil, err
		}
		if err := s.host.Network.Restore(c.rules); err != nil {
			return nil, err
		}
	}
	return (&starter{s, c.b}).start(ctx, c.dir, c.secret, docker.Container{ID: id})
}

// awaitReady waits for the required services, and for the sandbox's own command.
func (c *creation) awaitReady(ctx context.Context, p *primary) error {
	if err := c.s.services.awaitReady(ctx, p); err != nil {
		return err
	}
	var from time.Time
	if len(c.b.Spec.RequiredServices) > 0 {
		from = time.Now()
	}
	return p.awaitSteady(ctx, c.b, from)
}

func (c *creation) appendReady(ctx context.Context, id string, p *primary) error {
	s := c.s
	s.host.Probe("before-ready")
	err := s.phases.append(ctx, c.b, func(st *protocol.State) []protocol.Event {
		return decide.Ready(st, s.conn.ownRun(), &protocol.SandboxDetails{
			Image: c.image.ID, Digest: c.image.Digest, Isolation: cmp.Or(c.b.Spec.Runtime, s.host.Runtime),
			Container: id, Subnet: c.rules.Subnet.String(), Boot: p.Boot, Ports: p.ports,
		})
	})
	s.host.Probe("after-ready")
	return err
}
