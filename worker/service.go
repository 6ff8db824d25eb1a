package worker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// service is one service container of a sandbox, and the goroutine that brings it up and watches over
// it. Its process 1 is the supervisor, with the image's command as the primary one, so that execs, the
// ends of process trees and adoption after a restart of the worker are the same machinery as in the
// primary container.
type service struct {
	s          *sandbox
	name       string
	required   bool
	generation uint64
	spec       protocol.Service
	sandbox    protocol.SandboxSpec

	stop    context.CancelFunc
	done    chan struct{} // closed when the goroutine has ended
	wake    chan struct{} // something about it has changed; has room for one
	network func()        // says that the sandbox's network is there
	linked  chan struct{} // closed by it
	settled chan struct{} // closed when it is ready, or has failed
	err     *protocol.Error
	output  *serviceLog

	// Guarded by the sandbox's lock.
	attached *attachment
	dirty    bool // the container may not be as it was seen
	down     bool // the container does not run
	givenUp  bool // and will not by itself
	proc     control.Primary
	crash    crashLoop
	problem  string // why it is not ready yet

	// Only the goroutine's own.
	health   *protocol.Healthcheck // nil: it is ready when it runs
	epoch    int64                 // of the engine, when the container was last seen running
	oom      bool                  // the last end of its command, or of its container, was for want of memory
	failures int                   // health tests that failed in a row
	tested   time.Time

	notBefore time.Time // a container that ended is not started again before
}

// wantsServices says whether the log wants a sandbox's services up on this host.
func wantsServices(b *protocol.Sandbox, hostID string) bool {
	if b.HostID != hostID || !b.Assigned {
		return false
	}
	return b.State == protocol.StatePending || b.State == protocol.StateReady && b.Desired == protocol.StateReady
}

// keepServices has a goroutine for each service while the log wants them up, whatever operation leads
// there, and none otherwise.
func (s *sandbox) keepServices(ctx context.Context, b *protocol.Sandbox, op operation) {
	names, required := b.Spec.Services()
	if op == opDiscard || !wantsServices(b, s.w.hostID) {
		s.endServices()
		if op == opNothing {
			s.dropServices()
		}
		return
	}
	for _, name := range names {
		s.mu.Lock()
		v := s.services[name]
		s.mu.Unlock()
		if v != nil && v.generation == b.Generation && !v.over() {
			continue
		}
		if v != nil {
			v.end()
			v.detach()
		}
		v = s.newService(b, name, required[name])
		s.mu.Lock()
		s.services[name] = v
		s.mu.Unlock()
		running, stop := context.WithCancel(ctx)
		v.stop = stop
		go v.run(running)
	}
}

func (s *sandbox) newService(b *protocol.Sandbox, name string, required bool) *service {
	v := &service{
		s: s, name: name, required: required, generation: b.Generation, sandbox: b.Spec,
		done: make(chan struct{}), wake: make(chan struct{}, 1), linked: make(chan struct{}), settled: make(chan struct{}),
		crash: crashLoop{window: s.w.cfg.CrashWindow, guard: s.w.cfg.CrashGuard}, epoch: -1,
	}
	v.spec, _ = b.Spec.Service(name)
	v.network = sync.OnceFunc(func() { close(v.linked) })
	if b.State != protocol.StatePending || b.Resuming {
		v.network() // it is there, or the sandbox has failed
	}
	v.output = newServiceLog(v)
	return v
}

// each returns the services.
func (s *sandbox) eachService() []*service {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*service, 0, len(s.services))
	for _, v := range s.services {
		all = append(all, v)
	}
	return all
}

// endServices ends the goroutines. The containers go on, and the connections to their supervisors.
func (s *sandbox) endServices() {
	all := s.eachService()
	for _, v := range all {
		v.stop()
	}
	for _, v := range all {
		<-v.done
	}
}

// dropServices lets go of the services' containers.
func (s *sandbox) dropServices() {
	for _, v := range s.eachService() {
		v.detach()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.services)
}

// letServicesIn says that the sandbox's network is there.
func (s *sandbox) letServicesIn() {
	for _, v := range s.eachService() {
		v.network()
	}
}

// wakeServices has the services look at their containers.
func (s *sandbox) wakeServices() {
	for _, v := range s.eachService() {
		s.mu.Lock()
		v.dirty = true
		s.mu.Unlock()
		v.wakeUp()
	}
}

