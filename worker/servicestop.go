package worker

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// forServices does something with the container of each service of the spec that is on the host, all
// at once.
func (s *sandbox) forServices(ctx context.Context, b *protocol.Sandbox, do func(ctx context.Context, c docker.Container) error) error {
	names, _ := b.Spec.Services()
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range names {
		group.Go(func() error {
			c, err := s.inspectNamed(ctx, s.serviceName(name))
			if err != nil || c.ID == "" {
				return err
			}
			return do(ctx, c)
		})
	}
	return group.Wait()
}

// stopServices stops the services' containers and keeps them.
func (s *sandbox) stopServices(ctx context.Context, b *protocol.Sandbox) error {
	err := s.forServices(ctx, b, func(ctx context.Context, c docker.Container) error {
		if !c.Running {
			return nil
		}
		return s.w.engine.StopContainer(ctx, c.ID, b.Spec.Grace.Std()+time.Second)
	})
	if err == nil {
		s.w.cfg.Probe("after-services-stop")
		s.dropServices()
	}
	return err
}

// removeServices removes the services' containers.
func (s *sandbox) removeServices(ctx context.Context, b *protocol.Sandbox) error {
	err := s.forServices(ctx, b, func(ctx context.Context, c docker.Container) error {
		return s.w.engine.RemoveContainer(ctx, c.ID)
	})
	if err == nil {
		s.w.cfg.Probe("after-services-remove")
		s.dropServices()
	}
	return err
}

// endInServices has the services' supervisors end everything, and reports whether all did. The services'
// goroutines have ended.
func (s *sandbox) endInServices(ctx context.Context, grace time.Duration) bool {
	var ending sync.WaitGroup
	var mu sync.Mutex
	all := true
	for _, v := range s.eachService() {
		if a := s.attachedTo(v.name); a != nil {
			ending.Go(func() {
				ended := a.end(ctx, grace)
				v.output.Finish(ctx, func() bool { return v.process().Running && v.connected() })
				mu.Lock()
				defer mu.Unlock()
				all = all && ended
			})
		}
	}
	ending.Wait()
	return all
}

// servicesRun says whether a container of a service runs, where the log says that none should.
func (s *sandbox) servicesRun(ctx context.Context) (bool, error) {
	var b protocol.Sandbox
	s.journal.View(func(st *protocol.State, _ uint64) { b = st.Sandbox })
	if b.State != protocol.StateStopped && b.State != protocol.StateFailed {
		return false, nil
	}
	var mu sync.Mutex
	run := false
	err := s.forServices(ctx, &b, func(_ context.Context, c docker.Container) error {
		mu.Lock()
		defer mu.Unlock()
		run = run || c.Running
		return nil
	})
	return run, err
}
