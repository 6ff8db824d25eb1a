package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

const (
	againFirst = time.Second // until a container that ended is started again; then twice as long
	againMost  = 30 * time.Second
)

// watch keeps the container running and says in the log when the service stops to be what the log
// says it is: ready, or failed.
func (v *service) watch(ctx context.Context) {
	for ctx.Err() == nil {
		wait := v.keepUp(ctx)
		v.calm()
		v.tellEnds(ctx)
		v.judge(ctx)
		if due := v.due(); wait == 0 || due > 0 && due < wait {
			wait = due
		}
		v.wake.WaitFor(ctx, wait)
	}
}

// keepUp starts a container again that has ended, after a pause that grows. It returns when to look
// again, 0 where nothing is to be done.
func (v *service) keepUp(ctx context.Context) time.Duration {
	v.forgetOldEngine()
	err := v.look(ctx)
	if err != nil {
		v.s.log.Info("a service's container does not run", "service", v.name, "error", err)
	}
	if v.s.attachedTo(v.name) != nil {
		return 0
	}
	v.s.mu.Lock()
	hopeless := v.givenUp
	v.s.mu.Unlock()
	if hopeless {
		return 0
	}
	if err != nil && !hosterr.Temporary(err) {
		v.stumbled(err)
		return v.pause()
	}
	if left := time.Until(v.notBefore); left > 0 { // woken, perhaps by the end of the last try
		return left
	}
	if err := v.raise(ctx); err != nil && ctx.Err() == nil {
		v.s.log.Warn("a service's container is not up", "service", v.name, "error", err)
		if reason := protocol.AsError(err).Reason; reason == protocol.ReasonContainerMissing || reason == protocol.ReasonCopyFailed {
			v.giveUp(ctx, err)
			return 0
		}
		if errors.Is(err, docker.ErrEngineUnavailable) || protocol.AsError(err).Reason == protocol.ReasonLeaseLost {
			return againFirst // it was not for the container
		}
		if !hosterr.Temporary(err) {
			v.stumbled(err)
		}
		return v.pause()
	}
	return 0
}

// pause has the container not started again for a while, which it returns: twice as long each time.
func (v *service) pause() time.Duration {
	d := max(v.again, againFirst)
	v.notBefore, v.again = time.Now().Add(d), min(2*d, againMost)
	return d
}

// calm begins the pauses anew for a command that has run for the guard.
func (v *service) calm() {
	if p := v.process(); p.Running && v.s.attachedTo(v.name) != nil && time.Since(p.Since) >= v.crash.Guard {
		v.again = againFirst
	}
}

// forgetOldEngine begins anew where the engine went away: what ended before that may have ended with it.
func (v *service) forgetOldEngine() {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if epoch := v.s.w.epoch.Load(); v.seenEpoch != epoch {
		v.crash.Reset()
		v.seenEpoch, v.again, v.notBefore = epoch, againFirst, time.Time{}
	}
}

// stumbled counts an end of the container as one of its command.
func (v *service) stumbled(why error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.crash.Ended(time.Now(), protocol.AsError(why).Reason == protocol.ReasonOOMKilled)
}

// loops says why the service fails that ends again and again, nil where it does not. A supervisor that is
// not connected may have seen the command come to rest.
func (v *service) loops() *protocol.Error {
	v.forgetOldEngine()
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if !v.crash.Looping(time.Now()) || v.attached != nil && !v.attached.link.Up() {
		return nil
	}
	return v.crash.Error("the service", v.spec.Memory)
}

// giveUp says that there will be no container: one that the log says was there is not made anew, and
// one without what is to be copied into it is not started.
func (v *service) giveUp(ctx context.Context, err error) {
	v.s.mu.Lock()
	v.givenUp = true
	v.s.mu.Unlock()
	if v.status().State != protocol.ServiceStateFailed {
		v.fail(ctx, err)
	}
	v.s.wakeUp() // execs that wait for it end
}

// judge tests the health, where that is due, and appends what has changed: that a ready service
// loops, or is not healthy any more, or that one which did is well again.
func (v *service) judge(ctx context.Context) {
	status := v.status()
	p := v.process()
	failed := status.State == protocol.ServiceStateFailed
	if why := v.loops(); why != nil {
		if !failed {
			v.fail(ctx, why)
		}
		return
	}
	if !p.Running || !v.connected() || v.s.w.fence() != nil {
		return
	}
	v.ofRun(p.Since)
	h := v.health
	if h == nil {
		if failed && v.mayRecover(&status) && time.Since(p.Since) >= v.crash.Guard {
			v.recovered(ctx)
		}
		return
	}
	if time.Since(v.tested) < h.Interval.Std() {
		return
	}
	sick := v.test(ctx, h)
	after := v.process()
	switch {
	case !sameRun(&p, &after): // the command ended meanwhile: it is of no run
	case ctx.Err() != nil || !v.connected(): // it says nothing
	case sick == nil:
		v.failures = 0
		if failed && v.mayRecover(&status) {
			v.recovered(ctx)
		}
	case v.starting(h, &p):
	default:
		if v.failures++; v.failures >= h.Retries && !failed {
			v.fail(ctx, sick)
		}
	}
}

// ofRun has failures be of the run of the command that began at since.
func (v *service) ofRun(since time.Time) {
	if !since.Equal(v.judged) {
		v.failures, v.judged = 0, since
	}
}

// mayRecover says whether a failed service is ready again once it is well: where only that was
// missing, and no hook.
func (v *service) mayRecover(status *protocol.ServiceStatus) bool {
	return status.Hooks >= v.lastHook(status) && slices.Contains([]string{
		protocol.ReasonCrashLoop, protocol.ReasonOOMKilled, protocol.ReasonUnhealthy, protocol.ReasonContainerExited,
	}, status.Reason)
}

// lastHook is the number of the last hook that is to be run after this start, 0 for none.
func (v *service) lastHook(status *protocol.ServiceStatus) int {
	for i := len(v.spec.PostStart); i > 0; i-- {
		if !status.Resumed || v.spec.PostStart[i-1].OnResume {
			return i
		}
	}
	return 0
}

func (v *service) recovered(ctx context.Context) {
	if err := v.append(ctx, decide.ServiceReady(v.name)); err != nil {
		v.s.log.Debug("that a service is well again is not appended", "service", v.name, "error", err)
	}
}

// due is when judge has to look again, 0 for not by itself.
func (v *service) due() time.Duration {
	v.s.mu.Lock()
	mayLoop := v.crash.Failing(time.Now().Add(-decide.CheckPeriod))
	running := v.attached != nil && v.proc.Running
	v.s.mu.Unlock()
	var due time.Duration
	if h := v.health; h != nil && running {
		due = max(time.Until(v.tested.Add(h.Interval.Std())), time.Millisecond)
	}
	if mayLoop && (due == 0 || due > decide.CheckPeriod) {
		due = decide.CheckPeriod
	}
	return due
}
