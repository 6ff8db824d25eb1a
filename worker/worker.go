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
	started  time.Time // the start of this run, by the store's clock

	// The following fields describe the engine and its host. The methods identify and prepare set them.
	engine     *docker.Engine
	info       docker.Info
	address    string
	hostID     string
	dir        string // the directory of this host, below StateDir
	supervisor string // path of this worker's copy of the supervisor

	lock       *hostLock
	mailboxes  *mailboxes
	owned      ownership
	subnets    *network.Subnets
	ports      protocol.PortRange // the ports that sandboxes may publish
	gpus       *abilities.GPUs
	admissions *admissions
	initial    *initialInspection // the initial inspection of this tenure
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
	changed    wake.Signal // set when the entry in the table of hosts is outdated

	ready     sync.Once // logs that the worker is ready, and calls OnReady
	unlimited sync.Once // logs that terminals are not limited
}

// Run takes the host's lock, and runs the host's sandboxes until ctx ends. Then Run returns nil. Sandboxes and execs
// keep running without a worker, and the next worker on the host adopts them.
//
// Errors:
//   - failed_precondition with reason host_held if another worker has the host; the error names the other worker
//   - already_exists if a worker on another host has the same name
//   - internal if work in progress does not end within five minutes after the end of ctx or the loss of the lock; the
//     process should then end
//
// Run starts over if the engine comes back with another version or configuration, or if another host's engine answers
// at the same address. Run waits while the engine does not answer. If Config.Ephemeral is set and the first attempt
// gets no answer, Run does not wait, but returns the error.
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
			cfg.Logger.Warn("the worker's disk is full; waiting for free space", "worker", cfg.Name, "error", err)
			cfg.OnState(false, "waits for free space on its disk: "+err.Error())
			if !backoff.Sleep(ctx, engineMost) {
				return nil
			}
		case retry && protocol.CodeOf(err) == protocol.Unavailable: // the engine is starting, or down
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

// Shortest and longest pause between two tries to reach the engine.
const (
	enginePause = 250 * time.Millisecond
	engineMost  = 2 * time.Second
)

func newWorker(cfg Config) *worker {
	w := &worker{
		cfg: cfg, conn: cfg.Conn, log: cfg.Logger.With("worker", cfg.Name), instance: strings.ToLower(ulid.Make().String()),
		listening: newListening(), changed: wake.New(), admissions: newAdmissions(), initial: newInitialInspection(),
	}
	w.lock = &hostLock{w: w}
	return w
}

// run works with one engine until that engine is replaced or changes, or until ctx ends.
func (w *worker) run(ctx context.Context) error {
	if err := w.awaitDeployment(ctx); err != nil {
		return err
	}
	w.started = w.conn.Now()
	if err := w.identify(ctx); err != nil {
		return err
	}
	defer w.engine.Close()
	if err := w.registerWriter(ctx); err != nil {
		return err
	}
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

// background runs a function in a goroutine. Calling stop ends the function's context, and waits until the function
// returns.
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

// tenures takes the host's lock again after each loss, until ctx ends or the worker must give the host up.
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
		case err == errEngineChanged: // keep the lease: the next run of this worker takes it over
			return err
		case protocol.CodeOf(err) == protocol.AlreadyExists: // a worker on another host has the same name
			w.lock.release(ctx, lease)
			return err
		}
		// If another worker held the lock meanwhile, its changes are in the log. The next tenure inspects everything.
		w.log.Warn("the worker lost the host's lock; taking the lock again", "error", err)
	}
}

// awaitDeployment waits until a coordinator has created the deployment's streams.
func (w *worker) awaitDeployment(ctx context.Context) error {
	for pause := backoff.New(20*time.Millisecond, time.Second); ; {
		err := w.conn.Open(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.log.Warn("waiting for a coordinator to create the deployment's streams", "error", err)
		w.cfg.OnState(false, "waits for a coordinator to create the deployment's streams: "+err.Error())
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// registerWriter registers the key with which the worker signs what it appends. It waits while NATS does not answer,
// and until a coordinator has registered its own key.
func (w *worker) registerWriter(ctx context.Context) error {
	for pause := backoff.New(20*time.Millisecond, time.Second); ; {
		err := w.conn.RegisterWriter(ctx, protocol.OwnerWorker, w.cfg.Name, w.hostID)
		switch protocol.CodeOf(err) {
		case protocol.Unavailable, protocol.DeadlineExceeded:
		default:
			if err == nil || protocol.AsError(err).Reason != protocol.ReasonNotProvisioned {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.log.Warn("could not register the worker's key; retrying", "error", err)
		w.cfg.OnState(false, "waits to register its key: "+err.Error())
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// leave unregisters the worker and releases the lock when the worker ends.
func (w *worker) leave(lease *jetstream.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var errs []error
	if w.cfg.Ephemeral {
		errs = append(errs, w.removeHost(ctx), w.conn.ForgetImages(ctx, w.cfg.Name))
	}
	errs = append(errs, w.conn.ForgetHost(ctx, w.cfg.Name), lease.Release(ctx))
	if err := errors.Join(errs...); err != nil {
		w.log.Warn("could not unregister the worker or release its lock; both expire by themselves", "error", err)
	}
	return nil
}

// abandonHost unregisters a host whose engine was replaced, so that the worker can register the new engine's host under
// the same name.
func (w *worker) abandonHost(ctx context.Context, lease *jetstream.Lease) {
	for ctx.Err() == nil {
		err := w.conn.ForgetHost(ctx, w.cfg.Name)
		if err == nil {
			break
		}
		w.log.Warn("could not remove the host's entry from the table of hosts; retrying", "error", err)
		backoff.Sleep(ctx, time.Second)
	}
	w.lock.release(ctx, lease)
}

// removeHost removes the host's directory, and the host's id from the engine. It removes nothing if a sandbox is left.
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

// stopForDisk tells a sandbox's goroutine that the disk watch stopped the sandbox. A sandbox without a goroutine learns
// the reason in the next tenure, from a note in its directory.
func (w *worker) stopForDisk(k protocol.SandboxKey, why *protocol.Error) {
	if s := w.mailboxes.get(k); s != nil {
		s.StopForDisk(why)
	}
}

// newMailboxes returns the mailboxes of a worker. The method prepare must have run.
func (w *worker) newMailboxes() *mailboxes {
	host := w.sandboxHost()
	return &mailboxes{
		create: func(k protocol.SandboxKey) *sandbox.Sandbox { return sandbox.New(host, k, w.log) },
		byKey:  map[protocol.SandboxKey]*sandbox.Sandbox{},
	}
}
