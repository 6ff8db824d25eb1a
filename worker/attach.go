package worker

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// attachment is the connection to the supervisor of one start of a sandbox's container.
type attachment struct {
	s    *sandbox
	link *supervise.Link
	run  *os.Root // the run directory: the container's word
	home string   // the sandbox's directory
	key  []byte
	pid  int    // of the supervisor, on the host
	boot string // of the supervisor

	revived bool // the container was started again after its engine or its machine had ended it

	ports []protocol.Port // as the engine published them

	ending     atomic.Bool // the supervisor was told to end everything
	forgetting forgetting
	greeted    bool // it was connected once; connected's own

	primary func(*attachment, control.Primary) // hears of the container's own command

	// Of the primary container's command, guarded by the sandbox's lock. A container that is started
	// again has another attachment, so nothing that ended with it counts.
	crash decide.CrashLoop
	loops *protocol.Error // it was found to loop: what the sandbox fails with
	own   decide.PrimaryRun
	heard wake.Signal // own has changed

	output     *output.CommandLog // of the primary container's command; nil: it has none
	stopOutput func()             // ends publishing it

	once sync.Once
	over chan struct{} // closed when the container has ended, or the worker lets go
}

// listen opens the socket that the supervisor of the primary container dials.
func (s *sandbox) listen(b *protocol.Sandbox, d hostdir.Dir, secret []byte) (*attachment, error) {
	output := s.newCommandLog(protocol.PrimaryLog, b.Generation, func() hostdir.Dir { return d })
	grown := func(o control.Output) {
		if o.ID == "" {
			output.Grow(o.Stdout, o.Stderr)
			return
		}
		s.output(o)
	}
	changed := func(a *attachment, p control.Primary) {
		output.Grow(p.Stdout, p.Stderr)
		s.primary(a, p)
	}
	a, err := s.listenIn(d, secret, control.Welcome{Command: b.Spec.Command, Grace: b.Spec.Grace.Std()}, grown, changed)
	if err == nil && len(b.Spec.Command) > 0 {
		a.follow(output)
	}
	return a, err
}

// listenIn opens the socket that the supervisor with this directory dials. The welcome is completed
// from the directory.
func (s *sandbox) listenIn(d hostdir.Dir, secret []byte, welcome control.Welcome, output func(control.Output), primary func(*attachment, control.Primary)) (*attachment, error) {
	defaults, err := d.Defaults()
	if err != nil {
		return nil, err
	}
	welcome.Key, welcome.DefaultUser, welcome.DefaultCwd = secret, defaults.User, defaults.Cwd
	welcome.StopSignal = defaults.StopSignal
	if welcome.Command == nil {
		welcome.Command = defaults.Command
	}
	run, err := os.OpenRoot(d.Run())
	if err != nil {
		return nil, hosterr.Wrap(err, "open the run directory")
	}
	a := &attachment{
		s: s, run: run, home: d.Sandbox(), key: secret, over: make(chan struct{}), primary: primary,
		crash: decide.CrashLoop{Window: s.w.cfg.CrashWindow, Guard: s.w.cfg.CrashGuard}, heard: wake.New(),
	}
	a.link, err = supervise.Listen(supervise.Config{
		ControlDir: d.Ctl(), Run: run, Welcome: welcome, Lease: s.w.trusted,
		OnConnect: a.connected, OnOutput: output, OnEnd: s.ended, OnPrimary: func(p control.Primary) { primary(a, p) }, Logger: s.log,
	})
	if err != nil {
		run.Close()
		return nil, hosterr.Wrap(err, "listen for the supervisor")
	}
	return a, nil
}

// greet waits for the supervisor, which is the process pid of the host, for as long as that is there.
func (a *attachment) greet(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, helloWithin)
	defer cancel()
	a.pid = pid
	a.link.Expect(pid)
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for backoff.Sleep(waiting, aliveCheck) {
			if unix.Kill(pid, 0) == unix.ESRCH {
				stop()
			}
		}
	}()
	hello, err := a.link.Connected(waiting)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy, "the container ended before its supervisor connected")
	}
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy, "the supervisor does not connect: %v", err)
	}
	if hello.Version != control.Version {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSupervisorUnhealthy,
			"the supervisor speaks version %d, this worker %d", hello.Version, control.Version)
	}
	a.boot = hello.Boot
	a.s.w.disk.Track(a.s.key, pid, a.home)
	return nil
}

// close lets go of the supervisor; the container goes on.
func (a *attachment) close() {
	a.once.Do(func() {
		close(a.over)
		a.link.Close()
		if a.stopOutput != nil {
			a.stopOutput()
		}
	})
}

// during returns a context that ends with ctx, and with the attachment.
func (a *attachment) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-a.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// whileConnected returns a context that ends with ctx, and soon after the connection to the supervisor.
func (a *attachment) whileConnected(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for a.link.Up() && backoff.Sleep(ctx, decide.CheckPeriod) {
		}
	}()
	return ctx, cancel
}

// attach makes a the sandbox's attachment; execs that waited for one go on.
func (s *sandbox) attach(a *attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached = a
	close(s.attaching)
	s.attaching = make(chan struct{})
}

// detach lets go of a container that has ended. Its execs read what it left behind.
func (s *sandbox) detach() {
	s.mu.Lock()
	a := s.attached
	s.attached = nil
	if a != nil {
		s.lastOwn = a.own
	}
	s.mu.Unlock()
	if a != nil {
		a.close()
		a.endOutput(context.Background())
	}
}

// connected takes over what the supervisor says at the start of a connection: execs that ended
// while the worker was away.
func (a *attachment) connected(h control.Hello) {
	if !a.greeted {
		a.greeted = true
		a.forgetEnded(h.Execs)
	}
	for _, x := range h.Execs {
		a.s.output(control.Output{ID: x.ID, Stdout: x.StdoutBytes, Stderr: x.StderrBytes})
		if x.Result != nil {
			a.s.ended(*x.Result)
		}
	}
	a.s.mu.Lock()
	a.own.Boot = h.Boot
	a.s.mu.Unlock()
	if h.Primary != nil {
		a.primary(a, *h.Primary)
	}
}

func (s *sandbox) output(o control.Output) {
	if r := s.runOf(o.ID); r != nil {
		r.grown(o.Stdout, o.Stderr)
	}
}

func (s *sandbox) ended(result control.Result) {
	s.mu.Lock()
	command := s.commands[result.ID]
	s.mu.Unlock()
	if command != nil {
		select {
		case command <- result:
		default: // it was told before
		}
	}
	if r := s.runOf(result.ID); r != nil {
		select {
		case r.result <- result:
		default: // it was told before
		}
	}
}

// primary notes that the primary command started or ended.
func (s *sandbox) primary(a *attachment, p control.Primary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	a.crash.Report(&p, now)
	if p.Since.IsZero() || p.Since.After(now) {
		p.Since = now
	}
	a.own.Primary = p
	a.heard.Wake()
	s.wakeUp()
}

func (s *sandbox) runOf(id string) *execRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// attachment returns the present attachment, waiting for one until ctx ends.
func (s *sandbox) attachment(ctx context.Context) (*attachment, error) {
	for {
		s.mu.Lock()
		a, changed := s.attached, s.attaching
		s.mu.Unlock()
		if a != nil {
			return a, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
