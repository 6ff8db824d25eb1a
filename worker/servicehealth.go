package worker

import (
	"context"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

// How a service becomes ready. Health tests run through the supervisor, as execs that no log has: a
// timeout then ends the test's whole tree, which the Engine's own health check does not, and all
// fields work on an Engine of any version (start_interval came with 25).
const (
	endsMost  = 3                      // a command that ended so often before it was ready has failed
	testFirst = 100 * time.Millisecond // from the first test to the second; then twice as long, up to the start interval
)

// healthcheck is the spec's, else the image's, nil for none.
func (v *service) healthcheck(d hostdir.Dir) (*protocol.Healthcheck, error) {
	defaults, err := d.Defaults()
	h := v.spec.Healthcheck
	if h == nil {
		h = defaults.Healthcheck
	}
	if h == nil || h.Off() {
		return nil, err
	}
	resolved := *h
	resolved.Resolve()
	return &resolved, err
}

// untilHealthy waits until the service is healthy: its test passes, or, without one, it runs and goes
// on running. What failed before the start period was over, and retries intervals after it, counts
// only at their end; so tests may come often, and a quick service is ready quickly.
func (v *service) untilHealthy(ctx context.Context) error {
	began := time.Now()
	h := v.health
	failed := 0
	for pause := testFirst; ; {
		if err := v.look(ctx); err != nil {
			return err
		}
		if v.s.journal != nil { // none in tests without a log
			v.tellEnds(ctx)
		}
		p := v.process()
		if err := v.unsteady(&p); err != nil {
			return err
		}
		var wait time.Duration
		switch {
		case !p.Running:
			v.nowWaits("its command does not run")
			wait = decide.CheckPeriod
		case h == nil:
			if wait = time.Until(p.Since.Add(decide.SteadyFor)); wait > 0 {
				v.nowWaits("its command has just started")
			} else if v.connected() {
				return nil
			} else { // the container may have ended, and the engine not have said so yet
				v.nowWaits("its supervisor is not connected")
				wait = decide.CheckPeriod
			}
		default:
			if err := v.s.w.fence(); err != nil {
				return err // a test that may not be run says nothing
			}
			sick := v.test(ctx, h)
			if sick == nil {
				steady, err := v.steady(ctx, &p)
				if steady || err != nil {
					return err
				}
				continue // the command ended: what the test said was of something else
			}
			v.nowWaits("%s", sick.Message)
			if failed++; failed >= h.Retries && v.connected() && time.Since(began) >= h.StartPeriod.Std()+time.Duration(h.Retries)*h.Interval.Std() {
				return sick
			}
			wait = min(pause, h.StartInterval.Std(), h.Interval.Std())
			pause = 2 * wait
		}
		if !v.wake.WaitFor(ctx, wait) {
			return ctx.Err()
		}
	}
}

// steady says whether the command that ran when a test began runs on: for as long as one without a test
// has to, so that a command that ends at once is not taken for one that is well because its test passes
// without it.
func (v *service) steady(ctx context.Context, tested *control.Primary) (bool, error) {
	for {
		p := v.process()
		if !sameRun(tested, &p) || !v.connected() {
			return false, nil
		}
		left := time.Until(p.Since.Add(decide.SteadyFor))
		if left <= 0 {
			return true, nil
		}
		v.nowWaits("its command has just started")
		if !v.wake.WaitFor(ctx, left) {
			return false, ctx.Err()
		}
	}
}

// sameRun says whether a command that ran has run since, without an end between.
func sameRun(before, now *control.Primary) bool {
	return before.Running && now.Running && before.Since.Equal(now.Since) && before.Restarts == now.Restarts
}

// connected says whether the service's supervisor is heard, so that what it last said is so now.
func (v *service) connected() bool {
	a := v.s.attachedTo(v.name)
	return a != nil && a.link.Up()
}

// unsteady says why a command that has not been ready yet never will be.
func (v *service) unsteady(p *control.Primary) error {
	ends := decide.EndsOf(p)
	switch {
	case p.Error != nil: // it cannot be started at all
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "its command cannot be started: %s", p.Error.Message)
	case ends == 0 || p.LastExit == nil:
		return nil
	case decide.OutOfMemory(p):
		return v.outOfMemory()
	case ends >= endsMost:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
			"its command ended %d times before it was ready, at last with exit code %d", ends, *p.LastExit)
	}
	return nil
}

// test runs the health test once and says why the service is not healthy, nil where it is.
func (v *service) test(ctx context.Context, h *protocol.Healthcheck) *protocol.Error {
	sick := func(format string, args ...any) *protocol.Error {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnhealthy, format, args...)
	}
	a := v.s.attachedTo(v.name)
	if a == nil {
		return sick("the service's container does not run")
	}
	argv := h.Test[1:]
	if h.Test[0] == "CMD-SHELL" {
		argv = []string{"/bin/sh", "-c", h.Test[1]}
	}
	// Only who runs this finds that the container has ended, and a supervisor that is gone answers nothing.
	ctx, cancel := a.whileConnected(ctx)
	defer cancel()
	id := "health-" + strings.ToLower(ulid.Make().String())
	r, output, err := v.s.command(ctx, a, control.Start{ID: id, Argv: argv, Timeout: h.Timeout.Std()})
	v.tested = time.Now()
	if err != nil {
		return sick("the health test did not end: %v", err)
	}
	go a.forgetCommand(id)
	switch {
	case r.TimedOut:
		return sick("the health test ran longer than %s%s", h.Timeout, said(output))
	case r.Failed:
		return sick("the health test could not be run: %v", r.Error)
	case r.ExitCode == nil:
		return sick("the health test was interrupted")
	case *r.ExitCode != 0:
		return sick("the health test ended with exit code %d%s", *r.ExitCode, said(output))
	}
	v.passed = v.tested
	return nil
}

// starting says whether a command that runs has its start period still, in which it need not be healthy.
func (v *service) starting(h *protocol.Healthcheck, p *control.Primary) bool {
	return v.passed.Before(p.Since) && time.Since(p.Since) < h.StartPeriod.Std()
}

// said is the last line of a test's output.
func said(output []byte) string {
	lines := strings.Split(strings.ToValidUTF8(strings.TrimSpace(string(output)), "\uFFFD"), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return ", saying " + last
	}
	return ""
}
