package worker

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// keepServices has a goroutine for each service while the log wants them up, whatever operation leads
// there, and none otherwise.
func (s *sandbox) keepServices(ctx context.Context, b *protocol.Sandbox, op decide.Operation) {
	names, required := b.Spec.Services()
	if op == decide.Discard || !decide.WantsServices(b, s.w.hostID) || s.stoppedForDisk(b.Generation) != nil {
		s.endServices()
		if op == decide.Nothing {
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
		done: make(chan struct{}), wake: wake.New(), linked: make(chan struct{}), settled: make(chan struct{}),
		crash: decide.CrashLoop{Window: s.w.cfg.CrashWindow, Guard: s.w.cfg.CrashGuard}, seenEpoch: s.w.epoch.Load(), epoch: -1,
	}
	v.spec, _ = b.Spec.Service(name)
	v.network = sync.OnceFunc(func() { close(v.linked) })
	if b.State != protocol.StatePending || b.Resuming {
		v.network() // it is there, or the sandbox has failed
	}
	v.output = s.newCommandLog(protocol.ServiceLog(name), v.generation, v.directory)
	return v
}

// letServicesIn says that the sandbox's network is there.
func (s *sandbox) letServicesIn() {
	for _, v := range s.eachService() {
		v.network()
	}
}

// servicesReady waits until every required service is ready, and fails when one has failed, or when the
// primary container, attached as a, does not run any more.
func (s *sandbox) servicesReady(ctx context.Context, a *attachment) error {
	for _, v := range s.eachService() {
		if !v.required {
			continue
		}
		if err := v.awaitSettled(ctx, a); err != nil {
			return err
		}
		if v.err != nil {
			return v.err
		}
	}
	return s.stillRuns(ctx, a)
}

// awaitSettled waits until the service is ready, or has failed.
func (v *service) awaitSettled(ctx context.Context, primary *attachment) error {
	look := time.NewTicker(decide.CheckPeriod)
	defer look.Stop()
	for {
		select {
		case <-v.settled:
			return nil
		case <-look.C:
			if err := v.s.stillRuns(ctx, primary); err != nil {
				return err
			}
			if run := v.s.ownRun(); run.Error != nil { // nothing that a service does helps it
				return primary.withOutput(ctx, run.Unstartable())
			}
		case <-ctx.Done():
			return v.unready()
		}
	}
}

// unready says why the service is not ready when its time is over.
func (v *service) unready() *protocol.Error {
	v.s.mu.Lock()
	problem := v.problem
	v.s.mu.Unlock()
	why := protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "the required service %s is not ready: %s%s", v.name, problem, quoted(v.output.Last()))
	why.Field = v.sandbox.ServiceField(v.name)
	return why
}

// stillRuns fails, for now, where the primary container has ended: with its engine, or by itself.
func (s *sandbox) stillRuns(ctx context.Context, a *attachment) error {
	if a.link.Up() {
		return nil
	}
	c, err := s.inspect(ctx)
	if err != nil || c.Running && c.Pid == a.pid {
		return err
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonContainerExited, "the sandbox's container ended while its services were starting")
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
