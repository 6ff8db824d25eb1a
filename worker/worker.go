package worker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/disk"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/epoch"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/images"
	"github.com/boxfleet/boxfleet/worker/network"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/removal"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

// worker is one run of a worker, with one engine.
type worker struct {
	cfg      Config
	conn     *jetstream.Conn
	log      *slog.Logger
	instance string    // id of this run
	started  time.Time // by the store's clock

	// Of the engine; set by identify and prepare.
	engine     *docker.Engine
	info       docker.Info
	address    string
	hostID     string
	dir        string // of this host, below StateDir
	supervisor string // path of this worker's copy of the supervisor

	lock       *hostLock
	mailboxes  *mailboxes
	owned      ownership
	subnets    *network.Subnets
	ports      protocol.PortRange // that may be published
	gpus       *abilities.GPUs
	admissions *admissions
	initial    *initialInspection // of this tenure
	disk       *disk.Watch
	files      hostfiles.Files
	images     *images.Images
	abilities  *abilities.Abilities
	isolation  *network.Isolation
	output     *output.Host
	health     hosterr.Problem
	listening  *listening
	epoch      epoch.Epoch
	recovery   epoch.Recovery
	changed    wake.Signal // the entry in the table of hosts is outdated

	ready     sync.Once // the worker took its first work
	unlimited sync.Once // the warning that terminals are not limited
}

// Run takes the host's lock and works until ctx ends. Execs and sandboxes run on without it; the next worker on the
// host adopts them. It returns nil after the end of ctx. Errors: failed_precondition with reason host_held, naming the
// holder, when another worker has the host; already_exists when another host has this worker's name; internal when work
// does not end within five minutes after the end of the lock or of ctx, after which the process should end.
//
// It starts over when the engine comes back with another version or configuration, or is another host's. It waits for
// an engine that does not answer, also at the beginning unless the worker is ephemeral.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Conn == nil {
		return protocol.Invalid("conn", "must be set")
	}
	if err := cfg.check(); err != nil {
		return err
	}
	if ready := cfg.OnReady; ready != nil {
		cfg.OnReady = sync.OnceFunc(ready)
	}
	pause := backoff.New(enginePause, engineMost)
	for retry := !cfg.Ephemeral; ; retry = true {
		err := newWorker(cfg).run(ctx)
		switch {
		case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled) ||
			protocol.CodeOf(err) == protocol.Cancelled):
			return nil
		case startsOver(err):
			cfg.Logger.Warn("the worker starts over", "worker", cfg.Name, "error", err)
			pause.Reset()
		case hosterr.DiskFull(err):
			cfg.Logger.Warn("waiting for room on the worker's disk", "worker", cfg.Name, "error", err)
			cfg.OnState(false, "waits for room on its disk: "+err.Error())
			if !backoff.Sleep(ctx, engineMost) {
				return nil
			}
		case retry && protocol.CodeOf(err) == protocol.Unavailable: // the engine starts or restarts
			cfg.Logger.Warn("waiting for the Docker engine", "worker", cfg.Name, "error", err)
			cfg.OnState(false, "waits for the Docker engine: "+err.Error())
			if !pause.Wait(ctx) {
				return nil
			}
		default:
			return err
		}
	}
}

// Pauses between tries to reach an engine.
const (
	enginePause = 250 * time.Millisecond
	engineMost  = 2 * time.Second
)

func newWorker(cfg Config) *worker {
	w := &worker{
		cfg: cfg, conn: cfg.Conn, log: cfg.Logger.With("worker", cfg.Name), instance: strings.ToLower(ulid.Make().String()),
		listening: newListening(), changed: wake.New(), admissions: newAdmissions(), initial: newInitialInspection(),
		output: output.New(output.Config{
			Conn: cfg.Conn, Burst: cfg.OutputBurst, Rate: cfg.OutputRate, Patience: cfg.OutputPatience,
			After: cfg.OutputWithin, Probe: cfg.Probe,
		}),
	}
	w.lock = &hostLock{w: w}
	return w
}

