package attach

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

const (
	connectTimeout = 20 * time.Second       // how long a supervisor may take to connect after its container was started
	alivePeriod    = 250 * time.Millisecond // pause between two checks of the supervisor's process
	linkPeriod     = time.Second            // pause between two checks of the connection
)

// Config describes the supervisor to wait for.
type Config struct {
	ControlDir string // directory of the socket that the supervisor dials
	RunDir     string // directory with the files that the supervisor writes; the worker does not trust their content
	Home       string // directory of the container on the host
	Welcome    control.Welcome
	Secrets    supervise.Secrets                       // gets the container's secrets; nil: it has none
	Lease      func() (until time.Duration, err error) // returns until when the host's lock may be trusted
	Fence      func() error                            // returns an error if the worker does not hold the host's lock
	Events     Events
	Log        *slog.Logger
}

// Events receives the reports of a supervisor. The link's goroutines call its methods.
type Events interface {
	Connected(a *Attachment, h control.Hello, first bool)
	Output(o control.Output)
	Ended(result control.Result)
	Primary(a *Attachment, p control.Primary)
}

// Attachment is the connection to the supervisor of one start of a container.
type Attachment struct {
	Link *supervise.Link
	// Run is the run directory, with the files that the supervisor writes. Close leaves the directory open, because
	// execs may still read from it afterwards. The garbage collector closes the directory when the attachment is no
	// longer referenced.
	Run  *os.Root
	Home string // directory of the container on the host
	Key  []byte // authenticates the supervisor's exit records
	Pid  int    // process id of the supervisor on the host; set by Greet
	Boot string // boot of the supervisor; set by Greet

	ending     atomic.Bool
	connected  bool // the supervisor has connected at least once; only the link's goroutine uses this field
	forgetting forgetting
	cfg        Config

	mu       sync.Mutex
	commands map[string]chan control.Result // the worker's own commands that Command waits for, by id

	once sync.Once
	done chan struct{}
}

// Listen opens the socket that the supervisor dials.
func Listen(cfg Config) (*Attachment, error) {
	run, err := os.OpenRoot(cfg.RunDir)
	if err != nil {
		return nil, hosterr.Wrap(err, "open the run directory")
	}
	a := &Attachment{Run: run, Home: cfg.Home, Key: cfg.Welcome.Key, cfg: cfg,
		commands: map[string]chan control.Result{}, done: make(chan struct{})}
	a.Link, err = supervise.Listen(supervise.Config{
		ControlDir: cfg.ControlDir, Run: run, Welcome: cfg.Welcome, Secrets: cfg.Secrets, Lease: cfg.Lease, Logger: cfg.Log,
		OnConnect: a.onConnect, OnOutput: cfg.Events.Output, OnEnd: a.onEnd,
		OnPrimary: func(p control.Primary) { cfg.Events.Primary(a, p) },
	})
	if err != nil {
		run.Close()
		return nil, hosterr.Wrap(err, "listen for the supervisor")
	}
	return a, nil
}

// Greet waits until the supervisor connects. pid is the supervisor's process on the host. If this process ends first,
// or the supervisor cannot get the container's secrets, Greet returns an error at once.
func (a *Attachment) Greet(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	a.Pid = pid
	a.Link.Expect(pid)
	alive, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for backoff.Sleep(alive, alivePeriod) {
			if unix.Kill(pid, 0) == unix.ESRCH {
				stop()
			}
		}
	}()
	hello, err := a.Link.Connected(alive)
	if refused := a.Link.Refused(); err != nil && refused != nil {
		return refused
	}
	if err != nil && alive.Err() != nil && ctx.Err() == nil {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy,
			"the container ended before its supervisor connected")
	}
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy,
			"the supervisor did not connect: %v", err)
	}
	if hello.Version != control.Version {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSupervisorUnhealthy,
			"the supervisor speaks version %d of the control protocol, this worker version %d",
			hello.Version, control.Version)
	}
	a.Boot = hello.Boot
	return nil
}

// Close disconnects from the supervisor. The container keeps running.
func (a *Attachment) Close() {
	a.once.Do(func() {
		close(a.done)
		a.Link.Close()
	})
}

// Done returns a channel that Close closes. The worker calls Close when the container has ended.
func (a *Attachment) Done() <-chan struct{} { return a.done }

// During returns a context that ends when ctx ends or when Close is called.
func (a *Attachment) During(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-a.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// WhileConnected returns a context that ends when ctx ends, or soon after the supervisor disconnects.
func (a *Attachment) WhileConnected(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for a.Link.Up() && backoff.Sleep(ctx, linkPeriod) {
		}
	}()
	return ctx, cancel
}

// Up reports whether the supervisor is connected. Without a connection, the supervisor's last report may be out of
// date. a may be nil.
func (a *Attachment) Up() bool { return a != nil && a.Link.Up() }

// EndAll tells the supervisor to end every command in the container, and reports whether the supervisor did so.
func (a *Attachment) EndAll(ctx context.Context, grace time.Duration) bool {
	bounded, cancel := context.WithTimeout(ctx, grace+3*time.Second)
	defer cancel()
	a.ending.Store(true)
	err := a.Link.StopAll(bounded, grace)
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Warn("the supervisor did not end all commands in its container; stopping the container ends them",
			"error", err)
	}
	return err == nil
}

// Ending reports whether EndAll was called. a may be nil.
func (a *Attachment) Ending() bool { return a != nil && a.ending.Load() }

// onConnect reports to cfg.Events what happened in the container while the worker was not connected.
func (a *Attachment) onConnect(h control.Hello) {
	first := !a.connected
	a.connected = true
	a.cfg.Events.Connected(a, h, first)
	for _, x := range h.Execs {
		a.cfg.Events.Output(control.Output{ID: x.ID, Stdout: x.StdoutBytes, Stderr: x.StderrBytes})
		if x.Result != nil {
			a.onEnd(*x.Result)
		}
	}
	if h.Primary != nil {
		a.cfg.Events.Primary(a, *h.Primary)
	}
}

// onEnd passes a result to the Command call that waits for it, if there is one, and to cfg.Events.
func (a *Attachment) onEnd(result control.Result) {
	a.mu.Lock()
	command := a.commands[result.ID]
	a.mu.Unlock()
	if command != nil {
		select {
		case command <- result:
		default: // the command already has its result
		}
	}
	a.cfg.Events.Ended(result)
}
