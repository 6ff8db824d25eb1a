package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// Service is one service of a sandbox. Its goroutine starts the service and watches it.
type Service struct {
	cfg    Config
	spec   protocol.Service
	log    *slog.Logger
	health *health

	stop    context.CancelFunc
	done    chan struct{}   // closed when the goroutine has ended
	changed wake.Signal     // wakes the goroutine when something about the service has changed
	network func()          // closes netUp
	netUp   chan struct{}   // closed once the sandbox's network exists
	settled chan struct{}   // closed once the service is ready, or has failed
	err     *protocol.Error // why the service failed; do not read it before settled is closed

	mu       sync.Mutex
	attached *attach.Attachment
	dirty    bool // the container may have changed
	down     bool // the container does not run
	givenUp  bool // the worker will not start the container again
	proc     control.Primary
	crash    decide.CrashLoop
	problem  string // why the service is not ready yet

	// Only the service's goroutine uses these fields.
	epoch    int64 // the engine's epoch when the container was last known to run
	restarts *restarts
}

// New returns a service that is not started yet.
func New(cfg Config) *Service {
	v := &Service{
		cfg: cfg, log: cfg.Logger.With("service", cfg.Name), done: make(chan struct{}), changed: wake.New(),
		netUp: make(chan struct{}), settled: make(chan struct{}),
		crash: decide.CrashLoop{Window: cfg.Host.CrashWindow, Guard: cfg.Host.CrashGuard}, epoch: -1,
	}
	v.spec, _ = cfg.Sandbox.Service(cfg.Name) // the spec has the service, because cfg.Name comes from the spec
	v.health, v.restarts = &health{v: v}, &restarts{v: v, epoch: cfg.Host.Epoch.Load()}
	v.network = sync.OnceFunc(func() { close(v.netUp) })
	if cfg.Network {
		v.network()
	}
	return v
}

// Start starts the goroutine. The goroutine ends when ctx ends, or after Stop.
func (v *Service) Start(ctx context.Context) {
	ctx, v.stop = context.WithCancel(ctx)
	go v.run(ctx)
}

// Stop tells the goroutine to end, and does not wait for its end. The container keeps running, and its supervisor stays
// connected.
func (v *Service) Stop() { v.stop() }

// Done returns a channel that is closed when the goroutine has ended.
func (v *Service) Done() <-chan struct{} { return v.done }

// Generation returns the generation of the sandbox for which the service was created.
func (v *Service) Generation() uint64 { return v.cfg.Generation }

// Required reports whether the sandbox waits for the service.
func (v *Service) Required() bool { return v.cfg.Required }

// Settled returns a channel that is closed once the service is ready, or has failed.
func (v *Service) Settled() <-chan struct{} { return v.settled }

// Err returns why the service failed, or nil if the service is ready. Call Err only after Settled is closed.
func (v *Service) Err() *protocol.Error { return v.err }

// NetworkExists tells the service that it can make its container.
func (v *Service) NetworkExists() { v.network() }

// Inspect asks the service's goroutine to inspect the container again.
func (v *Service) Inspect() {
	v.mu.Lock()
	v.dirty = true
	v.mu.Unlock()
	v.changed.Wake()
}

// Container returns the connection to the supervisor, or nil if there is no connection. It also reports whether the
// container does not run (down), and whether the worker will not start the container again (givenUp).
func (v *Service) Container() (a *attach.Attachment, down, givenUp bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.attached, v.down, v.givenUp
}

// Detach disconnects from the supervisor. The container keeps running.
func (v *Service) Detach() {
	v.mu.Lock()
	a := v.attached
	v.attached = nil
	v.mu.Unlock()
	if a != nil {
		a.Close()
	}
}

// EndAll tells the supervisor to end all commands in the container, and publishes the rest of the service's own output.
// It reports whether the supervisor ended all commands. Call EndAll after the goroutine has ended.
func (v *Service) EndAll(ctx context.Context, grace time.Duration) bool {
	a := v.attachment()
	if a == nil {
		return true
	}
	ended := a.EndAll(ctx, grace)
	v.cfg.Output.Finish(ctx, func() bool { return v.process().Running && a.Up() })
	return ended
}

// NotReady returns the error of a sandbox that stopped waiting for this required service.
func (v *Service) NotReady() *protocol.Error {
	v.mu.Lock()
	problem := v.problem
	v.mu.Unlock()
	why := protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonCreateTimeout,
		"the required service %s is not ready: %s%s", v.cfg.Name, problem, attach.Quote(v.cfg.Output.Last()))
	why.Field = field(v)
	return why
}

// ContainerName returns the name of a service's container on the engine.
func ContainerName(deployment string, k protocol.SandboxKey, name string) string {
	return docker.ObjectName(deployment, k) + "." + name
}

