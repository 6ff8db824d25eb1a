package worker

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// helloWithin is how long a supervisor may take to connect once its container runs.
const helloWithin = 20 * time.Second

// create makes a sandbox: everything that is not there yet, so that it goes on where an earlier
// try was broken off. An error that will not go away by trying fails the sandbox.
func (s *sandbox) create(ctx context.Context, b *protocol.Sandbox) error {
	deadline := b.AssignedAt.Add(b.Spec.CreateTimeout.Std())
	making, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := s.make(making, b)
	switch {
	case err == nil, errors.Is(err, errSuperseded), ctx.Err() != nil:
		return err
	case making.Err() != nil:
		return s.fail(ctx, b, protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "not ready within %s: %v", b.Spec.CreateTimeout, err))
	case passing(err):
		return err
	}
	return s.fail(ctx, b, protocol.AsError(err))
}

// passing says whether an error may go away by itself.
func passing(err error) bool {
	e := protocol.AsError(err)
	switch e.Code {
	case protocol.Unavailable:
		switch e.Reason {
		case protocol.ReasonImagePullFailed, protocol.ReasonImagePullStalled, protocol.ReasonRegistryUnreachable:
			return false // it was tried long enough
		}
		return true
	case protocol.DeadlineExceeded, protocol.Cancelled:
		return true
	}
	return e.Reason == protocol.ReasonLeaseLost || e.Reason == protocol.ReasonNoNetwork // one may be given back
}

func (s *sandbox) make(ctx context.Context, b *protocol.Sandbox) error {
	if err := s.w.abilities.check(&b.Spec); err != nil {
		return err
	}
	if err := s.w.isolation.check(&b.Spec); err != nil {
		return err
	}
	mounts, err := s.w.planBindings(&b.Spec)
	if err != nil {
		return err
	}
	if err := s.phase(ctx, b, "image"); err != nil {
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
	d := s.w.directory(s.key, b.Generation)
	secret, err := d.make()
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
	if err := d.saveDefaults(defaults{User: user, Cwd: cwd, StopSignal: image.StopSignal}); err != nil {
		return err
	}
	bound, err := s.keepBindings(ctx, b, d, image, user, mounts)
	if err != nil {
		return err
	}
	if err := s.phase(ctx, b, "network"); err != nil {
		return err
	}
	network, err := s.network(ctx, b)
	if err != nil {
		return err
	}
	s.letServicesIn()
	create := func(ports []protocol.Port) (id string, err error) {
		if err := s.phase(ctx, b, "container"); err != nil {
			return "", err
		}
		spec := s.containerSpec(b, d, image, bound)
		spec.Ports, spec.DNS = ports, s.w.isolation.servers(&b.Spec)
		s.w.cfg.Probe("before-container-create")
		err = s.whole(func() error {
			id, err = s.w.engine.CreateContainer(ctx, spec)
			return naming(err, docker.ReasonNoDiskQuota, "spec.disk")
		})
		s.w.cfg.Probe("after-container-create")
		return id, err
	}
	id, a, err := s.launch(ctx, b, create, func(id string) (*attachment, error) {
		if s.seen.container != containerRunning {
			if err := s.copyTrees(ctx, id, "", b.Spec.Copies); err != nil {
				return nil, err
			}
			if err := s.phase(ctx, b, "start"); err != nil {
				return nil, err
			}
		}
		return s.start(ctx, b, d, secret, id)
	})
	if err != nil {
		return err
	}
	if err := s.servicesReady(ctx); err != nil {
		return err
	}
	s.w.cfg.Probe("before-ready")
	err = s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		if st.Sandbox.State != protocol.StatePending {
			return nil
		}
		return []protocol.Event{{Kind: protocol.SandboxReady, Phase: &protocol.SandboxDetails{
			Image: image.ID, Digest: image.Digest, Isolation: s.w.info.Runtime, Container: id, Subnet: network.Subnet.String(), Boot: a.boot, Ports: a.ports,
		}}}
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

// phase appends how far the create is, once per phase.
func (s *sandbox) phase(ctx context.Context, b *protocol.Sandbox, phase string) error {
	order := map[string]int{"": 0, "image": 1, "network": 2, "container": 3, "start": 4}
	if order[b.Phase] >= order[phase] {
		return nil
	}
	s.w.cfg.Probe("before-phase-" + phase)
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		if st.Sandbox.State != protocol.StatePending {
			return nil
		}
		return []protocol.Event{{Kind: protocol.SandboxPreparing, Phase: &protocol.SandboxDetails{Phase: phase}}}
	})
	s.w.cfg.Probe("after-phase-" + phase)
	return err
}

