package sandbox

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/execs"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/secrets"
)

// primary is the connection to one start of the primary container, with the reports on the sandbox's own command. Each
// start of the container has a new primary, so the crashes of an earlier start do not count.
type primary struct {
	*attach.Attachment
	s       *Sandbox
	ports   []protocol.Port // ports that the engine published
	revived bool            // the container was started again after its engine or its machine had ended it

	output     *output.CommandLog // publishes the output of the sandbox's own command; nil: no such command
	stopOutput func()             // ends the publishing of output

	reported wake.Signal // wakes awaitSteady after a report

	mu    sync.Mutex
	run   decide.PrimaryRun
	crash decide.CrashLoop
	loops *protocol.Error // error of the crash loop that was found; nil: no crash loop was found
}

// listenPrimary opens the socket that the supervisor of the primary container dials.
func listenPrimary(s *Sandbox, b *protocol.Sandbox, d hostdir.Dir, secret []byte) (*primary, error) {
	defaults, err := d.Defaults()
	if err != nil {
		return nil, err
	}
	welcome := control.Welcome{Key: secret, Command: b.Spec.Command, Grace: b.Spec.Grace.Std(),
		DefaultUser: defaults.User, DefaultCwd: defaults.Cwd, StopSignal: defaults.StopSignal}
	if welcome.Command == nil {
		welcome.Command = defaults.Command
	}
	p := &primary{
		s: s, reported: wake.New(),
		output: newCommandLog(s, protocol.PrimaryLog, b.Generation, func() hostdir.Dir { return d }),
		crash:  decide.CrashLoop{Window: s.host.CrashWindow, Guard: s.host.CrashGuard}, stopOutput: func() {},
	}
	log := p.output
	if len(b.Spec.Command) == 0 {
		p.output = nil
	}
	p.Attachment, err = attach.Listen(attach.Config{
		ControlDir: d.Ctl(), RunDir: d.Run(), Home: d.Sandbox(), Welcome: welcome,
		Secrets: secrets.OfSandbox(&b.Spec).Getter(s.host.Unseal,
			protocol.UnsealQuery{Tenant: s.key.Tenant, Sandbox: s.key.ID, Generation: b.Generation}),
		Lease: s.host.Lease, Fence: s.host.Fence, Events: primaryEvents{s.execs, p, log}, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	if p.output != nil {
		p.publish()
	}
	return p, nil
}

// newCommandLog returns the publisher of the output of a container's own command. The parameter name is
// protocol.PrimaryLog, or a protocol.ServiceLog. The last parameter returns the container's directory.
func newCommandLog(s *Sandbox, name string, generation uint64, in func() hostdir.Dir) *output.CommandLog {
	cfg := output.CommandLogConfig{Key: s.key, Name: name, RunDir: func() string { return in().Run() }, Logger: s.log}
	cfg.Hosts = func() (hosts []protocol.OutputHost) {
		s.history().View(func(st *protocol.State) { hosts = st.OutputHosts() })
		return hosts
	}
	if generation > 1 {
		cfg.Earlier = func(end [2]int64) ([2]int64, error) { return in().EarlierOutput(end) }
	}
	return s.host.Output.NewCommandLog(cfg)
}

// primaryEvents handles the reports of the primary container's supervisor.
type primaryEvents struct {
	*execs.Execs
	p   *primary
	log *output.CommandLog
}

func (e primaryEvents) Connected(a *attach.Attachment, h control.Hello, first bool) {
	e.Execs.Connected(a, h, first)
	e.p.mu.Lock()
	e.p.run.Boot = h.Boot
	e.p.mu.Unlock()
}

func (e primaryEvents) Output(o control.Output) {
	if o.ID == "" {
		e.log.Grow(o.Stdout, o.Stderr)
		return
	}
	e.Execs.Output(o)
}

func (e primaryEvents) Primary(_ *attach.Attachment, report control.Primary) {
	e.log.Grow(report.Stdout, report.Stderr)
	e.p.report(report)
}

// report records that the sandbox's own command started or ended.
func (p *primary) report(report control.Primary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.crash.Report(&report, now)
	if report.Since.IsZero() || report.Since.After(now) {
		report.Since = now
	}
	p.run.Primary = report
	p.reported.Wake()
	p.s.wake.Wake()
}

// lastReport returns the newest report on the command.
func (p *primary) lastReport() decide.PrimaryRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// failing reports whether the command has exited and may be in a crash loop.
func (p *primary) failing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crash.Failing(time.Now())
}

// crashLoop returns the error of a sandbox whose command exits again and again, or nil if there is no crash loop. It
// finds a crash loop only while the supervisor is connected: without a connection, the worker does not know whether the
// command runs again. Once crashLoop has found a crash loop, it returns the same error for this start of the container,
// even if the command no longer exits: the worker ends the command before it appends the error.
func (p *primary) crashLoop(memory protocol.Bytes) *protocol.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loops == nil && p.crash.Looping(time.Now()) && p.Up() {
		p.loops = p.crash.Error("the primary command", memory)
	}
	return p.loops
}

