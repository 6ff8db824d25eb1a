package service

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

// The worker does not use the engine's health checks. It runs health tests through the supervisor, for two reasons.
// First, when a test times out, the supervisor ends the test's whole process tree; the engine does not. Second, all
// fields of a health check then work with every version of the engine. Engines before version 25 do not have
// start_interval.

const (
	maxEnds   = 3                      // a service fails if its command ended this often before the service was ready
	testFirst = 100 * time.Millisecond // first pause between two tests; the pauses double up to the start interval
)

// health decides whether a service is healthy. Only the service's goroutine uses it.
type health struct {
	v     *Service
	check *protocol.Healthcheck // nil: the service is healthy while it runs

	failures int       // tests that failed in a row
	run      time.Time // start of the command's run in which the failed tests are counted
	tested   time.Time // end of the last test
	passed   time.Time // end of the last test that passed
}

// load sets the health check. The check in the spec overrides the check in the image.
func (h *health) load(dir hostdir.Dir) error {
	defaults, err := dir.Defaults()
	check := h.v.spec.Healthcheck
	if check == nil {
		check = defaults.Healthcheck
	}
	if check == nil || check.Disabled() {
		h.check = nil
		return err
	}
	resolved := *check
	resolved.Resolve()
	h.check = &resolved
	return err
}

// await waits until the service is healthy. A service is healthy when its command has run for decide.SteadyFor and its
// health test, if it has one, has passed. Failed tests fail the service only after the start period plus one interval
// for each retry. The first tests can therefore run at short intervals, and a service that starts fast is soon ready.
func (h *health) await(ctx context.Context) error {
	v := h.v
	first := firstTests{began: time.Now(), pause: testFirst}
	for {
		if err := v.checkContainer(ctx); err != nil {
			return err
		}
		v.recordEnds(ctx)
		p := v.process()
		if err := h.unstartable(&p); err != nil {
			return err
		}
		var next time.Duration
		var ready bool
		var err error
		switch {
		case !p.Running:
			v.waitsFor("its command does not run")
			next = decide.CheckPeriod
		case h.check == nil:
			ready, next = h.steadyNow(&p)
		default:
			ready, next, err = h.firstTest(ctx, &p, &first)
		}
		if ready || err != nil {
			return err
		}
		if next > 0 && !v.changed.WaitFor(ctx, next) {
			return ctx.Err()
		}
	}
}

// steadyNow reports whether a service without a health test is ready. If not, it also returns the pause before the next
// check.
func (h *health) steadyNow(p *control.Primary) (ready bool, next time.Duration) {
	v := h.v
	if left := time.Until(p.Since.Add(decide.SteadyFor)); left > 0 {
		v.waitsFor("its command has just started")
		return false, left
	}
	if v.attachment().Up() {
		return true, 0
	}
	v.waitsFor("its supervisor is not connected") // the engine may not have reported the container's end yet
	return false, decide.CheckPeriod
}

// firstTests are the health tests before a service is ready.
type firstTests struct {
	began  time.Time
	failed int
	pause  time.Duration // pause before the next test
}

// firstTest runs the test once, and returns the pause before the next test if the service is not ready. The pause is 0
// if the test passed, but the command has ended since the test began.
func (h *health) firstTest(ctx context.Context, p *control.Primary, first *firstTests) (ready bool, next time.Duration,
	err error) {
	v, check := h.v, h.check
	if err := v.cfg.Host.Fence(); err != nil {
		return false, 0, err // no test runs without the host's lock, so the service's health is unknown
	}
	sick := h.test(ctx)
	if sick == nil {
		ready, err = h.steady(ctx, p)
		return ready, 0, err
	}
	v.waitsFor("%s", sick.Message)
	first.failed++
	patience := check.StartPeriod.Std() + time.Duration(check.Retries)*check.Interval.Std()
	if first.failed >= check.Retries && v.attachment().Up() && time.Since(first.began) >= patience {
		return false, 0, sick
	}
	next = min(first.pause, check.StartInterval.Std(), check.Interval.Std())
	first.pause = 2 * next
	return false, next, nil
}

// steady waits until the command has run for decide.SteadyFor. The parameter tested is the supervisor's report from
// before a health test that passed. If the command has ended since that report, steady returns false: the test may have
// passed before the command ended, and the service must not become ready then.
func (h *health) steady(ctx context.Context, tested *control.Primary) (bool, error) {
	v := h.v
	for {
		p := v.process()
		if !sameRun(tested, &p) || !v.attachment().Up() {
			return false, nil
		}
		left := time.Until(p.Since.Add(decide.SteadyFor))
		if left <= 0 {
			return true, nil
		}
		v.waitsFor("its command has just started")
		if !v.changed.WaitFor(ctx, left) {
			return false, ctx.Err()
		}
	}
}

// sameRun reports whether a command ran without an end between two reports.
func sameRun(before, now *control.Primary) bool {
	return before.Running && now.Running && before.Since.Equal(now.Since) && before.Restarts == now.Restarts
}

// unstartable returns why a service that is not ready yet can never become ready, or nil if it still can.
func (h *health) unstartable(p *control.Primary) error {
	ends := decide.EndsOf(p)
	switch {
	case p.Error != nil:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed,
			"the command of the service cannot be started: %s", p.Error.Message)
	case ends == 0 || p.LastExit == nil:
		return nil
	case decide.OutOfMemory(p):
		return outOfMemory(h.v.spec.Memory)
	case ends >= maxEnds:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerExited,
			"the command of the service ended %d times before the service was ready; its last exit code was %d",
			ends, *p.LastExit)
	}
	return nil
}

