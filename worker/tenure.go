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

// tenure runs the host's sandboxes until the lock is lost or ctx ends. It returns after all of its work has ended.
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

// work adopts the sandboxes that are on the host, and handles notifications, until ctx ends.
func (w *worker) work(ctx context.Context, group *errgroup.Group) error {
	engine, registration := engineWatch{w: w}, registration{w}
	failed := engine.adopt(ctx)
	engine.listed = failed
	if failed != nil && ctx.Err() == nil {
		w.log.Warn("could not inspect everything on the host; retrying later", "error", failed)
	}
	// Coordinators send notifications to workers that are registered and send heartbeats. So subscribe before the
	// worker registers.
	stop, err := w.conn.Work(w.cfg.Name, func(tenant, id string, b *protocol.Batch) {
		w.mailboxes.deliver(ctx, protocol.SandboxKey{Tenant: tenant, ID: id},
			func(s *sandbox.Sandbox) bool { return s.Notify(b) })
	})
	if err != nil {
		return err
	}
	defer stop()
	unmeasure, err := w.conn.ServeMeasures(ctx, w.cfg.Name, w.hostID, w.measure)
	if err != nil {
		return err
	}
	defer unmeasure()
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
	group.Go(func() error { return w.serveStreams(ctx) })
	group.Go(func() error {
		return kernel.Watchers{Containers: w.mailboxes.processes, Fence: w.lock.fence, Logger: w.log}.Run(ctx)
	})
	w.ready.Do(func() {
		logPosture(w)
		w.log.Info("the worker is ready", "host", w.hostID, "engine", w.info.Version, "token", w.lock.token())
		if w.cfg.OnReady != nil {
			w.cfg.OnReady()
		}
	})
	<-ctx.Done()
	return ctx.Err()
}

// endTimeout limits how long work in progress may take to end after a tenure. One request to the engine may take up to
// two minutes.
const endTimeout = 5 * time.Minute

// errStillBusy says that work of an earlier tenure did not end in time.
var errStillBusy = protocol.Errorf(protocol.Internal, "",
	"the worker's work in progress did not end in time; restart the worker's process")

// awaitEnd waits for the end of a tenure's work. Work that does not end is a defect of the worker. The worker's process
// must then end: another tenure must not begin while this work continues.
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
	w.log.Error("the worker's work in progress did not end in time", "within", within, "sandboxes", busy,
		"goroutines", string(stacks[:runtime.Stack(stacks, true)]))
	return errStillBusy
}
