package worker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/sandbox"
)

const (
	pingPeriod   = 5 * time.Second
	answerPeriod = 250 * time.Millisecond // between two pings of an engine that does not answer
)

var (
	errEngineChanged  = errors.New("the engine has another version or configuration")
	errEngineReplaced = errors.New("the engine is another host's")
)

// startsOver reports whether the worker must ask its engine everything again.
func startsOver(err error) bool { return err == errEngineChanged || err == errEngineReplaced }

// engineWatch follows the engine's events, and inspects everything on the host from time to time.
type engineWatch struct {
	w *worker

	followed  time.Time // since when the events are followed
	unchecked error     // why the engine that came back could not be checked; nil: it is the same one
	events    <-chan docker.Event
	failed    <-chan error
}

// run watches the engine until ctx ends, or until the engine has changed. inspected says that everything on the host
// was just inspected.
func (e *engineWatch) run(ctx context.Context, inspected bool) error {
	w := e.w
	e.follow(ctx)
	if !inspected {
		e.reconcile(ctx)
	}
	reconcile := time.NewTicker(w.cfg.Reconcile)
	defer reconcile.Stop()
	ping := time.NewTicker(pingPeriod)
	defer ping.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-e.events:
			if !open {
				e.events = nil
				continue
			}
			e.handle(ctx, event)
		case err := <-e.failed:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := e.followAgain(ctx, err); err != nil {
				return err
			}
			e.reconcile(ctx)
		case <-reconcile.C:
			if e.unchecked != nil {
				if e.unchecked = e.check(ctx); startsOver(e.unchecked) {
					return e.unchecked
				}
			}
			e.reconcile(ctx)
		case <-ping.C:
			e.setHealth(w.engine.Ping(ctx))
		}
	}
}

func (e *engineWatch) follow(ctx context.Context) {
	e.followed = time.Now()
	e.events, e.failed = e.w.engine.Events(ctx, e.w.epoch.Begin, e.w.epoch.Lost)
}

// followAgain waits until the engine answers, checks that it is the same one, and follows its events again.
func (e *engineWatch) followAgain(ctx context.Context, lost error) error {
	e.setHealth(lost)
	if !e.awaitAnswer(ctx) {
		return ctx.Err()
	}
	if time.Since(e.followed) < pingPeriod && !backoff.Sleep(ctx, time.Second) { // it answers, but sends no events
		return ctx.Err()
	}
	if e.unchecked = e.check(ctx); startsOver(e.unchecked) {
		return e.unchecked
	}
	e.follow(ctx)
	return nil
}

// handle has a sandbox inspect the host after an event of one of its containers. The name proves that the container is
// the sandbox's; containers with other names are inspected from time to time.
func (e *engineWatch) handle(ctx context.Context, event docker.Event) {
	switch event.Action {
	case "die", "oom", "destroy", "start", "stop", "pause", "unpause":
		if k, ok := docker.KeyOf(event.Labels); ok && e.w.owned.hasName(k, event.Labels["name"]) {
			e.w.mailboxes.deliver(ctx, k, (*sandbox.Sandbox).Inspect)
		}
	}
}

func (e *engineWatch) setHealth(err error) {
	w := e.w
	if !w.health.Set(err) {
		return
	}
	if err != nil {
		w.log.Warn("the engine does not answer", "error", err)
	} else {
		w.log.Info("the engine answers")
		w.recovery.Happened()
	}
}

// awaitAnswer waits until the engine answers. It returns false if ctx ended first.
func (e *engineWatch) awaitAnswer(ctx context.Context) bool {
	for {
		err := e.w.engine.Ping(ctx)
		e.setHealth(err)
		if err == nil {
			return true
		}
		if !backoff.Sleep(ctx, answerPeriod) {
			return false
		}
	}
}

// check re-checks the engine's identity and configuration after a reconnect. It returns an error of startsOver if they
// are not those of the start of the tenure, or a temporary one. An engine that no longer answers a question that it
// answered before may have another version.
func (e *engineWatch) check(ctx context.Context) error {
	w := e.w
	id, err := w.engine.KeepHostID(ctx, w.hostID)
	if err == nil && id != w.hostID {
		return errEngineReplaced
	}
	var info docker.Info
	if err == nil {
		info, err = w.engine.Info(ctx)
	}
	switch {
	case err != nil && hosterr.Temporary(err):
		w.log.Warn("could not check the engine after its return; retrying", "error", err)
		return err
	case err != nil:
		w.log.Warn("the engine that came back does not describe itself", "error", err)
		return errEngineChanged
	case !info.Like(w.info):
		return errEngineChanged
	}
	return nil
}

func (e *engineWatch) reconcile(ctx context.Context) {
	err := e.adopt(ctx)
	if ctx.Err() == nil {
		e.setHealth(err)
	}
}

// adopt lists what is on the host, and has each sandbox inspect the host. Objects with another deployment's label, or
// none, are not in the list. The log says whether those in the list should be there. It is read after the
// list, so that an object that is just being created is not mistaken for a foreign one.
//
// The rules of the networks are written meanwhile: running sandboxes need not wait for that, and a start makes sure of
// its own network's rules.
func (e *engineWatch) adopt(ctx context.Context) error {
	w := e.w
	containers, err := w.owned.Containers(ctx)
	if err != nil {
		return err
	}
	mark := w.isolation.Mark()
	networks, err := w.engine.Networks(ctx)
	if err != nil {
		return err
	}
	synced := make(chan struct{})
	go func() {
		defer close(synced)
		e.syncNetworks(ctx, mark, networks)
	}()
	defer func() { <-synced }()
	objects, err := e.list(containers, networks)
	if err != nil {
		return err
	}
	e.findGPUs(containers)
	w.initial.begin(slices.Collect(maps.Keys(objects)), func(left []protocol.SandboxKey) {
		w.log.Warn("the host takes sandboxes, though some on it could not be inspected", "sandboxes", left)
	})
	for k, found := range objects {
		w.mailboxes.deliver(ctx, k, func(s *sandbox.Sandbox) bool { return s.Found(found) })
	}
	return nil
}

// list returns the sandboxes that may be on the host, with their objects on the engine.
func (e *engineWatch) list(containers []docker.Container, networks []docker.Network) (
	map[protocol.SandboxKey][]sandbox.Object, error) {
	w := e.w
	dirs, err := w.dirs().List()
	if err != nil {
		return nil, err
	}
	objects := sandbox.ObjectsOf(containers, networks)
	for _, found := range objects {
		for _, o := range found {
			if o.Network {
				w.subnets.Use(o.Subnet)
			}
		}
	}
	keys := w.mailboxes.keys()
	for _, d := range dirs { // a sandbox may have left nothing else
		keys = append(keys, d.Key)
	}
	for _, k := range keys {
		if _, listed := objects[k]; !listed {
			objects[k] = nil
		}
	}
	return objects, nil
}

// syncNetworks compares the rules, and the subnets in use, with the engine's networks.
func (e *engineWatch) syncNetworks(ctx context.Context, mark uint64, networks []docker.Network) {
	w := e.w
	if w.isolation.Sync(ctx, mark, networks) {
		w.changed.Wake() // the table of hosts shows the firewall's status
	}
	if err := w.isolation.RefreshSubnets(ctx); err != nil && ctx.Err() == nil {
		w.log.Warn("could not determine the free networks of the pool; retrying later", "error", err)
	}
}