// test runs the health test once, and returns why the service is not healthy, or nil if it is healthy.
func (h *health) test(ctx context.Context) *protocol.Error {
	v, check := h.v, h.check
	sick := func(format string, args ...any) *protocol.Error {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnhealthy, format, args...)
	}
	a := v.attachment()
	if a == nil {
		return sick("the service's container does not run")
	}
	// This goroutine also inspects the container, so it must not wait here for a supervisor that has ended.
	ctx, cancel := a.WhileConnected(ctx)
	defer cancel()
	r, output, err := runTest(ctx, a, check)
	h.tested = time.Now()
	if err != nil {
		return sick("the health test did not end: %v", err)
	}
	switch {
	case r.TimedOut:
		return sick("the health test ran longer than %s%s", check.Timeout, lastLine(output))
	case r.Failed:
		return sick("the health test could not be run: %v", r.Error)
	case r.ExitCode == nil:
		return sick("the health test was interrupted")
	case *r.ExitCode != 0:
		return sick("the health test ended with exit code %d%s", *r.ExitCode, lastLine(output))
	}
	h.passed = h.tested
	return nil
}

// runTest runs the command of a health test.
func runTest(ctx context.Context, a *attach.Attachment, check *protocol.Healthcheck) (control.Result, []byte, error) {
	argv := check.Test[1:]
	if check.Test[0] == "CMD-SHELL" {
		argv = []string{"/bin/sh", "-c", check.Test[1]}
	}
	id := "health-" + strings.ToLower(ulid.Make().String())
	r, output, err := a.Command(ctx, control.Start{ID: id, Argv: argv, Timeout: check.Timeout.Std()})
	if err == nil {
		go a.ForgetCommand(id)
	}
	return r, output, err
}

// starting reports whether a running command is still in its start period. In this period, failed tests do not count.
func (h *health) starting(p *control.Primary) bool {
	return h.passed.Before(p.Since) && time.Since(p.Since) < h.check.StartPeriod.Std()
}

// lastLine formats the last line of a test's output for an error message.
func lastLine(output []byte) string {
	lines := strings.Split(strings.ToValidUTF8(strings.TrimSpace(string(output)), "\uFFFD"), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return ", saying " + last
	}
	return ""
}

// assess runs a health test if one is due. If a ready service is unhealthy, or its command is in a crash loop, assess
// appends that the service failed. If a failed service has recovered, assess appends that the service is ready again.
func (h *health) assess(ctx context.Context) {
	v := h.v
	status, p := v.status(), v.process()
	failed := status.State == protocol.ServiceStateFailed
	if why := v.restarts.crashLoop(); why != nil {
		if !failed {
			v.fail(ctx, why)
		}
		return
	}
	if !p.Running || !v.attachment().Up() || v.cfg.Host.Fence() != nil {
		return
	}
	h.countFor(p.Since)
	switch {
	case h.check == nil:
		if failed && h.mayRecover(&status) && time.Since(p.Since) >= v.cfg.Host.CrashGuard {
			h.recovered(ctx)
		}
		return
	case time.Since(h.tested) < h.check.Interval.Std():
		return
	}
	sick := h.test(ctx)
	after := v.process()
	switch {
	case !sameRun(&p, &after): // the command ended during the test
	case ctx.Err() != nil || !v.attachment().Up(): // the result says nothing about the service
	case sick == nil:
		h.failures = 0
		if failed && h.mayRecover(&status) {
			h.recovered(ctx)
		}
	case h.starting(&p):
	default:
		if h.failures++; h.failures >= h.check.Retries && !failed {
			v.fail(ctx, sick)
		}
	}
}

// countFor resets the number of failed tests if the tests ran before the present run of the command. The parameter
// since is when the present run began.
func (h *health) countFor(since time.Time) {
	if !since.Equal(h.run) {
		h.failures, h.run = 0, since
	}
}

// mayRecover reports whether a failed service becomes ready again once it is healthy. A service does not become ready
// again if a hook failed, or if some hooks have not run.
func (h *health) mayRecover(status *protocol.ServiceStatus) bool {
	return status.Hooks >= h.lastHook(status) && slices.Contains([]string{
		protocol.ReasonCrashLoop, protocol.ReasonOOMKilled, protocol.ReasonUnhealthy, protocol.ReasonContainerExited,
	}, status.Reason)
}

// lastHook returns the number, from 1, of the last hook that runs after this start, or 0 if no hook runs.
func (h *health) lastHook(status *protocol.ServiceStatus) int {
	hooks := h.v.spec.PostStart
	for i := len(hooks); i > 0; i-- {
		if !status.Resumed || hooks[i-1].OnResume {
			return i
		}
	}
	return 0
}

func (h *health) recovered(ctx context.Context) {
	if err := h.v.append(ctx, decide.ServiceReady(h.v.cfg.Name)); err != nil {
		h.v.log.Debug("could not append the event that a service is ready again", "error", err)
	}
}

// due returns the pause before the next assessment of the service, or 0 if no assessment is due before the next report
// or event.
func (h *health) due() time.Duration {
	v := h.v
	v.mu.Lock()
	mayLoop := v.crash.Failing(time.Now().Add(-decide.CheckPeriod))
	running := v.attached != nil && v.proc.Running
	v.mu.Unlock()
	var due time.Duration
	if h.check != nil && running {
		due = max(time.Until(h.tested.Add(h.check.Interval.Std())), time.Millisecond)
	}
	if mayLoop && (due == 0 || due > decide.CheckPeriod) {
		due = decide.CheckPeriod
	}
	return due
}
