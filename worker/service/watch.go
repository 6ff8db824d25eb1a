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
	pauseFirst = time.Second // before a container that ended is started again; it doubles
	pauseMost  = 30 * time.Second
)

// restarts keep a service's container running. Only the service's goroutine uses them.
type restarts struct {
	v         *Service
	pause     time.Duration // before a container that ended is started again; it grows
	notBefore time.Time     // the container is not started again before
	epoch     int64         // of the engine, that crashes and pauses belong to
}

// watch keeps the container running, and appends when the service is no longer what the log says: ready, or failed.
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

// keepUp starts a container that has ended again, after a pause that grows. It returns when to check again, 0 if there
// is nothing to do.
func (r *restarts) keepUp(ctx context.Context) time.Duration {
	v := r.v
	r.resetAfterEngine()
	err := v.checkContainer(ctx)
	if err != nil {
		v.log.Info("a service's container does not run", "error", err)
	}
	a, _, givenUp := v.Container()
	if a != nil || givenUp {
		return 0
	}
	if err != nil && !hosterr.Temporary(err) {
		r.countEnd(err)
		return r.nextPause()
	}
	if left := time.Until(r.notBefore); left > 0 { // something woke the goroutine, perhaps the end of the last try
		return left
	}
	if err := v.raise(ctx); err != nil && ctx.Err() == nil {
		return r.afterFailedStart(ctx, err)
	}
	return 0
}

// afterFailedStart returns when to try again to bring the container up, 0 if never.
func (r *restarts) afterFailedStart(ctx context.Context, err error) time.Duration {
	v := r.v
	v.log.Warn("could not bring a service's container up", "error", err)
	switch reason := protocol.AsError(err).Reason; {
	case reason == protocol.ReasonContainerMissing || reason == protocol.ReasonCopyFailed:
		r.giveUp(ctx, err)
		return 0
	case errors.Is(err, docker.ErrEngineUnavailable) || reason == protocol.ReasonLeaseLost:
		return pauseFirst // the container is not to blame
	}
	if !hosterr.Temporary(err) {
		r.countEnd(err)
	}
	return r.nextPause()
}

// nextPause has the container not started again for a while, which it returns: twice as long each time.
func (r *restarts) nextPause() time.Duration {
	d := max(r.pause, pauseFirst)
	r.notBefore, r.pause = time.Now().Add(d), min(2*d, pauseMost)
	return d
}

// shortenPause resets the pause once the command has run for the guard.
func (r *restarts) shortenPause() {
	v := r.v
	if p := v.process(); p.Running && v.attachment() != nil && time.Since(p.Since) >= v.cfg.Host.CrashGuard {
		r.pause = pauseFirst
	}
}

// resetAfterEngine forgets crashes and pauses if the engine went away: it may have ended the container.
func (r *restarts) resetAfterEngine() {
	v := r.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if epoch := v.cfg.Host.Epoch.Load(); r.epoch != epoch {
		v.crash.Reset()
		r.epoch, r.pause, r.notBefore = epoch, pauseFirst, time.Time{}
	}
}

// countEnd counts an end of the container as one of its command.
func (r *restarts) countEnd(why error) {
	v := r.v
	v.mu.Lock()
	defer v.mu.Unlock()
	v.crash.Ended(time.Now(), protocol.AsError(why).Reason == protocol.ReasonOOMKilled)
}

// crashLoop is the error of a service that ends again and again, nil if it does not. It needs a supervisor that is
// connected, since one that is not may not have reported yet that the command stays up.
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

// giveUp stops bringing the container up: one that has gone is not replaced, and one that lacks a copied tree is not
// started.
func (r *restarts) giveUp(ctx context.Context, err error) {
	v := r.v
	v.mu.Lock()
	v.givenUp = true
	v.mu.Unlock()
	if v.status().State != protocol.ServiceStateFailed {
		v.fail(ctx, err)
	}
	v.cfg.Execs.Restart() // execs that wait for it end
}
