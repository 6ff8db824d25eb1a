package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

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
		back := v.s.w.recovery.next()
		err := v.tryBegin(beginning)
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case beginning.Err() != nil:
			return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout, "not ready within %s: %v", v.sandbox.CreateTimeout, err)
		case !hosterr.Temporary(err), errors.As(err, new(*hookFailure)):
			return err
		}
		v.s.log.Warn("a service is brought up again", "service", v.name, "error", err)
		awaitWake(beginning, back, pause)
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
	err := v.append(ctx, decide.ServiceReady(v.name))
	v.s.w.cfg.Probe("after-service-ready")
	return err
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
		if err := v.append(ctx, decide.ServiceHook(v.name, i+1, exit, output, failed)); err != nil {
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
