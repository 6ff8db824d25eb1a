package worker

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

// create makes a sandbox: everything that is not there yet, so that it goes on where an earlier
// try was broken off. An error that will not go away by trying fails the sandbox.
func (s *sandbox) create(ctx context.Context, b *protocol.Sandbox) error {
	if why := s.stoppedForDisk(b.Generation); why != nil {
		return s.failCreate(ctx, b, why)
	}
	making, cancel := context.WithTimeout(ctx, s.createLeft(b))
	defer cancel()
	endTelling := s.tellPhases(making, b)
	err := s.make(making, b)
	endTelling()
	switch {
	case err == nil:
		s.forgetPhases()
		return nil
	case errors.Is(err, errSuperseded), ctx.Err() != nil:
		return err
	case making.Err() != nil:
		return s.failCreate(ctx, b, overdue(b, err))
	case hosterr.Temporary(err) && !hosterr.DiskFull(err): // another host has room
		return err
	}
	return s.failCreate(ctx, b, protocol.AsError(err))
}

// assignment is when this process first saw an assignment of the sandbox, by its own monotonic clock.
type assignment struct {
	at   time.Time // of the event
	from time.Time // the create's time counts from here
}

// lateAtMost is how long after the end of its time a create can still be wanted: the coordinators end it then.
const lateAtMost = time.Minute

// createLeft is what is left of the time in which the sandbox must be ready. It is counted by this process
// alone, so that no clock that is set meanwhile ends it. What was used up before this process saw the
// assignment is what the store's clock says, unless that cannot be: it would then fail each create without a
// try, and its host, empty for that, would attract all of them.
func (s *sandbox) createLeft(b *protocol.Sandbox) time.Duration {
	whole := b.Spec.CreateTimeout.Std()
	if !s.assigned.at.Equal(b.AssignedAt) {
		s.assigned = seenFirst(b.AssignedAt, s.w.conn.Now(), whole)
	}
	return whole - time.Since(s.assigned.from)
}

func seenFirst(at, now time.Time, whole time.Duration) assignment {
	age := now.Sub(at)
	if age < 0 || age > whole+lateAtMost {
		age = 0
	}
	return assignment{at, time.Now().Add(-age)}
}

// overdue is what a sandbox fails with that is not ready in time, because of err.
func overdue(b *protocol.Sandbox, err error) *protocol.Error {
	why := protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "not ready within %s: %v", b.Spec.CreateTimeout, err)
	why.Field = protocol.AsError(err).Field
	return why
}

func (s *sandbox) make(ctx context.Context, b *protocol.Sandbox) error {
	if err := s.w.abilities.Check(&b.Spec); err != nil {
		return err
	}
	if err := s.w.isolation.Check(&b.Spec); err != nil {
		return err
	}
	if err := network.CheckPorts(s.w.ports, &b.Spec); err != nil {
		return err
	}
	mounts, err := s.w.files.Check(&b.Spec)
	if err != nil {
		return err
	}
	if err := s.phase(b, "image"); err != nil {
		return err
	}
	pull := b.Spec.Pull
	if pull == protocol.PullAlways && s.container.ID != "" { // an earlier try came so far
		pull = protocol.PullMissing
	}
	image, release, err := s.image(ctx, b.Generation, b.Spec.Image, pull)
	if err != nil {
		return err
	}
	defer release()
	d := s.w.dirs.Of(s.key, b.Generation)
	_, noKey := d.Secret()
	before := noKey == nil // an earlier try came so far; it may have made a network
	secret, err := d.Create()
	if err != nil {
		return err
	}
	user, cwd := b.Spec.User, b.Spec.Cwd
	if user == "" {
		user = image.User
	}
	if cwd == "" {
		cwd = image.Cwd
	}
	if err := d.WriteEtc(s.hostname(b)); err != nil {
		return err
	}
	bound, err := s.w.files.Choose(&b.Spec, d, mounts, s.homeOf(ctx, b, image, user))
	if err != nil {
		return err
	}
	mounted := append(mountTargets(&b.Spec, bound), hostdir.EtcTargets...)
	volumes, err := hostfiles.Volumes(image, mounted, "spec.image")
	if err != nil {
		return err
	}
	if err := hostfiles.CheckCopies(&b.Spec, "", volumes, mounted); err != nil {
		return err
	}
	if err := d.SaveDefaults(hostdir.Defaults{User: user, Cwd: cwd, Volumes: volumes, StopSignal: image.StopSignal}); err != nil {
		return err
	}
	if err := s.phase(b, "network"); err != nil {
		return err
	}
	rules, err := s.network(ctx, b, before)
	if err != nil {
		return err
	}
	s.letServicesIn()
	create := func(ports []protocol.Port) (id string, err error) {
		if err := s.phase(b, "container"); err != nil {
			return "", err
		}
		gpus, err := s.w.gpus.Take(s.key, b.Spec.GPUCount())
		if err != nil {
			return "", err
		}
		spec := s.containerSpec(b, d, image, bound, gpus)
		spec.Ports, spec.DNS = ports, s.w.isolation.NameServers(&b.Spec)
		hostfiles.CoverVolumes(&spec, volumes, b.Spec.Memory)
		s.w.cfg.Probe("before-container-create")
		err = s.whole(func() error {
			id, err = s.w.engine.CreateContainer(ctx, spec)
			return naming(err, docker.ReasonNoDiskQuota, "spec.disk")
		})
		s.w.cfg.Probe("after-container-create")
		return id, err
	}
	id, a, err := s.launch(ctx, b, create, func(id string) (*attachment, error) {
		if s.inspection.Container == decide.ContainerAbsent || s.inspection.Container == decide.ContainerMade { // one that ran has changed what was copied
			if err := s.copyTrees(ctx, id, "", b.Spec.Copies, mounted); err != nil {
				return nil, err
			}
		}
		if s.inspection.Container != decide.ContainerRunning {
			if err := s.phase(b, "start"); err != nil {
				return nil, err
			}
			if err := s.w.isolation.Restore(rules); err != nil {
				return nil, err
			}
		}
		return s.start(ctx, b, d, secret, docker.Container{ID: id})
	})
	if err != nil {
		return err
	}
	if err := s.servicesReady(ctx, a); err != nil {
		return err
	}
	var from time.Time
	if len(b.Spec.RequiredServices) > 0 {
		from = time.Now()
	}
	if err := s.primarySteady(ctx, b, a, from); err != nil {
		return err
	}
	s.w.cfg.Probe("before-ready")
	err = s.afterPhases(ctx, b, func(st *protocol.State) []protocol.Event {
		return decide.Ready(st, s.ownRun(), &protocol.SandboxDetails{
			Image: image.ID, Digest: image.Digest, Isolation: cmp.Or(b.Spec.Runtime, s.w.info.Runtime), Container: id, Subnet: rules.Subnet.String(), Boot: a.boot, Ports: a.ports,
		})
	})
	s.w.cfg.Probe("after-ready")
	return err
}

