package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/epoch"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// startup takes a service from the state starting to the state ready. Each step can be repeated.
type startup struct{ v *Service }

// run retries until the service is ready, until it cannot become ready, or until the create timeout has passed.
func (s *startup) run(ctx context.Context) error {
	v := s.v
	deadline := time.Now().Add(v.cfg.Sandbox.CreateTimeout.Std())
	if v.cfg.Required {
		v.cfg.Log.View(func(st *protocol.State) {
			deadline = st.Sandbox.AssignedAt.Add(v.cfg.Sandbox.CreateTimeout.Std())
		})
	}
	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for pause := backoff.New(retryFirst, retryMost); ; {
		back := v.cfg.Host.Recovery.Next()
		err := s.try(bounded)
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case bounded.Err() != nil:
			return s.overdue(err)
		case !hosterr.Temporary(err), errors.As(err, new(*hookFailure)):
			return err
		}
		v.log.Warn("could not start a service; retrying", "error", err)
		epoch.Pause(bounded, back, pause.Next())
	}
}

// overdue returns the error of a service that was not ready within the create timeout. It names the reason: the error
// of the last try or, if that try only ran out of time, what the service was waiting for.
func (s *startup) overdue(err error) error {
	why := err.Error()
	s.v.mu.Lock()
	problem := s.v.problem
	s.v.mu.Unlock()
	if problem != "" && errors.Is(err, context.DeadlineExceeded) {
		why = problem
	}
	return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout,
		"not ready within %s: %s", s.v.cfg.Sandbox.CreateTimeout, why)
}

// try does the steps that the service still needs to become ready: container, supervisor, health, hooks.
func (s *startup) try(ctx context.Context) error {
	v := s.v
	if v.attachment() == nil {
		if err := v.raise(ctx); err != nil {
			return err
		}
	}
	if err := v.health.await(ctx); err != nil {
		return err
	}
	if err := s.hooks(ctx); err != nil {
		return err
	}
	v.cfg.Host.Probe("before-service-ready")
	err := v.append(ctx, decide.ServiceReady(v.cfg.Name))
	v.cfg.Host.Probe("after-service-ready")
	return err
}

// hooks runs the post_start hooks that the log does not have yet.
func (s *startup) hooks(ctx context.Context) error {
	v := s.v
	status := v.status()
	for i := status.Hooks; i < len(v.spec.PostStart); i++ {
		h := &v.spec.PostStart[i]
		if status.Resumed && !h.OnResume {
			continue
		}
		v.waitsFor("its hook %.200q has not ended", h.Command)
		v.cfg.Host.Probe("before-service-hook")
		result, err := v.cfg.Hook(ctx, fmt.Sprintf("%s %d", v.cfg.Name, i), h)
		if err != nil {
			return err
		}
		v.cfg.Host.Probe("after-service-hook")
		events := decide.ServiceHook(v.cfg.Name, i+1, result.ExitCode, result.Output, result.Error)
		if err := v.append(ctx, events); err != nil {
			return err
		}
		if result.Error != nil {
			return &hookFailure{result.Error}
		}
	}
	return nil
}

// hookFailure says that a hook failed. The log already has the failure.
type hookFailure struct{ why *protocol.Error }

func (h *hookFailure) Error() string { return h.why.Error() }

// waitsFor records why the service is not ready yet.
func (v *Service) waitsFor(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.problem = fmt.Sprintf(format, args...)
}