// servicesReady waits until every required service is ready, and fails when one has failed.
func (s *sandbox) servicesReady(ctx context.Context) error {
	for _, v := range s.eachService() {
		if !v.required {
			continue
		}
		select {
		case <-v.settled:
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			return protocol.Errorf(protocol.DeadlineExceeded, "", "the required service %s is not ready: %s", v.name, v.problem)
		}
		if v.err != nil {
			return v.err
		}
	}
	return nil
}

// attachedTo is the attachment of a service's container, or of the primary one for "".
func (s *sandbox) attachedTo(name string) *attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" {
		return s.attached
	}
	if v := s.services[name]; v != nil {
		return v.attached
	}
	return nil
}

func (s *sandbox) serviceName(name string) string { return s.name() + "." + name }

func (v *service) directory() directory { return v.s.directory(v.generation).service(v.name) }

func (v *service) wakeUp() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

func (v *service) over() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

func (v *service) end() {
	v.stop()
	<-v.done
}

// detach lets go of the container.
func (v *service) detach() {
	v.s.mu.Lock()
	a := v.attached
	v.attached = nil
	v.s.mu.Unlock()
	if a != nil {
		a.close()
	}
}

// status is what the log says of the service.
func (v *service) status() (status protocol.ServiceStatus) {
	v.s.journal.View(func(st *protocol.State, _ uint64) { status = st.Sandbox.Services[v.name] })
	return status
}

// append appends an event about the service, trying until the log has it or no longer wants the
// service up here.
func (v *service) append(ctx context.Context, events ...protocol.Event) error {
	for i := range events {
		if events[i].Service == nil {
			events[i].Service = &protocol.ServiceDetails{Name: v.name}
		}
	}
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := v.s.append(ctx, v.generation, func(st *protocol.State) []protocol.Event {
			if !wantsServices(&st.Sandbox, v.s.w.hostID) {
				return nil
			}
			return slices.Clone(events)
		})
		if err == nil || errors.Is(err, errSuperseded) {
			return err
		}
		v.s.log.Warn("what became of a service is appended again", "service", v.name, "error", err)
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// run brings the service up, where the log does not say how that went, and watches over it.
func (v *service) run(ctx context.Context) {
	defer close(v.done)
	publishing := make(chan struct{})
	go func() {
		defer close(publishing)
		v.output.run(ctx)
	}()
	defer func() { <-publishing }()
	status := v.status()
	if status.State == protocol.ServiceStateStarting {
		err := v.begin(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			v.err = v.fail(ctx, err)
		}
	} else if status.State == protocol.ServiceStateFailed {
		v.err = v.failure(status.Error)
	}
	close(v.settled)
	v.watch(ctx)
}

// begin brings the service up: container, supervisor, health, hooks. Each step can be taken again.
func (v *service) begin(ctx context.Context) error {
	deadline := time.Now().Add(v.sandbox.CreateTimeout.Std())
	if v.required {
		v.s.journal.View(func(st *protocol.State, _ uint64) {
			deadline = st.Sandbox.AssignedAt.Add(v.sandbox.CreateTimeout.Std())
		})
	}
	beginning, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := v.tryBegin(beginning)
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case beginning.Err() != nil:
			return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "not ready within %s: %v", v.sandbox.CreateTimeout, err)
		case !passing(err), errors.As(err, new(*hookFailure)):
			return err
		}
		v.s.log.Warn("a service is brought up again", "service", v.name, "error", err)
		sleep(beginning, pause)
	}
}

func (v *service) tryBegin(ctx context.Context) error {
	if v.s.attachedTo(v.name) == nil {
		if err := v.raise(ctx); err != nil {
			return err
		}
	}
	if err := v.untilHealthy(ctx); err != nil {
		return err
	}
	if err := v.hooks(ctx); err != nil {
		return err
	}
	v.s.w.cfg.Probe("before-service-ready")
	err := v.append(ctx, protocol.Event{Kind: protocol.ServiceReady})
	v.s.w.cfg.Probe("after-service-ready")
	return err
}

