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
	pauseFirst = time.Second      // first pause before a restart of the container; each pause is twice the last one
	pauseMost  = 30 * time.Second // longest pause
)

// restarts keeps a service's container running. Only the service's goroutine uses it.
type restarts struct {
	v         *Service
	pause     time.Duration // next pause before a restart of the container
	notBefore time.Time     // the container is not started again before this time
	epoch     int64         // engine's epoch when crashes and pauses were last reset
}

// watch keeps the container running. It also appends that a ready service has failed, and that a failed service is
// ready again.
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

// keepUp restarts a container that has ended, after a pause that grows with each restart. It returns the time until the
// next call, or 0 if no call is needed before a change.
func (r *restarts) keepUp(ctx context.Context) time.Duration {
	v := r.v
	r.resetAfterEngine()
	err := v.checkContainer(ctx)
	if err != nil {
		v.log.Info("the container of a service is not running or could not be inspected", "error", err)
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

// afterFailedStart returns the time until the next try to start the container, or 0 if the service is given up.
func (r *restarts) afterFailedStart(ctx context.Context, err error) time.Duration {
	v := r.v
	v.log.Warn("could not restart the container of a service", "error", err)
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

// nextPause begins a pause in which the container is not started again, and returns its length. Each pause is twice as
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

// crashLoop returns the error of a service whose command exits again and again, or nil if there is no crash loop. It
// also returns nil while the service has a container whose supervisor is not connected: without a connection, the
// worker does not know whether the command runs again.
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

// giveUp marks the service as given up, and fails it. The worker does not replace a container that is gone, and does
// not start a container into which an uploaded tree could not be copied.
func (r *restarts) giveUp(ctx context.Context, err error) {
	v := r.v
	v.mu.Lock()
	v.givenUp = true
	v.mu.Unlock()
	if v.status().State != protocol.ServiceStateFailed {
		v.fail(ctx, err)
	}
	v.cfg.Execs.Restart() // execs that wait for the service's container now fail
}
