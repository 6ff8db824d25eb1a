package sandbox

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/service"
)

// services are the sandbox's services that have a goroutine.
type services struct {
	s *Sandbox

	mu     sync.Mutex
	byName map[string]*service.Service
}

func newServices(s *Sandbox) *services { return &services{s: s, byName: map[string]*service.Service{}} }

// keep starts a goroutine for each service while the log wants the services to run, and ends the goroutines otherwise.
// The parameter op is the operation that the sandbox does next.
func (m *services) keep(ctx context.Context, b *protocol.Sandbox, op decide.Operation) {
	if op == decide.Discard || !decide.WantsServices(b, m.s.host.ID) || m.s.diskStop.noted(b.Generation) != nil {
		m.end()
		if op == decide.Nothing {
			m.drop()
		}
		return
	}
	names, required := b.Spec.Services()
	for _, name := range names {
		v := m.get(name)
		if v != nil && v.Generation() == b.Generation && !hasEnded(v) {
			continue
		}
		if v != nil {
			v.Stop()
			<-v.Done()
			v.Detach()
		}
		v = m.create(b, name, required[name])
		m.mu.Lock()
		m.byName[name] = v
		m.mu.Unlock()
		v.Start(ctx)
	}
}

func hasEnded(v *service.Service) bool {
	select {
	case <-v.Done():
		return true
	default:
		return false
	}
}

func (m *services) create(b *protocol.Sandbox, name string, required bool) *service.Service {
	s := m.s
	dir := func() hostdir.Dir { return s.dir(b.Generation).Service(name) }
	return service.New(service.Config{
		Host: &s.host.Host, Key: s.key, Name: name, Required: required, Generation: b.Generation, Sandbox: b.Spec,
		Network: b.State != protocol.StatePending || b.Resuming, // during the first create, the network may not exist
		Dir:     dir, Output: newCommandLog(s, protocol.ServiceLog(name), b.Generation, dir),
		Log: s.history(), Execs: s.execs, Containers: s.containers(), Hook: s.conn.runHook, Logger: s.log,
	})
}

// networkExists tells the services that they can make their containers.
func (m *services) networkExists() {
	for _, v := range m.all() {
		v.NetworkExists()
	}
}

// awaitReady waits until every required service is ready. It returns an error if a required service has failed, or if
// the primary container has ended.
func (m *services) awaitReady(ctx context.Context, p *primary) error {
	for _, v := range m.all() {
		if !v.Required() {
			continue
		}
		if err := m.awaitSettled(ctx, v, p); err != nil {
			return err
		}
		if err := v.Err(); err != nil {
			return err
		}
	}
	return p.stillRuns(ctx)
}

// awaitSettled waits until the service is ready, or has failed.
func (m *services) awaitSettled(ctx context.Context, v *service.Service, p *primary) error {
	check := time.NewTicker(decide.CheckPeriod)
	defer check.Stop()
	for {
		select {
		case <-v.Settled():
			return nil
		case <-check.C:
			if err := p.stillRuns(ctx); err != nil {
				return err
			}
			if run := m.s.conn.ownRun(); run.Error != nil { // a command that cannot be started is not waiting for services
				return p.withOutput(ctx, run.Unstartable())
			}
		case <-ctx.Done():
			return v.NotReady()
		}
	}
}

// end ends the services' goroutines. The containers keep running, and their supervisors stay connected.
func (m *services) end() {
	all := m.all()
	for _, v := range all {
		v.Stop()
	}
	for _, v := range all {
		<-v.Done()
	}
}

// drop disconnects from the services' supervisors, and forgets the services.
func (m *services) drop() {
	for _, v := range m.all() {
		v.Detach()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.byName)
}

// endAll tells the services' supervisors to end all commands, and reports whether all supervisors did so. Call endAll
// after the services' goroutines have ended.
func (m *services) endAll(ctx context.Context, grace time.Duration) bool {
	var ending sync.WaitGroup
	var mu sync.Mutex
	all := true
	for _, v := range m.all() {
		ending.Go(func() {
			ended := v.EndAll(ctx, grace)
			mu.Lock()
			defer mu.Unlock()
			all = all && ended
		})
	}
	ending.Wait()
	return all
}

func (m *services) all() []*service.Service {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*service.Service, 0, len(m.byName))
	for _, v := range m.byName {
		all = append(all, v)
	}
	return all
}

// named returns all services by name.
func (m *services) named() map[string]*service.Service {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.byName)
}

func (m *services) any() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.byName) > 0
}

func (m *services) get(name string) *service.Service {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byName[name]
}

// each calls do for each service in the spec that has a container, for one after another: when two containers leave one
// network at the same moment, Docker Engine 20.10 can block for ever, because it takes the locks of its network
// controller and of the network in two orders.
func (m *services) each(ctx context.Context, b *protocol.Sandbox,
	do func(ctx context.Context, c docker.Container) error) error {
	names, _ := b.Spec.Services()
	for _, name := range names {
		c, err := m.s.containers().Inspect(ctx, service.ContainerName(m.s.host.Deployment, m.s.key, name))
		if err == nil && c.ID != "" {
			err = do(ctx, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stop stops the services' containers, but does not remove them.
func (m *services) stop(ctx context.Context, b *protocol.Sandbox) error {
	err := m.each(ctx, b, func(ctx context.Context, c docker.Container) error {
		if !c.Running {
			return nil
		}
		return m.s.host.Engine.StopContainer(ctx, c.ID, b.Spec.Grace.Std()+time.Second)
	})
	if err == nil {
		m.s.host.Probe("after-services-stop")
		m.drop()
	}
	return err
}

func (m *services) remove(ctx context.Context, b *protocol.Sandbox) error {
	err := m.each(ctx, b, func(ctx context.Context, c docker.Container) error {
		return m.s.host.Engine.RemoveContainer(ctx, c.ID)
	})
	if err == nil {
		m.s.host.Probe("after-services-remove")
		m.drop()
	}
	return err
}

// unwanted reports whether a service's container runs although the log says that no service should run.
func (m *services) unwanted(ctx context.Context) (bool, error) {
	var b protocol.Sandbox
	m.s.history().View(func(st *protocol.State) { b = st.Sandbox })
	if b.State != protocol.StateStopped && b.State != protocol.StateFailed {
		return false, nil
	}
	var mu sync.Mutex
	runs := false
	err := m.each(ctx, &b, func(_ context.Context, c docker.Container) error {
		mu.Lock()
		defer mu.Unlock()
		runs = runs || c.Running
		return nil
	})
	return runs, err
}
