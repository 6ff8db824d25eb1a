package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/output"
)

// service is one service container of a sandbox, and the goroutine that brings it up and watches over
// it. Its process 1 is the supervisor, with the image's command as the primary one, so that execs, the
// ends of process trees and adoption after a restart of the worker are the same machinery as in the
// primary container.
type service struct {
	s          *sandbox
	name       string
	required   bool
	generation uint64
	spec       protocol.Service
	sandbox    protocol.SandboxSpec

	stop    context.CancelFunc
	done    chan struct{} // closed when the goroutine has ended
	wake    wake.Signal   // something about it has changed
	network func()        // says that the sandbox's network is there
	linked  chan struct{} // closed by it
	settled chan struct{} // closed when it is ready, or has failed
	err     *protocol.Error
	output  *output.CommandLog

	// Guarded by the sandbox's lock.
	attached *attachment
	dirty    bool // the container may not be as it was seen
	down     bool // the container does not run
	givenUp  bool // and will not by itself
	proc     control.Primary
	crash    decide.CrashLoop
	problem  string // why it is not ready yet

	// Only the goroutine's own.
	health   *protocol.Healthcheck // nil: it is ready when it runs
	epoch    int64                 // of the engine, when the container was last seen running
	failures int                   // health tests that failed in a row
	judged   time.Time             // the start of the command that they were of
	tested   time.Time
	passed   time.Time // the last health test that passed

	again     time.Duration // the next pause before a container that ended is started again
	notBefore time.Time     // it is not started again before
	seenEpoch int64         // of the engine, that crash, again and notBefore are of
}

// run brings the service up, where the log does not say how that went, and watches over it.
func (v *service) run(ctx context.Context) {
	defer close(v.done)
	publishing := make(chan struct{})
	go func() {
		defer close(publishing)
		v.output.Run(ctx)
	}()
	defer func() { <-publishing }()
	switch status := v.status(); status.State {
	case protocol.ServiceStateStarting:
		err := v.begin(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			v.err = v.fail(ctx, err)
		}
	case protocol.ServiceStateFailed:
		v.err = v.failure(status.Error)
	default:
		v.passed = time.Now().Add(-v.s.w.conn.Now().Sub(status.Since)) // it was well then, as another worker may have seen
	}
	close(v.settled)
	v.watch(ctx)
}

func (v *service) over() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

func (v *service) end() {
	v.stop()
	<-v.done
}

// detach lets go of the container.
func (v *service) detach() {
	v.s.mu.Lock()
	a := v.attached
	v.attached = nil
	v.s.mu.Unlock()
	if a != nil {
		a.close()
	}
}

func (v *service) wakeUp() { v.wake.Wake() }

func (v *service) directory() hostdir.Dir { return v.s.directory(v.generation).Service(v.name) }

// heard takes the sizes of output.
func (v *service) heard(o control.Output) {
	if o.ID == "" {
		v.output.Grow(o.Stdout, o.Stderr)
		return
	}
	v.s.output(o)
}

// primary notes that the service's command started or ended.
func (v *service) primary(_ *attachment, p control.Primary) {
	v.output.Grow(p.Stdout, p.Stderr)
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.proc = p
	v.crash.Report(&p, time.Now())
	v.wakeUp()
}

func (v *service) process() control.Primary {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return v.proc
}

// status is what the log says of the service.
func (v *service) status() (status protocol.ServiceStatus) {
	v.s.journal.View(func(st *protocol.State, _ uint64) { status = st.Sandbox.Services[v.name] })
	return status
}

// append appends an event about the service, trying until the log has it or no longer wants the
// service up here.
func (v *service) append(ctx context.Context, events []protocol.Event) error {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := v.s.append(ctx, v.generation, func(st *protocol.State) []protocol.Event {
			return decide.Service(st, v.s.w.hostID, events)
		})
		if err == nil || errors.Is(err, errSuperseded) {
			return err
		}
		v.s.log.Warn("what became of a service is appended again", "service", v.name, "error", err)
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// fail appends that the service failed, with the end of its output where it was its own doing, and
// returns what its sandbox fails with if it is required.
func (v *service) fail(ctx context.Context, err error) *protocol.Error {
	if hook := (*hookFailure)(nil); errors.As(err, &hook) { // it is in the log
		return v.failure(hook.why)
	}
	e := *protocol.AsError(err)
	switch e.Reason {
	case protocol.ReasonContainerExited, protocol.ReasonUnhealthy, protocol.ReasonOOMKilled, protocol.ReasonCrashLoop,
		protocol.ReasonStartFailed, protocol.ReasonCreateTimeout:
		e.Message += quoted(v.output.Last())
	}
	v.s.log.Warn("a service fails", "service", v.name, "error", &e)
	if err := v.append(ctx, decide.ServiceFailed(v.name, &e)); err != nil {
		v.s.log.Debug("the failure of a service is not appended", "service", v.name, "error", err)
	}
	return v.failure(&e)
}

// failure is what the sandbox fails with when this service, a required one, has failed.
func (v *service) failure(why *protocol.Error) *protocol.Error {
	e := protocol.Error{Code: protocol.FailedPrecondition}
	if why != nil {
		e = *why
	}
	if hosterr.Temporary(&e) { // it was tried long enough
		e.Code = protocol.FailedPrecondition
	}
	if e.Field == "" {
		e.Field = v.sandbox.ServiceField(v.name)
	}
	e.Message = fmt.Sprintf("the required service %s failed: %s", v.name, e.Message)
	return &e
}