// naming sets the field of an error with this reason.
func naming(err error, reason, field string) error {
	var e *protocol.Error
	if errors.As(err, &e) && e.Reason == reason {
		named := *e
		named.Field = field
		return &named
	}
	return err
}

// network makes the sandbox's network on a subnet of its own, or finds the one that an earlier try
// made: before says that there was one. Its rules are there before it is.
func (s *sandbox) network(ctx context.Context, b *protocol.Sandbox, before bool) (firewall.Network, error) {
	if before || b.Phase != "" {
		if n, found, err := s.networkOfBefore(ctx); found || err != nil {
			return n, err
		}
	}
	policy, err := firewall.PolicyOf(b.Spec.Network)
	if err != nil {
		return firewall.Network{}, err
	}
	labels := s.labels(b)
	labels[docker.LabelNetwork] = policy.String()
	for {
		subnet, err := s.w.subnets.Take()
		if err != nil {
			return firewall.Network{}, err
		}
		n := firewall.Network{Bridge: firewall.BridgeName(subnet), Subnet: subnet, Policy: policy}
		if s.w.isolation.BridgeExists(n.Bridge) { // somebody else's, or an orphan: the engine would take it for its own
			s.w.subnets.MarkForeign(subnet)
			continue
		}
		if err := s.w.isolation.Protect(n); err != nil {
			s.w.subnets.Release(subnet)
			return n, err
		}
		s.w.cfg.Probe("before-network-create")
		err = s.whole(func() error {
			return s.w.engine.CreateNetwork(ctx, docker.NetworkSpec{Name: s.name(), Subnet: subnet, Bridge: n.Bridge, Labels: labels})
		})
		s.w.cfg.Probe("after-network-create")
		if err == nil {
			s.w.subnets.Use(subnet)
			return n, s.w.isolation.Verify(n)
		}
		// The engine may have made it nevertheless: what the list of networks has is protected again.
		if lost := s.w.isolation.Unprotect(n.Bridge); lost != nil {
			s.log.Warn("the rules of a network that was not made are left", "error", lost)
		}
		if protocol.CodeOf(err) == protocol.AlreadyExists && !before { // the machine lost what the earlier try left beside it
			s.w.subnets.Release(subnet)
			if n, found, findErr := s.networkOfBefore(ctx); found || findErr != nil {
				return n, findErr
			}
			return n, err
		}
		if !errors.Is(err, docker.ErrSubnetOverlap) {
			s.w.subnets.Release(subnet)
			return n, err
		}
		s.w.subnets.MarkForeign(subnet)
	}
}

// networkOfBefore finds the network that an earlier try made, and makes sure of its rules.
func (s *sandbox) networkOfBefore(ctx context.Context) (n firewall.Network, found bool, err error) {
	there, found, err := s.findNetwork(ctx)
	if err != nil || !found {
		return n, false, err
	}
	s.w.subnets.Use(there.Subnet)
	n = network.RulesOf(there)
	if err := s.w.isolation.Protect(n); err != nil {
		return n, true, err
	}
	return n, true, s.w.isolation.Verify(n)
}
