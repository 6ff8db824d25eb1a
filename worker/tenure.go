package worker

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/kernel"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

// tenure works until the lock is lost or ctx ends.
func (w *worker) tenure(ctx context.Context, lease *jetstream.Lease) error {
	w.lock.lease.Store(lease)
	w.initial = newInitialInspection()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return lease.Run(ctx) })
	group.Go(func() error { return w.work(ctx, group) })
	initial := w.initial.done
	go func() {
		select {
		case <-initial:
			w.disk.AllTracked()
		case <-ctx.Done():
		}
	}()
	ended := make(chan error, 1)
	go func() {
		err := group.Wait()
		w.mailboxes.await()
		w.gpus.Forget()
		w.admissions.clear()
		ended <- err
	}()
	<-ctx.Done()
	return w.awaitEnd(ended, endTimeout)
}

// work adopts what is on the host, and takes notifications, until ctx ends.
func (w *worker) work(ctx context.Context, group *errgroup.Group) error {
	engine, registration := engineWatch{w: w}, registration{w}
	failed := engine.adopt(ctx)
	if failed != nil && ctx.Err() == nil {
		w.log.Warn("could not inspect everything on the host; retrying later", "error", failed)
	}
	// Registering and heartbeats ask the coordinators for notifications, so listen before.
	stop, err := w.conn.Work(w.cfg.Name, func(tenant, id string, b *protocol.Batch) {
		w.mailboxes.deliver(ctx, protocol.SandboxKey{Tenant: tenant, ID: id},
			func(s *sandbox.Sandbox) bool { return s.Notify(b) })
	})
	if err != nil {
		return err
	}
	defer stop()
	w.listening.begin()
	defer w.conn.OnReconnect(w.listening.begin)()
	defer w.conn.OnReconnect(w.recovery.Happened)()
	if err := registration.register(ctx); err != nil {
		return err
	}
	group.Go(func() error { return registration.beat(ctx) })
	group.Go(func() error { return registration.keepRegistered(ctx) })
	group.Go(func() error { return engine.run(ctx, failed == nil) })
	group.Go(func() error { return w.images.Run(ctx, w.info.RootDir) })
	group.Go(func() error {
		return kernel.Watchers{Containers: w.mailboxes.processes, Fence: w.lock.fence, Logger: w.log}.Run(ctx)
	})
	w.ready.Do(func() {
		logPosture(w)
		w.log.Info("worker is ready", "host", w.hostID, "engine", w.info.Version, "token", w.lock.token())
		if w.cfg.OnReady != nil {
			w.cfg.OnReady()
		}
	})
	<-ctx.Done()
	return ctx.Err()
}

// endTimeout limits how long work in progress may take to end at the end of a tenure. The engine may take up to two
// minutes to answer.
const endTimeout = 5 * time.Minute

// errStillBusy says that work of an earlier tenure does not end.
var errStillBusy = protocol.Errorf(protocol.Internal, "", "work in progress does not end")

// awaitEnd waits for the end of a tenure's work. If the work does not end, that is a defect of the worker, and its
// process has to end: another tenure must not begin beside it, and nothing should wait for it without limit.
func (w *worker) awaitEnd(ended <-chan error, within time.Duration) error {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
	}
	var busy []string
	for _, k := range w.mailboxes.keys() {
		busy = append(busy, k.String())
	}
	stacks := make([]byte, 1<<20)
	w.log.Error("work in progress does not end", "within", within, "sandboxes", busy,
		"goroutines", string(stacks[:runtime.Stack(stacks, true)]))
	return errStillBusy
}
