package worker

import (
	"context"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

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
		crash: crashLoop{window: s.w.cfg.CrashWindow, guard: s.w.cfg.CrashGuard}, crashing: s.w.epoch.Load(), epoch: -1,
	}
	v.spec, _ = b.Spec.Service(name)
	v.network = sync.OnceFunc(func() { close(v.linked) })
	if b.State != protocol.StatePending || b.Resuming {
		v.network() // it is there, or the sandbox has failed
	}
	v.output = newServiceLog(v)
	return v
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