// run makes the service ready, unless the log already says that the service is ready or has failed. Then run watches
// the service.
func (v *Service) run(ctx context.Context) {
	defer close(v.done)
	publishing := make(chan struct{})
	go func() {
		defer close(publishing)
		v.cfg.Output.Run(ctx)
	}()
	defer func() { <-publishing }()
	switch status := v.status(); status.State {
	case protocol.ServiceStateStarting:
		err := (&startup{v}).run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			v.err = v.fail(ctx, err)
		}
	case protocol.ServiceStateFailed:
		v.err = v.failure(status.Error)
	default:
		// The service has been healthy since an earlier worker appended that it is ready.
		v.health.passed = time.Now().Add(-v.cfg.Host.Now().Sub(status.Since))
	}
	close(v.settled)
	v.restarts.watch(ctx)
}

func (v *Service) attachment() *attach.Attachment {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.attached
}

// process returns the supervisor's newest report on the service's command.
func (v *Service) process() control.Primary {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.proc
}

// field returns the name of the field of the sandbox's spec that describes the service.
func field(v *Service) string { return v.cfg.Sandbox.ServiceField(v.cfg.Name) }

// status returns the state of the service in the log.
func (v *Service) status() (status protocol.ServiceStatus) {
	v.cfg.Log.View(func(st *protocol.State) { status = st.Sandbox.Services[v.cfg.Name] })
	return status
}

const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// append appends events about the service. It retries until the log has them, or until this host is no longer
// responsible for the service.
func (v *Service) append(ctx context.Context, events []protocol.Event) error {
	for pause := backoff.New(retryFirst, retryMost); ; {
		err := v.cfg.Log.Append(ctx, v.cfg.Generation, func(st *protocol.State) []protocol.Event {
			return decide.Service(st, v.cfg.Host.ID, events)
		})
		if err == nil || errors.Is(err, decide.ErrSuperseded) {
			return err
		}
		v.log.Warn("could not append a service's events to the log; retrying", "error", err)
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// recordEnds appends an event for the ends of the service's command that the log lacks.
func (v *Service) recordEnds(ctx context.Context) {
	a, p := v.attachment(), v.process()
	if a == nil || decide.EndsOf(&p) == 0 {
		return
	}
	status := v.status()
	events := decide.ServiceEnded(v.cfg.Name, a.Boot, &status, &p)
	if len(events) == 0 {
		return
	}
	if err := v.append(ctx, events); err != nil {
		v.log.Debug("could not append the event that a service's command ended", "error", err)
	}
}

// fail appends that the service failed. If the command caused the failure, the event quotes the last part of the
// command's output. fail returns the error that the sandbox fails with if the service is required.
func (v *Service) fail(ctx context.Context, err error) *protocol.Error {
	if hook := (*hookFailure)(nil); errors.As(err, &hook) { // the log already has the failure of the hook
		return v.failure(hook.why)
	}
	e := *protocol.AsError(err)
	switch e.Reason {
	case protocol.ReasonContainerExited, protocol.ReasonUnhealthy, protocol.ReasonOOMKilled, protocol.ReasonCrashLoop,
		protocol.ReasonStartFailed, protocol.ReasonCreateTimeout:
		e.Message += attach.Quote(v.cfg.Output.Last())
	}
	v.log.Warn("a service failed", "error", &e)
	if err := v.append(ctx, decide.ServiceFailed(v.cfg.Name, &e)); err != nil {
		v.log.Debug("could not append the event that a service failed", "error", err)
	}
	return v.failure(&e)
}

// failure returns the error that the sandbox fails with if this service is required.
func (v *Service) failure(why *protocol.Error) *protocol.Error {
	e := protocol.Error{Code: protocol.FailedPrecondition}
	if why != nil {
		e = *why
	}
	if hosterr.Temporary(&e) { // the worker's own retries did not help, so a temporary error would mislead the client
		e.Code = protocol.FailedPrecondition
	}
	if e.Field == "" {
		e.Field = field(v)
	}
	e.Message = fmt.Sprintf("the required service %s failed: %s", v.cfg.Name, e.Message)
	return &e
}

// events passes the reports of the service's supervisor to the service and to the sandbox's execs.
type events struct {
	Execs
	v *Service
}

func (e events) Output(o control.Output) {
	if o.ID == "" {
		e.v.cfg.Output.Grow(o.Stdout, o.Stderr)
		return
	}
	e.Execs.Output(o)
}

// Primary records that the service's command started or ended.
func (e events) Primary(_ *attach.Attachment, p control.Primary) { e.v.report(p) }

func (v *Service) report(p control.Primary) {
	v.cfg.Output.Grow(p.Stdout, p.Stderr)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.proc = p
	v.crash.Report(&p, time.Now())
	v.changed.Wake()
}