// raise makes the container and places the trees that are for it, where that was not done, starts it,
// where it does not run, and connects to its supervisor.
func (v *service) raise(ctx context.Context) error {
	c, err := v.inspect(ctx)
	if err != nil {
		return err
	}
	if c.ID != "" && labelledGeneration(c.Labels) != v.generation {
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
	secret, err := d.secret()
	if err != nil {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the service's directory is gone")
	}
	if v.health, err = v.healthcheck(d); err != nil {
		return err
	}
	// Also where an earlier try came so far; one that ran before has changed what was copied.
	if !c.Running && c.StartedAt.IsZero() {
		if err := v.s.copyTrees(ctx, c.ID, v.name, v.sandbox.Copies); err != nil {
			return err
		}
		v.s.w.cfg.Probe("after-service-copy")
	}
	a, err := v.s.listenIn(d, secret, control.Welcome{Grace: v.sandbox.Grace.Std()}, v.heard, v.primary)
	if err != nil {
		return err
	}
	if err := v.connect(ctx, a, c); err != nil {
		a.close()
		return err
	}
	return nil
}

// connect starts the container, where it does not run, and waits for its supervisor.
func (v *service) connect(ctx context.Context, a *attachment, c docker.Container) error {
	if !c.Running {
		v.isDown()
		if err := v.s.w.engine.Ping(ctx); err != nil { // one that is about to end still answers on connections that it has
			return err
		}
		if err := v.s.protectAgain(ctx); err != nil {
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
		return v.ended(c)
	}
	v.epoch = v.s.w.epoch.Load()
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

// make makes the container of a service that is brought up for the first time. One that was there
// before and is gone is not repaired in secret.
func (v *service) make(ctx context.Context, d directory) (string, error) {
	if status := v.status(); status.State != protocol.ServiceStateStarting || status.Resumed {
		return "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the service's container is gone")
	}
	if err := v.s.w.abilities.checkService(&v.sandbox, v.name); err != nil {
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
	defaults := defaults{
		User: v.spec.User, Cwd: image.Cwd, Command: append(slices.Clone(image.Entrypoint), command...),
		StopSignal: image.StopSignal, Healthcheck: image.Healthcheck,
	}
	if len(defaults.Command) == 0 {
		return "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "the image has no command, and the spec neither")
	}
	if defaults.User == "" {
		defaults.User = image.User
	}
	if _, err := d.make(); err != nil {
		return "", err
	}
	if err := d.saveDefaults(defaults); err != nil {
		return "", err
	}
	select {
	case <-v.linked:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	v.s.w.cfg.Probe("before-service-create")
	id, err := v.s.w.engine.CreateContainer(context.WithoutCancel(ctx), v.containerSpec(d, image))
	v.s.w.cfg.Probe("after-service-create")
	return id, naming(err, docker.ReasonNoDiskQuota, v.sandbox.ServiceField(v.name)+".disk")
}

// healthcheck is the spec's, else the image's, nil for none.
func (v *service) healthcheck(d directory) (*protocol.Healthcheck, error) {
	defaults, err := d.defaults()
	h := v.spec.Healthcheck
	if h == nil {
		h = defaults.Healthcheck
	}
	if h == nil || h.Off() {
		return nil, err
	}
	resolved := *h
	resolved.Resolve()
	return &resolved, err
}

// containerSpec is the service's container.
func (v *service) containerSpec(d directory, image docker.Image) docker.ContainerSpec {
	s := v.s
	at := func(name string) string { return path.Join(control.ContainerAt, name) }
	spec := docker.ContainerSpec{
		Name: s.serviceName(v.name), Image: image.ID,
		Hostname: v.name, Network: s.name(), Aliases: []string{v.name},
		Labels: map[string]string{
			docker.LabelTenant: s.key.tenant, docker.LabelSandbox: s.key.id, docker.LabelRole: "service", docker.LabelService: v.name,
			docker.LabelGeneration: strconv.FormatUint(v.generation, 10), docker.LabelDirectory: d.path,
		},
		DNS: s.w.isolation.servers(&v.sandbox), CPU: v.spec.CPU, Memory: int64(v.spec.Memory), PIDs: v.spec.PIDs, Disk: int64(v.spec.Disk), Runtime: v.sandbox.Runtime,
		Binds: []docker.Bind{
			{Source: s.w.supervisor, Target: at("supervisor"), ReadOnly: true},
			{Source: d.ctl(), Target: at("ctl"), ReadOnly: true},
			{Source: d.run(), Target: at("run")},
		},
	}
	setProfile(&spec, v.spec.Capabilities())
	for name, value := range v.spec.Env {
		spec.Env = append(spec.Env, name+"="+value)
	}
	sort.Strings(spec.Env)
	return spec
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
	c, err := v.inspect(ctx)
	if err != nil {
		v.s.mu.Lock()
		v.dirty = true
		v.s.mu.Unlock()
		return err
	}
	if c.Running && c.Pid == a.pid {
		v.epoch = v.s.w.epoch.Load()
		return nil
	}
	v.s.mu.Lock()
	v.down = true
	v.s.mu.Unlock()
	v.detach()
	v.s.wakeUp() // its execs end
	if err := v.s.w.engine.Ping(ctx); err != nil {
		return err
	}
	if c.ID != "" && v.epoch != v.s.w.epoch.Load() {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineRestarted, "the service's container ended with the engine")
	}
	return v.ended(c)
}

// ended says how the container ended.
func (v *service) ended(c docker.Container) *protocol.Error {
	switch {
	case c.ID == "":
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the service's container is gone")
	case c.OOMKilled:
		v.oom = true
		return v.outOfMemory()
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited, "the service's container ended with exit code %d %s", c.ExitCode, c.Error)
}

func (v *service) outOfMemory() *protocol.Error {
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonOOMKilled, "the service ran out of memory (%s)", v.spec.Memory)
}

// heard takes the sizes of output.
func (v *service) heard(o control.Output) {
	if o.ID == "" {
		v.output.grown(o.Stdout, o.Stderr)
		return
	}
	v.s.output(o)
}

// primary notes that the service's command started or ended.
func (v *service) primary(p control.Primary) {
	v.output.grown(p.Stdout, p.Stderr)
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.proc = p
	if p.Restarts > 0 || p.LastExit != nil || p.Error != nil || p.Running {
		v.crash.changed(p.Running, time.Now())
	}
	v.wakeUp()
}

func (v *service) process() control.Primary {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return v.proc
}

// hooks runs the service's hooks that were not run since it was started.
func (v *service) hooks(ctx context.Context) error {
	status := v.status()
	for i := status.Hooks; i < len(v.spec.PostStart); i++ {
		h := &v.spec.PostStart[i]
		if status.Resumed && !h.OnResume {
			continue
		}
		v.nowWaits("its hook %.200q has not ended", h.Command)
		v.s.w.cfg.Probe("before-service-hook")
		exit, output, failed, err := v.s.runHook(ctx, fmt.Sprintf("%s %d", v.name, i), h)
		if err != nil {
			return err
		}
		v.s.w.cfg.Probe("after-service-hook")
		events := []protocol.Event{{Kind: protocol.ServiceHook, Service: &protocol.ServiceDetails{Name: v.name, Hook: i + 1, ExitCode: exit, Output: output}}}
		if failed != nil { // both at once: no restart may take the hook for one that went well
			events[0].Error, events[0].Reason = failed, failed.Reason
			events = append(events, protocol.Event{Kind: protocol.ServiceFailed, Reason: failed.Reason, Error: failed})
		}
		if err := v.append(ctx, events...); err != nil {
			return err
		}
		if failed != nil {
			return &hookFailure{failed}
		}
	}
	return nil
}

// hookFailure says that a hook failed, which is in the log.
type hookFailure struct{ why *protocol.Error }

func (h *hookFailure) Error() string { return h.why.Error() }

func (v *service) nowWaits(format string, args ...any) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.problem = fmt.Sprintf(format, args...)
}

// fail appends that the service failed, with the end of its output where it was its own doing, and
// returns what its sandbox fails with if it is required.
func (v *service) fail(ctx context.Context, err error) *protocol.Error {
	if hook := (*hookFailure)(nil); errors.As(err, &hook) { // it is in the log
		return v.failure(hook.why)
	}
	e := *protocol.AsError(err)
	switch e.Reason {
	case protocol.ReasonContainerExited, protocol.ReasonUnhealthy, protocol.ReasonOOMKilled, protocol.ReasonCrashLoop,
		protocol.ReasonStartFailed, protocol.ReasonCreateTimeout:
		e.Message += quoted(v.output.last())
	}
	v.s.log.Warn("a service fails", "service", v.name, "error", &e)
	if err := v.append(ctx, protocol.Event{Kind: protocol.ServiceFailed, Reason: e.Reason, Error: &e}); err != nil {
		v.s.log.Debug("the failure of a service is not appended", "service", v.name, "error", err)
	}
	return v.failure(&e)
}

// failure is what the sandbox fails with when this service, a required one, has failed.
func (v *service) failure(why *protocol.Error) *protocol.Error {
	e := protocol.Error{Code: protocol.FailedPrecondition}
	if why != nil {
		e = *why
	}
	if passing(&e) { // it was tried long enough
		e.Code = protocol.FailedPrecondition
	}
	if e.Field == "" {
		e.Field = v.sandbox.ServiceField(v.name)
	}
	e.Message = fmt.Sprintf("the required service %s failed: %s", v.name, e.Message)
	return &e
}