// network makes the sandbox's network on a subnet of its own, or finds the one that an earlier try
// made. Its rules are there before it is.
func (s *sandbox) network(ctx context.Context, b *protocol.Sandbox) (firewall.Network, error) {
	if b.Phase != "" { // an earlier try came so far; it may have made one
		found, ok, err := s.findNetwork(ctx)
		if err != nil {
			return firewall.Network{}, err
		}
		if ok {
			s.w.subnets.use(found.Subnet)
			n := protectedNetwork(found)
			if err := s.w.protect(n); err != nil {
				return n, err
			}
			return n, s.w.protected(n)
		}
	}
	policy, err := firewall.PolicyOf(b.Spec.Network)
	if err != nil {
		return firewall.Network{}, err
	}
	labels := s.labels(b)
	labels[docker.LabelNetwork] = policy.String()
	for {
		subnet, err := s.w.subnets.take()
		if err != nil {
			return firewall.Network{}, err
		}
		n := firewall.Network{Bridge: firewall.BridgeName(subnet), Subnet: subnet, Policy: policy}
		if s.w.bridgeExists(n.Bridge) { // somebody else's, or an orphan: the engine would take it for its own
			s.w.subnets.passOver(subnet)
			continue
		}
		if err := s.w.protect(n); err != nil {
			s.w.subnets.give(subnet)
			return n, err
		}
		s.w.cfg.Probe("before-network-create")
		err = s.whole(func() error {
			return s.w.engine.CreateNetwork(ctx, docker.NetworkSpec{Name: s.name(), Subnet: subnet, Bridge: n.Bridge, Labels: labels})
		})
		s.w.cfg.Probe("after-network-create")
		if err == nil {
			return n, s.w.protected(n)
		}
		// The engine may have made it nevertheless: what the list of networks has is protected again.
		if lost := s.w.unprotect(n.Bridge); lost != nil {
			s.log.Warn("the rules of a network that was not made are left", "error", lost)
		}
		if !errors.Is(err, docker.ErrSubnetOverlap) { // what overlaps stays taken
			s.w.subnets.give(subnet)
			return n, err
		}
	}
}

func (s *sandbox) labels(b *protocol.Sandbox) map[string]string {
	return map[string]string{
		docker.LabelTenant: s.key.tenant, docker.LabelSandbox: s.key.id, docker.LabelRole: "primary",
		docker.LabelGeneration: strconv.FormatUint(b.Generation, 10),
	}
}

// containerSpec is the sandbox's primary container.
func (s *sandbox) containerSpec(b *protocol.Sandbox, d directory, image docker.Image, bound bindingList) docker.ContainerSpec {
	at := func(name string) string { return path.Join(control.ContainerAt, name) }
	spec := docker.ContainerSpec{
		Name: s.name(), Image: image.ID,
		Hostname: s.key.id, Network: s.name(), Labels: s.labels(b),
		CPU: b.Spec.CPU, Memory: int64(b.Spec.Memory), PIDs: b.Spec.PIDs,
		Binds: append([]docker.Bind{
			{Source: s.w.supervisor, Target: at("supervisor"), ReadOnly: true},
			{Source: d.ctl(), Target: at("ctl"), ReadOnly: true},
			{Source: d.run(), Target: at("run")},
		}, d.binds(bound.Bindings)...),
	}
	spec.Labels[docker.LabelDirectory] = d.path
	if b.Spec.Hostname != "" {
		spec.Hostname = b.Spec.Hostname
	}
	setProfile(&spec, b.Spec.Profile)
	spec.ReadOnlyRoot, spec.Runtime, spec.GPUs = b.Spec.ReadOnly, b.Spec.Runtime, b.Spec.GPUCount()
	spec.ShmSize, spec.Disk = int64(b.Spec.ShmSize), int64(b.Spec.Disk)
	spec.Tmpfs = map[string]int64{}
	for _, m := range b.Spec.Tmpfs {
		spec.Tmpfs[m.Target] = int64(m.Size)
		if m.Size == 0 {
			spec.Tmpfs[m.Target] = int64(b.Spec.Memory / 2)
		}
	}
	env := maps.Clone(bound.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, b.Spec.Env)
	for name, value := range env {
		spec.Env = append(spec.Env, name+"="+value)
	}
	sort.Strings(spec.Env)
	return spec
}

