package service

import (
	"context"
	"errors"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

const (
	pauseFirst = time.Second      // first pause before a container that ended is started again; each is twice the last
	pauseMost  = 30 * time.Second // longest such pause
)

// restarts keep a service's container running. Only the service's goroutine uses them.
type restarts struct {
	v         *Service
	pause     time.Duration // next pause before a container that ended is started again
	notBefore time.Time     // the container is not started again before this time
	epoch     int64         // engine's epoch when crashes and pauses were last reset
}

// watch keeps the container running. When a ready service fails, or a failed one is ready again, watch appends this.
func (r *restarts) watch(ctx context.Context) {
	v := r.v
	for ctx.Err() == nil {
		next := r.keepUp(ctx)
		r.shortenPause()
		v.recordEnds(ctx)
		v.health.assess(ctx)
		if due := v.health.due(); next == 0 || due > 0 && due < next {
			next = due
		}
		v.changed.WaitFor(ctx, next)
	}
}

// keepUp starts a container that has ended again, after a pause that grows. It returns after what time to call it
// again, or 0 if there is nothing to do.
func (r *restarts) keepUp(ctx context.Context) time.Duration {
	v := r.v
	r.resetAfterEngine()
	err := v.checkContainer(ctx)
	if err != nil {
		v.log.Info("the container of a service does not run or could not be inspected", "error", err)
	}
	a, _, givenUp := v.Container()
	if a != nil || givenUp {
		return 0
	}
	if err != nil && !hosterr.Temporary(err) {
		r.countEnd(err)
		return r.nextPause()
	}
	if left := time.Until(r.notBefore); left > 0 { // something woke the goroutine during the pause
		return left
	}
	if err := v.raise(ctx); err != nil && ctx.Err() == nil {
		return r.afterFailedStart(ctx, err)
	}
	return 0
}

// afterFailedStart returns after what time to try to start the container again, or 0 if the service is given up.
func (r *restarts) afterFailedStart(ctx context.Context, err error) time.Duration {
	v := r.v
	v.log.Warn("could not start the container of a service again", "error", err)
	switch reason := protocol.AsError(err).Reason; {
	case reason == protocol.ReasonContainerMissing || reason == protocol.ReasonCopyFailed:
		r.giveUp(ctx, err)
		return 0
	case errors.Is(err, docker.ErrEngineUnavailable) || reason == protocol.ReasonLeaseLost:
		return pauseFirst // the start did not fail because of the container, so the pause does not grow
	}
	if !hosterr.Temporary(err) {
		r.countEnd(err)
	}
	return r.nextPause()
}

// nextPause begins a pause in which the container is not started again, and returns the pause. Each pause is twice as
// long as the last one, up to pauseMost.
func (r *restarts) nextPause() time.Duration {
	d := max(r.pause, pauseFirst)
	r.notBefore, r.pause = time.Now().Add(d), min(2*d, pauseMost)
	return d
}

// shortenPause resets the pause once the command has run for CrashGuard.
func (r *restarts) shortenPause() {
	v := r.v
	if p := v.process(); p.Running && v.attachment() != nil && time.Since(p.Since) >= v.cfg.Host.CrashGuard {
		r.pause = pauseFirst
	}
}

// resetAfterEngine resets crashes and pauses if the engine's epoch has changed: the engine may have ended the
// container.
func (r *restarts) resetAfterEngine() {
	v := r.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if epoch := v.cfg.Host.Epoch.Load(); r.epoch != epoch {
		v.crash.Reset()
		r.epoch, r.pause, r.notBefore = epoch, pauseFirst, time.Time{}
	}
}

// countEnd counts an end of the container as a crash of its command.
func (r *restarts) countEnd(why error) {
	v := r.v
	v.mu.Lock()
	defer v.mu.Unlock()
	v.crash.Ended(time.Now(), protocol.AsError(why).Reason == protocol.ReasonOOMKilled)
}

// crashLoop returns the error of a service whose command exits again and again, or nil if it does not. While the
// service has a container whose supervisor is not connected, crashLoop returns nil: the supervisor may not have
// reported yet that the command stays up.
func (r *restarts) crashLoop() *protocol.Error {
	v := r.v
	r.resetAfterEngine()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.crash.Looping(time.Now()) || v.attached != nil && !v.attached.Up() {
		return nil
	}
	return v.crash.Error("the service", v.spec.Memory)
}

// giveUp marks the service as given up: the worker neither replaces a container that is gone, nor starts one into which
// an uploaded tree could not be copied.
func (r *restarts) giveUp(ctx context.Context, err error) {
	v := r.v
	v.mu.Lock()
	v.givenUp = true
	v.mu.Unlock()
	if v.status().State != protocol.ServiceStateFailed {
		v.fail(ctx, err)
	}
	v.cfg.Execs.Restart() // execs that wait for the service's container end
}
