package service

import (
	"context"
	"slices"
	"sort"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/secrets"
)

// raise makes the container of a service that starts for the first time, copies the uploaded trees into a container
// that has never run, starts the container if it does not run, and connects to its supervisor. If the container of a
// service that started before is gone, raise fails.
func (v *Service) raise(ctx context.Context) error {
	r := raising{v: v, dir: v.cfg.Dir()}
	c, err := inspect(ctx, v)
	if err != nil {
		return err
	}
	if c.ID != "" && docker.GenerationOf(c.Labels) != v.cfg.Generation {
		if err := v.cfg.Host.Engine.RemoveContainer(ctx, c.ID); err != nil {
			return err
		}
		c = docker.Container{}
	}
	if c.ID == "" {
		if c.ID, err = r.create(ctx); err != nil {
			return err
		}
	}
	secret, err := r.dir.Secret()
	if err != nil && hosterr.Temporary(err) {
		return err
	}
	if err != nil {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing,
			"the service's directory is gone")
	}
	if err := v.health.load(r.dir); err != nil {
		return err
	}
	// An earlier try may have made and started the container. Its processes may then have changed the copied trees, so
	// copy trees only into a container that never ran.
	if !c.Running && c.StartedAt.IsZero() {
		if err := v.cfg.Containers.CopyTrees(ctx, c.ID, v.cfg.Name, v.cfg.Sandbox.Copies, hostdir.EtcTargets); err != nil {
			return err
		}
		v.cfg.Host.Probe("after-service-copy")
	}
	a, err := r.listen(secret)
	if err != nil {
		return err
	}
	if err := r.connect(ctx, a, c); err != nil {
		a.Close()
		return err
	}
	return nil
}

// raising is the state of one call of raise.
type raising struct {
	v   *Service
	dir hostdir.Dir
}

// create makes the container of a service that starts for the first time. If the container is gone, create does not
// make a new container, because nobody would notice that the contents were lost. The error then has the reason
// container_missing.
func (r *raising) create(ctx context.Context) (string, error) {
	v := r.v
	if status := v.status(); status.State != protocol.ServiceStateStarting || status.Resumed {
		return "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing,
			"the service's container is gone")
	}
	if err := v.cfg.Host.CheckService(&v.cfg.Sandbox, v.cfg.Name); err != nil {
		return "", err
	}
	image, release, err := v.cfg.Containers.Image(ctx, v.cfg.Generation, v.spec.Image, v.cfg.Sandbox.Pull)
	if err != nil {
		return "", err
	}
	defer release()
	volumes, err := hostfiles.Volumes(image, hostdir.EtcTargets, field(v)+".image")
	if err != nil {
		return "", err
	}
	if err := hostfiles.CheckCopies(&v.cfg.Sandbox, v.cfg.Name, volumes, nil); err != nil {
		return "", err
	}
	if err := r.writeDir(image, volumes); err != nil {
		return "", err
	}
	select {
	case <-v.netUp:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	v.cfg.Host.Probe("before-service-create")
	spec := r.containerSpec(image)
	hostfiles.CoverVolumes(&spec, volumes, v.spec.Memory)
	named := secrets.OfService(&v.cfg.Sandbox, v.cfg.Name)
	if err := hostfiles.MountSecrets(&spec, named.Files(), nil, volumes, v.cfg.Sandbox.Copies, v.cfg.Name); err != nil {
		return "", err
	}
	id, err := v.cfg.Host.Engine.CreateContainer(context.WithoutCancel(ctx), spec)
	v.cfg.Host.Probe("after-service-create")
	return id, hosterr.WithField(err, docker.ReasonNoDiskQuota, field(v)+".disk")
}

// writeDir makes the service's directory. It stores the settings of the image and the spec that each start of the
// container needs.
func (r *raising) writeDir(image docker.Image, volumes []string) error {
	command := r.v.spec.Command
	if len(command) == 0 {
		command = image.Cmd
	}
	defaults := hostdir.Defaults{
		Volumes: volumes, User: r.v.spec.User, Cwd: image.Cwd, Command: append(slices.Clone(image.Entrypoint), command...),
		StopSignal: image.StopSignal, Healthcheck: image.Healthcheck,
	}
	if len(defaults.Command) == 0 {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed,
			"neither the image nor the spec has a command")
	}
	if defaults.User == "" {
		defaults.User = image.User
	}
	if _, err := r.dir.Create(); err != nil {
		return err
	}
	if err := r.dir.SaveDefaults(defaults); err != nil {
		return err
	}
	return r.dir.WriteEtc(r.v.cfg.Name)
}

// containerSpec describes the service's container to the engine.
func (r *raising) containerSpec(image docker.Image) docker.ContainerSpec {
	v, k := r.v, r.v.cfg.Key
	spec := docker.ContainerSpec{
		Name: ContainerName(v.cfg.Host.Deployment, k, v.cfg.Name), Image: image.ID, Hostname: v.cfg.Name,
		Network: docker.ObjectName(v.cfg.Host.Deployment, k), Aliases: []string{v.cfg.Name},
		Labels: map[string]string{
			docker.LabelTenant: k.Tenant, docker.LabelSandbox: k.ID,
			docker.LabelRole: "service", docker.LabelService: v.cfg.Name,
			docker.LabelGeneration: strconv.FormatUint(v.cfg.Generation, 10), docker.LabelDirectory: r.dir.Path,
		},
		DNS: v.cfg.Host.NameServers(&v.cfg.Sandbox),
		CPU: v.spec.CPU, Memory: int64(v.spec.Memory), PIDs: v.spec.PIDs, Disk: int64(v.spec.Disk),
		Runtime: v.cfg.Sandbox.Runtime,
		Binds:   append(attach.Binds(v.cfg.Host.Supervisor, r.dir.Ctl()), r.dir.EtcBinds(nil)...),
	}
	attach.SetProcess(&spec, v.spec.Capabilities())
	for name, value := range v.spec.Env {
		spec.Env = append(spec.Env, name+"="+value)
	}
	sort.Strings(spec.Env)
	return spec
}