// setProfile makes the supervisor process 1 of a container, as root. With the hardened profile it has
// the few capabilities that it needs to start commands as others, without these capabilities, and to
// end them; with the standard one, those that commands run as root are to have.
func setProfile(spec *docker.ContainerSpec, profile string) {
	spec.User, spec.Cwd, spec.NoNewPrivileges = "0:0", "/", true
	spec.Entrypoint = []string{path.Join(control.ContainerAt, "supervisor")}
	spec.CapDrop, spec.CapAdd = []string{"ALL"}, []string{"SETUID", "SETGID", "KILL", "SETPCAP"}
	if profile == protocol.ProfileStandard {
		spec.Entrypoint = append(spec.Entrypoint, "-privileged")
		spec.CapAdd = append(slices.Clone(standardCapabilities), control.OwnCapability)
	}
}

// standardCapabilities are Docker's default ones without NET_RAW, which forges packets, and MKNOD,
// which makes device files.
var standardCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// start starts the container, where it does not run, and waits for its supervisor.
func (s *sandbox) start(ctx context.Context, b *protocol.Sandbox, d directory, secret []byte, id string) (*attachment, error) {
	s.detach() // of an earlier try
	a, err := s.listen(b, d, secret)
	if err != nil {
		return nil, err
	}
	var mounted *shown
	defer func() { mounted.close() }()
	if s.seen.container != containerRunning {
		mounted, err = s.startMounted(ctx, d, id)
	} else if _, unverified := os.Stat(d.unverified()); unverified == nil { // a worker that started it came no further
		mounted, err = s.w.openBindings(d)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	c, err := s.w.engine.Inspect(ctx, id)
	if err == nil && !c.Running {
		err = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited, "the container ended at once, with exit code %d %s", c.ExitCode, c.Error)
	}
	if err == nil && mounted != nil {
		if err = mounted.verify(c.Pid); err != nil {
			err = errors.Join(err, s.w.engine.KillContainer(ctx, id))
		}
	}
	if err == nil {
		a.ports, err = givenPorts(b.Spec.Ports, c.Ports)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	s.w.cfg.Probe("before-hello")
	if err := a.greet(ctx, c.Pid); err != nil {
		a.close()
		return nil, err
	}
	s.w.cfg.Probe("after-hello")
	s.attach(a)
	return a, nil
}

// startMounted starts a container while the links of its mounts lead to their sources.
func (s *sandbox) startMounted(ctx context.Context, d directory, id string) (*shown, error) {
	mounted, err := s.w.openBindings(d)
	if err != nil {
		return nil, err
	}
	if err = mounted.show(); err == nil {
		s.w.cfg.Probe("before-container-start")
		err = s.whole(func() error { return s.w.engine.StartContainer(ctx, id) })
	}
	if hideErr := mounted.hide(); err == nil {
		err = hideErr
	}
	if err == nil {
		s.w.cfg.Probe("after-container-start")
	}
	return mounted, err
}

// resume starts a stopped sandbox's container again.
func (s *sandbox) resume(ctx context.Context, b *protocol.Sandbox) error {
	starting, cancel := context.WithDeadline(ctx, b.AssignedAt.Add(b.Spec.CreateTimeout.Std()))
	defer cancel()
	a, err := s.startAgain(starting, b)
	if err == nil {
		err = s.servicesReady(starting)
	}
	switch {
	case err == nil:
	case errors.Is(err, errSuperseded), ctx.Err() != nil, (passing(err) || portBusy(err)) && starting.Err() == nil:
		return err
	default:
		return s.fail(ctx, b, protocol.AsError(err))
	}
	s.w.cfg.Probe("before-resumed")
	err = s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		if st.Sandbox.State != protocol.StatePending {
			return nil
		}
		return []protocol.Event{{Kind: protocol.SandboxReady, Phase: &protocol.SandboxDetails{Boot: a.boot, Ports: a.ports}}}
	})
	s.w.cfg.Probe("after-resumed")
	return err
}