// run works with one engine until it is replaced or changes, or until ctx ends.
func (w *worker) run(ctx context.Context) error {
	if err := w.awaitDeployment(ctx); err != nil {
		return err
	}
	w.started = w.conn.Now()
	if err := w.identify(ctx); err != nil {
		return err
	}
	defer w.engine.Close()
	unlock, err := w.lock.lockFile()
	if err != nil {
		return err
	}
	defer unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	defer w.isolation.Close()
	w.disk = disk.New(disk.Config{
		WorkerDir: w.cfg.StateDir, EngineDir: w.info.RootDir, ReserveDir: w.dir, Low: w.cfg.DiskLow,
		Reserve: w.cfg.DiskReserve, OnStop: w.stopForDisk, Logger: w.log,
	})
	stop := background(ctx, w.disk.Run)
	defer stop()
	w.mailboxes = w.newMailboxes()
	return w.tenures(ctx)
}

// background runs a function until stop is called, which waits for its end.
func background(ctx context.Context, run func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// tenures holds the host's lock, again and again, until ctx ends or the worker must not hold it.
func (w *worker) tenures(ctx context.Context) error {
	for {
		lease, err := w.lock.acquire(ctx)
		if err != nil {
			return err
		}
		err = w.tenure(ctx, lease)
		switch {
		case err == errStillBusy:
			return err
		case ctx.Err() != nil:
			return w.leave(lease)
		case err == errEngineReplaced:
			w.abandonHost(ctx, lease)
			return err
		case err == errEngineChanged: // the worker that starts over takes the lock over
			return err
		case protocol.CodeOf(err) == protocol.AlreadyExists: // another host has the worker's name
			w.lock.release(ctx, lease)
			return err
		}
		// Whatever another holder of the lock did is in the log. Take the lock again, and inspect everything again.
		w.log.Warn("the host's lock was lost; taking it again", "error", err)
	}
}

// awaitDeployment waits until a coordinator has made the streams.
func (w *worker) awaitDeployment(ctx context.Context) error {
	for pause := backoff.New(20*time.Millisecond, time.Second); ; {
		err := w.conn.Open(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.log.Warn("waiting for a coordinator to provision the deployment", "error", err)
		w.cfg.OnState(false, "waits for a coordinator to make the streams: "+err.Error())
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// leave unregisters the worker and releases the lock, at the end of its life.
func (w *worker) leave(lease *jetstream.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var errs []error
	if w.cfg.Ephemeral {
		errs = append(errs, w.removeHost(ctx), w.conn.ForgetImages(ctx, w.cfg.Name))
	}
	errs = append(errs, w.conn.ForgetHost(ctx, w.cfg.Name), lease.Release(ctx))
	if err := errors.Join(errs...); err != nil {
		w.log.Warn("could not unregister the worker; its lock ends by itself", "error", err)
	}
	return nil
}

// abandonHost unregisters a host whose engine was replaced, so that the worker can have the new engine's host.
func (w *worker) abandonHost(ctx context.Context, lease *jetstream.Lease) {
	for ctx.Err() == nil {
		err := w.conn.ForgetHost(ctx, w.cfg.Name)
		if err == nil {
			break
		}
		w.log.Warn("could not remove the host's entry; retrying", "error", err)
		backoff.Sleep(ctx, time.Second)
	}
	w.lock.release(ctx, lease)
}

// removeHost removes the host's id from the engine, and the host's directory, if no sandbox is left.
func (w *worker) removeHost(ctx context.Context) error {
	left, err := w.owned.Containers(ctx)
	if err != nil || len(left) > 0 {
		return err
	}
	if err := removal.Tree(ctx, w.deploymentDir()); err != nil {
		return err
	}
	if err := w.isolation.RemoveAll(); err != nil {
		return err
	}
	return w.engine.RemoveHostID(ctx)
}

// stopForDisk passes on that the disk watch stopped a sandbox. Without a goroutine the sandbox reads the note in its
// directory in the next tenure.
func (w *worker) stopForDisk(k protocol.SandboxKey, why *protocol.Error) {
	if s := w.mailboxes.get(k); s != nil {
		s.StopForDisk(why)
	}
}

// newMailboxes returns the sandboxes of a worker that is prepared.
func (w *worker) newMailboxes() *mailboxes {
	host := w.sandboxHost()
	return &mailboxes{
		create: func(k protocol.SandboxKey) *sandbox.Sandbox { return sandbox.New(host, k, w.log) },
		byKey:  map[protocol.SandboxKey]*sandbox.Sandbox{},
	}
}
