package sandbox

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// local is the result of the last inspection: the parts of the sandbox that exist on the host. Only the sandbox's
// goroutine uses it.
type local struct {
	s *Sandbox
	decide.Inspection
	container  docker.Container
	fresh      bool           // the container was inspected in this step
	epoch      int64          // engine's epoch when the container was last known to run; -1: not in this tenure
	background chan inspected // receives the result of the background inspection; nil: none runs
}

// inspected is the result of an inspection.
type inspected struct {
	container docker.Container
	directory bool
	services  bool
	epoch     int64 // engine's epoch before the inspection
	err       error
}

func (l *local) read(ctx context.Context) inspected {
	r := inspected{epoch: l.s.host.Epoch.Load()}
	if r.container, r.err = l.s.containers().Inspect(ctx, l.s.name()); r.err == nil {
		r.directory, r.err = l.s.host.Dirs.Has(l.s.key)
	}
	if r.err == nil {
		r.services, r.err = l.s.services.unwanted(ctx)
	}
	return r
}

// inspect inspects the host if the host may have changed. After an error, the state of the container is unknown.
func (l *local) inspect(ctx context.Context) error {
	s := l.s
	s.mu.Lock()
	dirty, network := s.dirty, s.network
	s.dirty = false
	s.mu.Unlock()
	p := s.conn.get()
	l.setConnected(p)
	l.fresh = dirty
	if !dirty {
		return nil
	}
	r := l.read(ctx)
	if r.err != nil {
		l.Container = decide.ContainerUnknown
		s.setDirty()
		return r.err
	}
	c := r.container
	l.container, l.Leftovers, l.Services = c, r.directory || network, r.services
	l.Generation = docker.GenerationOf(c.Labels)
	s.mu.Lock()
	s.home = c.Labels[docker.LabelDirectory]
	s.mu.Unlock()
	switch {
	case c.ID == "":
		l.Container = decide.ContainerAbsent
	case c.Running:
		l.Container, l.epoch = decide.ContainerRunning, r.epoch
	case c.StartedAt.IsZero() || c.State == "created":
		l.Container = decide.ContainerMade
	default:
		l.Container = decide.ContainerExited
	}
	if l.Container != decide.ContainerRunning || p != nil && p.Pid != c.Pid {
		s.conn.detach()
		l.Connected = false
	}
	return nil
}

// inspectInBackground inspects a settled sandbox in the background. Execs do not need the engine, so an engine that is
// slow or does not answer must not delay them. The result running is true while the background inspection runs. After
// an inspection that found a change, running is false, and the caller inspects the host in the foreground.
func (l *local) inspectInBackground(ctx context.Context) (running bool, err error) {
	s := l.s
	s.mu.Lock()
	idle := l.background == nil && !s.dirty
	s.mu.Unlock()
	if idle {
		return false, nil
	}
	p, settled := l.settled()
	if l.background != nil {
		var r inspected
		select {
		case r = <-l.background:
		default:
			if settled {
				return true, nil
			}
			r = <-l.background
		}
		l.background = nil
		if !settled || r.err != nil || !r.runs(p, l.Generation) {
			s.setDirty()
			if settled {
				return false, r.err
			}
			return false, nil
		}
		l.container, l.epoch = r.container, r.epoch
	}
	s.mu.Lock()
	s.home = l.container.Labels[docker.LabelDirectory]
	dirty := s.dirty
	s.dirty = dirty && !settled
	s.mu.Unlock()
	if !dirty || !settled {
		return false, nil
	}
	l.background = make(chan inspected, 1)
	go func(result chan<- inspected) {
		result <- l.read(ctx)
		s.wake.Wake()
	}(l.background)
	return true, nil
}

// settled reports whether the container runs, its supervisor is connected, and the sandbox needs no operation. It also
// returns the connection.
func (l *local) settled() (p *primary, settled bool) {
	p = l.s.conn.get()
	l.setConnected(p)
	if p == nil || l.Container != decide.ContainerRunning {
		return p, false
	}
	l.s.journal.View(func(st *protocol.State, _ uint64) {
		settled = decide.Next(&st.Sandbox, l.s.host.ID, l.Inspection) == decide.Nothing
	})
	return p, settled
}

func (l *local) setConnected(p *primary) {
	l.Connected, l.Boot = p != nil, ""
	if p != nil {
		l.Boot = p.Boot
	}
}

// runs reports whether the container with connection p still runs.
func (r *inspected) runs(p *primary, generation uint64) bool {
	return r.container.Running && r.container.Pid == p.Pid && docker.GenerationOf(r.container.Labels) == generation
}

func (l *local) inBackground() bool { return l.background != nil }

// awaitBackground waits until the background inspection has ended.
func (l *local) awaitBackground() {
	if l.background != nil {
		<-l.background
	}
}

func (s *Sandbox) setDirty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = true
}