// startAgain starts a container that was made, and ran, before. What is missing is not repaired in
// secret.
func (s *sandbox) startAgain(ctx context.Context, b *protocol.Sandbox) (*attachment, error) {
	d := s.directory(b.Generation)
	secret, err := d.secret()
	if s.container.ID == "" || err != nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the sandbox's container or directory is gone")
	}
	if s.seen.container != containerRunning {
		if err := s.protectAgain(ctx); err != nil {
			return nil, err
		}
	}
	a, err := s.start(ctx, b, d, secret, s.container.ID)
	err, _ = portTaken(err, b.Ports)
	return a, err
}

// attachRunning connects to the supervisor of a container that runs, after a restart of the worker.
func (s *sandbox) attachRunning(ctx context.Context, b *protocol.Sandbox) error {
	a, err := s.startAgain(ctx, b)
	if err != nil && !passing(err) {
		return s.fail(ctx, b, protocol.AsError(err))
	}
	if err != nil || a.boot == b.Boot {
		return err
	}
	return s.restarted(ctx, b, a, protocol.ReasonContainerExited)
}

// restarted appends that the container was started again.
func (s *sandbox) restarted(ctx context.Context, b *protocol.Sandbox, a *attachment, reason string) error {
	return s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		if st.Sandbox.State != protocol.StateReady {
			return nil
		}
		return []protocol.Event{{Kind: protocol.SandboxRestarted, Reason: reason, Phase: &protocol.SandboxDetails{Boot: a.boot, Ports: a.ports}}}
	})
}

// maxRevivals is how often a container is started again in one tenure.
const maxRevivals = 5

// revive deals with a container that should run and does not. One that ended because the engine or
// the machine did is started again; one that ended by itself has failed.
func (s *sandbox) revive(ctx context.Context, b *protocol.Sandbox) error {
	c := s.container
	if err := s.runsEnded(ctx, b.Spec.Grace.Std(), ofPrimary); err != nil { // they read how they ended
		return err
	}
	switch {
	case c.ID == "":
		return s.fail(ctx, b, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the sandbox's container is gone"))
	case c.OOMKilled:
		return s.fail(ctx, b, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled, "the sandbox ran out of memory (%s)", b.Spec.Memory))
	}
	if s.epoch >= 0 { // it ran when it was last seen
		if err := s.w.engine.Ping(ctx); err != nil {
			return err
		}
		if s.epoch == s.w.epoch.Load() {
			return s.fail(ctx, b, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited, "the sandbox's container ended with exit code %d", c.ExitCode))
		}
	}
	if s.revived++; s.revived > maxRevivals {
		return s.fail(ctx, b, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
			"the sandbox's container does not keep running (exit code %d)", c.ExitCode))
	}
	a, err := s.startAgain(ctx, b)
	if err != nil {
		if portBusy(err) {
			s.revived--
			return err
		}
		if passing(err) {
			return err
		}
		return s.fail(ctx, b, protocol.AsError(err))
	}
	return s.restarted(ctx, b, a, protocol.ReasonEngineRestarted)
}

// Which execs' ends are waited for.
func ofPrimary(r *execRun) bool { return r.service == "" }
func ofAll(*execRun) bool       { return true }

// runsEnded waits until the goroutines of the execs that are meant have appended their ends.
func (s *sandbox) runsEnded(ctx context.Context, within time.Duration, meant func(*execRun) bool) error {
	ctx, cancel := context.WithTimeout(ctx, within+10*time.Second)
	defer cancel()
	s.mu.Lock()
	runs := make([]*execRun, 0, len(s.runs))
	for _, r := range s.runs {
		if meant(r) {
			runs = append(runs, r)
		}
	}
	s.mu.Unlock()
	for _, r := range runs {
		select {
		case <-r.done:
		case <-ctx.Done():
			return protocol.Errorf(protocol.DeadlineExceeded, "", "exec %s does not end", r.id)
		}
	}
	return nil
}