// listen opens the socket that the service's supervisor dials.
func (r *raising) listen(secret []byte) (*attach.Attachment, error) {
	v := r.v
	defaults, err := r.dir.Defaults()
	if err != nil {
		return nil, err
	}
	get := secrets.OfService(&v.cfg.Sandbox, v.cfg.Name).Getter(v.cfg.Host.Unseal, protocol.UnsealQuery{
		Tenant: v.cfg.Key.Tenant, Sandbox: v.cfg.Key.ID, Generation: v.cfg.Generation})
	return attach.Listen(attach.Config{
		ControlDir: r.dir.Ctl(), RunDir: r.dir.Run(), Home: r.dir.Sandbox(), Secrets: get,
		Welcome: control.Welcome{Grace: v.cfg.Sandbox.Grace.Std(), Key: secret, Command: defaults.Command,
			DefaultUser: defaults.User, DefaultCwd: defaults.Cwd, StopSignal: defaults.StopSignal},
		Lease: v.cfg.Host.Lease, Fence: v.cfg.Host.Fence, Events: events{v.cfg.Execs, v}, Log: v.log,
	})
}

// connect starts the container if it does not run, and waits for its supervisor.
func (r *raising) connect(ctx context.Context, a *attach.Attachment, c docker.Container) error {
	v, host := r.v, r.v.cfg.Host
	epoch := host.Epoch.Load()
	if !c.Running {
		if err := r.start(ctx, c.ID); err != nil {
			return err
		}
	}
	c, err := host.Engine.Inspect(ctx, c.ID)
	if err != nil {
		return err
	}
	if !c.Running {
		if err := host.Epoch.EndedByItself(ctx, host.Engine.Ping, epoch); err != nil {
			return err
		}
		return endedError(v, c)
	}
	v.epoch = epoch
	if err := r.dir.SetAddress(c.Hostname, c.Address); err != nil {
		return err
	}
	host.LimitTerminals(c.Pid)
	defaults, err := r.dir.Defaults()
	if err != nil {
		return err
	}
	if err := hostfiles.UncoverVolumes(c.Pid, defaults.Volumes); err != nil {
		return err
	}
	if err := a.Greet(ctx, c.Pid); err != nil {
		return err
	}
	host.Track(v.cfg.Key, c.Pid, a.Home)
	host.Probe("after-service-hello")
	v.mu.Lock()
	v.attached, v.down, v.givenUp = a, false, false
	v.mu.Unlock()
	v.cfg.Execs.Restart()
	return nil
}

// start starts the container. It waits for the engine's answer even if ctx ends, because the engine carries out the
// request even if the worker stops waiting.
func (r *raising) start(ctx context.Context, id string) error {
	v, host := r.v, r.v.cfg.Host
	v.mu.Lock()
	v.down = true
	v.mu.Unlock()
	v.cfg.Execs.Restart() // the execs of the container's last start have ended
	// An engine that shuts down still answers requests on open connections, but no longer answers Ping.
	if err := host.Engine.Ping(ctx); err != nil {
		return err
	}
	if err := v.cfg.Containers.RestoreRules(ctx, &v.cfg.Sandbox); err != nil {
		return err
	}
	host.Probe("before-service-start")
	if err := host.Engine.StartContainer(context.WithoutCancel(ctx), id); err != nil {
		return err
	}
	host.Probe("after-service-start")
	v.mu.Lock()
	v.proc = control.Primary{}
	v.mu.Unlock()
	return nil
}

// inspect returns the service's container, or the zero value if the container does not exist.
func inspect(ctx context.Context, v *Service) (docker.Container, error) {
	return v.cfg.Containers.Inspect(ctx, ContainerName(v.cfg.Host.Deployment, v.cfg.Key, v.cfg.Name))
}

// checkContainer inspects the connected container if it may have changed. It returns an error if the container no
// longer runs or could not be inspected.
func (v *Service) checkContainer(ctx context.Context) error {
	v.mu.Lock()
	a, dirty := v.attached, v.dirty
	v.dirty = false
	v.mu.Unlock()
	if !dirty || a == nil {
		return nil
	}
	host := v.cfg.Host
	epoch := host.Epoch.Load()
	c, err := inspect(ctx, v)
	if err != nil {
		v.mu.Lock()
		v.dirty = true
		v.mu.Unlock()
		return err
	}
	if c.Running && c.Pid == a.Pid {
		v.epoch = epoch
		return nil
	}
	v.mu.Lock()
	v.down = true
	v.mu.Unlock()
	v.Detach()
	v.cfg.Execs.Restart() // the container's execs have ended
	if c.ID == "" {
		if err := host.Engine.Ping(ctx); err != nil {
			return err
		}
	} else if err := host.Epoch.EndedByItself(ctx, host.Engine.Ping, v.epoch); err != nil {
		return err
	}
	return endedError(v, c)
}

// endedError returns the error of a service whose container ended by itself.
func endedError(v *Service, c docker.Container) *protocol.Error {
	switch {
	case c.ID == "":
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing,
			"the service's container is gone")
	case c.OutOfMemory():
		return outOfMemory(v.spec.Memory)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
		"the service's container ended with exit code %d %s", c.ExitCode, c.Error)
}

func outOfMemory(memory protocol.Bytes) *protocol.Error {
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled,
		"the service ran out of memory (%s)", memory)
}
