package worker

import (
	"context"
	"path"
	"slices"
	"sort"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// raise makes the container and places the trees that are for it, where that was not done, starts it,
// where it does not run, and connects to its supervisor.
func (v *service) raise(ctx context.Context) error {
	c, err := v.inspect(ctx)
	if err != nil {
		return err
	}
	if c.ID != "" && docker.GenerationOf(c.Labels) != v.generation {
		if err := v.s.w.engine.RemoveContainer(ctx, c.ID); err != nil {
			return err
		}
		c = docker.Container{}
	}
	d := v.directory()
	if c.ID == "" {
		if c.ID, err = v.make(ctx, d); err != nil {
			return err
		}
	}
	secret, err := d.Secret()
	if err != nil && hosterr.Temporary(err) {
		return err
	}
	if err != nil {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the service's directory is gone")
	}
	if v.health, err = v.healthcheck(d); err != nil {
		return err
	}
	// Also where an earlier try came so far; one that ran before has changed what was copied.
	if !c.Running && c.StartedAt.IsZero() {
		if err := v.s.copyTrees(ctx, c.ID, v.name, v.sandbox.Copies, hostdir.EtcTargets); err != nil {
			return err
		}
		v.s.w.cfg.Probe("after-service-copy")
	}
	a, err := v.s.listenIn(d, secret, control.Welcome{Grace: v.sandbox.Grace.Std()}, v.heard, v.primary)
	if err != nil {
		return err
	}
	if err := v.connect(ctx, d, a, c); err != nil {
		a.close()
		return err
	}
	return nil
}

// make makes the container of a service that is brought up for the first time. One that was there
// before and is gone is not repaired in secret.
func (v *service) make(ctx context.Context, d hostdir.Dir) (string, error) {
	if status := v.status(); status.State != protocol.ServiceStateStarting || status.Resumed {
		return "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the service's container is gone")
	}
	if err := v.s.w.abilities.CheckService(&v.sandbox, v.name); err != nil {
		return "", err
	}
	image, release, err := v.s.image(ctx, v.generation, v.spec.Image, v.sandbox.Pull)
	if err != nil {
		return "", err
	}
	defer release()
	command := v.spec.Command
	if len(command) == 0 {
		command = image.Cmd
	}
	field := v.sandbox.ServiceField(v.name) + ".image"
	volumes, err := hostfiles.Volumes(image, hostdir.EtcTargets, field)
	if err != nil {
		return "", err
	}
	if err := hostfiles.CheckCopies(&v.sandbox, v.name, volumes, nil); err != nil {
		return "", err
	}
	defaults := hostdir.Defaults{
		Volumes: volumes,
		User:    v.spec.User, Cwd: image.Cwd, Command: append(slices.Clone(image.Entrypoint), command...),
		StopSignal: image.StopSignal, Healthcheck: image.Healthcheck,
	}
	if len(defaults.Command) == 0 {
		return "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "the image has no command, and the spec neither")
	}
	if defaults.User == "" {
		defaults.User = image.User
	}
	if _, err := d.Create(); err != nil {
		return "", err
	}
	if err := d.SaveDefaults(defaults); err != nil {
		return "", err
	}
	if err := d.WriteEtc(v.name); err != nil {
		return "", err
	}
	select {
	case <-v.linked:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	v.s.w.cfg.Probe("before-service-create")
	spec := v.containerSpec(d, image)
	hostfiles.CoverVolumes(&spec, volumes, v.spec.Memory)
	id, err := v.s.w.engine.CreateContainer(context.WithoutCancel(ctx), spec)
	v.s.w.cfg.Probe("after-service-create")
	return id, naming(err, docker.ReasonNoDiskQuota, v.sandbox.ServiceField(v.name)+".disk")
}

// containerSpec is the service's container.
func (v *service) containerSpec(d hostdir.Dir, image docker.Image) docker.ContainerSpec {
	s := v.s
	at := func(name string) string { return path.Join(control.ContainerAt, name) }
	spec := docker.ContainerSpec{
		Name: s.serviceName(v.name), Image: image.ID,
		Hostname: v.name, Network: s.name(), Aliases: []string{v.name},
		Labels: map[string]string{
			docker.LabelTenant: s.key.Tenant, docker.LabelSandbox: s.key.ID, docker.LabelRole: "service", docker.LabelService: v.name,
			docker.LabelGeneration: strconv.FormatUint(v.generation, 10), docker.LabelDirectory: d.Path,
		},
		DNS: s.w.isolation.NameServers(&v.sandbox), CPU: v.spec.CPU, Memory: int64(v.spec.Memory), PIDs: v.spec.PIDs, Disk: int64(v.spec.Disk), Runtime: v.sandbox.Runtime,
		Binds: append([]docker.Bind{
			{Source: s.w.supervisor, Target: at("supervisor"), ReadOnly: true},
			{Source: d.Ctl(), Target: at("ctl"), ReadOnly: true},
		}, d.EtcBinds(nil)...),
	}
	setProfile(&spec, v.spec.Capabilities())
	for name, value := range v.spec.Env {
		spec.Env = append(spec.Env, name+"="+value)
	}
	sort.Strings(spec.Env)
	return spec
}

// connect starts the container, where it does not run, and waits for its supervisor.
func (v *service) connect(ctx context.Context, d hostdir.Dir, a *attachment, c docker.Container) error {
	epoch := v.s.w.epoch.Load()
	if !c.Running {
		v.isDown()
		if err := v.s.w.engine.Ping(ctx); err != nil { // one that is about to end still answers on connections that it has
			return err
		}
		if err := v.s.protectAgain(ctx, &v.sandbox); err != nil {
			return err
		}
		v.s.w.cfg.Probe("before-service-start")
		// The engine's answer is waited for: it goes on with a request that nobody waits for.
		if err := v.s.w.engine.StartContainer(context.WithoutCancel(ctx), c.ID); err != nil {
			return err
		}
		v.s.w.cfg.Probe("after-service-start")
		v.s.mu.Lock()
		v.proc = control.Primary{}
		v.s.mu.Unlock()
	}
	c, err := v.s.w.engine.Inspect(ctx, c.ID)
	if err != nil {
		return err
	}
	if !c.Running {
		if err := v.s.w.sameEngine(ctx, epoch); err != nil {
			return err
		}
		return v.ended(c)
	}
	v.epoch = epoch
	if err := d.SetAddress(c.Hostname, c.Address); err != nil {
		return err
	}
	v.s.w.limitTerminals(c.Pid)
	if err := uncoverVolumes(d, c.Pid); err != nil {
		return err
	}
	if err := a.greet(ctx, c.Pid); err != nil {
		return err
	}
	v.s.w.cfg.Probe("after-service-hello")
	v.s.mu.Lock()
	v.attached, v.down, v.givenUp = a, false, false
	v.s.mu.Unlock()
	v.s.wakeUp() // execs may wait for it
	return nil
}

func (v *service) isDown() {
	v.s.mu.Lock()
	v.down = true
	v.s.mu.Unlock()
	v.s.wakeUp()
}

// inspect returns the service's container, the zero value when there is none.
func (v *service) inspect(ctx context.Context) (docker.Container, error) {
	return v.s.inspectNamed(ctx, v.s.serviceName(v.name))
}

// look says why the container that was attached no longer runs, nil where it does.
func (v *service) look(ctx context.Context) error {
	v.s.mu.Lock()
	a, dirty := v.attached, v.dirty
	v.dirty = false
	v.s.mu.Unlock()
	if !dirty || a == nil {
		return nil
	}
	epoch := v.s.w.epoch.Load()
	c, err := v.inspect(ctx)
	if err != nil {
		v.s.mu.Lock()
		v.dirty = true
		v.s.mu.Unlock()
		return err
	}
	if c.Running && c.Pid == a.pid {
		v.epoch = epoch
		return nil
	}
	v.s.mu.Lock()
	v.down = true
	v.s.mu.Unlock()
	v.detach()
	v.s.wakeUp() // its execs end
	if c.ID == "" {
		if err := v.s.w.engine.Ping(ctx); err != nil {
			return err
		}
	} else if err := v.s.w.sameEngine(ctx, v.epoch); err != nil {
		return err
	}
	return v.ended(c)
}

// ended says how the container ended.
func (v *service) ended(c docker.Container) *protocol.Error {
	switch {
	case c.ID == "":
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the service's container is gone")
	case endedForMemory(c):
		return v.outOfMemory()
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited, "the service's container ended with exit code %d %s", c.ExitCode, c.Error)
}

func (v *service) outOfMemory() *protocol.Error {
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled, "the service ran out of memory (%s)", v.spec.Memory)
}