// close disconnects from the supervisor. The container keeps running.
func (p *primary) close() {
	p.Close()
	p.stopOutput()
}

// publish publishes the command's output until stopOutput is called.
func (p *primary) publish() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	p.stopOutput = func() { stop(); <-done }
	go func() {
		defer close(done)
		p.output.Run(ctx)
	}()
}

// finishOutput publishes the rest of the command's output. It gives up after output.FinishWithin.
func (p *primary) finishOutput(ctx context.Context) {
	if p.output == nil {
		return
	}
	p.stopOutput()
	p.output.Finish(ctx, func() bool { return false })
}

// withOutput publishes the rest of the command's output, and adds the last part of the output to an error.
func (p *primary) withOutput(ctx context.Context, why *protocol.Error) *protocol.Error {
	if p.output == nil {
		return why
	}
	p.finishOutput(ctx)
	full := *why
	full.Message += attach.Quote(p.output.Last())
	return &full
}

// awaitEnd waits until the supervisor has reported the end of the command, but not longer than output.FinishWithin.
// Call awaitEnd after the supervisor was told to end the command.
func (p *primary) awaitEnd(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, output.FinishWithin)
	defer cancel()
	for p.lastReport().Running && p.Up() && backoff.Sleep(ctx, output.FinishPoll) {
	}
}

// awaitSteady waits until the sandbox's own command has run for decide.SteadyFor. It returns an error if the command
// cannot be started or ends too early. It ignores the end of a run that began before the time from: a service that the
// command needs may not have been ready. Without a command, awaitSteady returns at once.
func (p *primary) awaitSteady(ctx context.Context, b *protocol.Sandbox, from time.Time) error {
	if len(b.Spec.Command) == 0 {
		return nil
	}
	for {
		run := p.s.conn.ownRun()
		left, why := run.Steady(&b.Spec, from, time.Now())
		if why != nil {
			return p.withOutput(ctx, why)
		}
		if left == 0 {
			return nil
		}
		if p.reported.WaitFor(ctx, min(left, decide.CheckPeriod)); ctx.Err() != nil {
			return protocol.Errorf(protocol.DeadlineExceeded, "", "the sandbox's command did not run in time")
		}
		if err := p.stillRuns(ctx); err != nil {
			return err
		}
	}
}

// stillRuns returns a temporary error if the container has ended by itself or with its engine.
func (p *primary) stillRuns(ctx context.Context) error {
	if p.Up() {
		return nil
	}
	c, err := p.s.containers().Inspect(ctx, p.s.name())
	if err != nil || c.Running && c.Pid == p.Pid {
		return err
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonContainerExited,
		"the sandbox's container ended while its services were starting")
}
