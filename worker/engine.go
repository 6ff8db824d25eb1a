package worker

import (
	"cmp"
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
	answerPeriod = 250 * time.Millisecond // time between two pings of an engine that does not answer

	// A turn of the loop that watches the engine makes several requests to the engine, each of which has a deadline.
	engineLoop   = "engine"
	engineWithin = 10 * time.Minute
)

var (
	errEngineChanged  = errors.New("the engine came back with another version or configuration")
	errEngineReplaced = errors.New("the engine's address now leads to the engine of another host")
)

// startsOver reports whether the worker must start over and read the engine's identity and abilities again.
func startsOver(err error) bool { return err == errEngineChanged || err == errEngineReplaced }

// engineWatch follows the engine's events, and inspects everything on the host at intervals.
type engineWatch struct {
	w *worker

	followed  time.Time // when the present stream of events was requested
	pinged    error     // why the engine did not answer the last ping; nil: it answered
	listed    error     // why the last inspection of everything failed; nil: it succeeded
	unchecked error     // why the last check after a reconnect failed; nil: the engine is known to be the same
	events    <-chan docker.Event
	failed    <-chan error
}

// run watches the engine until ctx ends, or until the engine has changed. The parameter inspected is true if everything
// on the host has just been inspected. Otherwise run begins with an inspection.
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
	defer w.cfg.OnTurn(engineLoop, 0)
	for {
		w.cfg.OnTurn(engineLoop, engineWithin)
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
			if e.pinged == nil && e.listed != nil { // try again soon: meanwhile the host takes no sandboxes
				e.reconcile(ctx)
			}
		}
	}
}

func (e *engineWatch) follow(ctx context.Context) {
	e.followed = time.Now()
	e.events, e.failed = e.w.engine.Events(ctx, e.w.epoch.Begin, e.w.epoch.Lost)
}

// followAgain waits until the engine answers, checks that it is still the same engine, and follows its events again.
func (e *engineWatch) followAgain(ctx context.Context, lost error) error {
	e.setHealth(lost)
	if !e.awaitAnswer(ctx) {
		return ctx.Err()
	}
	// Pause, because an engine may answer pings but end each stream of events at once.
	if time.Since(e.followed) < pingPeriod && !backoff.Sleep(ctx, time.Second) {
		return ctx.Err()
	}
	if e.unchecked = e.check(ctx); startsOver(e.unchecked) {
		return e.unchecked
	}
	e.follow(ctx)
	return nil
}

// handle tells a sandbox to inspect the host after an event of one of its containers. The container's name proves that
// the container belongs to the sandbox. Containers with other names are found by the inspections at intervals.
func (e *engineWatch) handle(ctx context.Context, event docker.Event) {
	switch event.Action {
	case "die", "oom", "destroy", "start", "stop", "pause", "unpause":
		if k, ok := docker.KeyOf(event.Labels); ok && e.w.owned.hasName(k, event.Labels["name"]) {
			e.w.mailboxes.deliver(ctx, k, (*sandbox.Sandbox).Inspect)
		}
	}
}

// setHealth records whether the engine answered a ping. An engine may answer pings although it answers no request that
// needs a lock which it holds for ever. It is healthy only after an inspection of everything, too, has succeeded.
func (e *engineWatch) setHealth(pinged error) {
	e.pinged = pinged
	e.report()
}

// report shows the host's health if it has changed.
func (e *engineWatch) report() {
	w, err := e.w, cmp.Or(e.pinged, e.listed)
	if e.pinged == nil && errors.Is(e.listed, docker.ErrEngineUnavailable) {
		err = protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineUnavailable, "the engine answers pings, but not "+
			"everything; if that stays so, restart it (systemctl restart docker): %s", protocol.AsError(e.listed).Message)
	}
	if !w.health.Set(err) {
		return
	}
	if err != nil {
		w.log.Warn("the Docker engine does not answer; retrying", "error", err)
	} else {
		w.log.Info("the Docker engine answers again")
		w.recovery.Happened()
	}
}

// awaitAnswer waits until the engine answers. It returns false if ctx ended first.
func (e *engineWatch) awaitAnswer(ctx context.Context) bool {
	for {
		e.w.cfg.OnTurn(engineLoop, engineWithin)
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

// After a reconnect, check compares the engine's identity and configuration with those from before the reconnect. If
// they differ, check returns an error for which startsOver is true. An engine that now refuses a request that it
// answered before counts as changed: it may have another version. Any other error is temporary.
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
		w.log.Warn("could not check whether the Docker engine is still the same; retrying", "error", err)
		return err
	case err != nil:
		w.log.Warn("the Docker engine refused to describe itself after a reconnect; the worker starts over", "error", err)
		return errEngineChanged
	case !info.Like(w.info):
		return errEngineChanged
	}
	return nil
}

func (e *engineWatch) reconcile(ctx context.Context) {
	err := e.adopt(ctx)
	if ctx.Err() == nil {
		e.listed = err
		e.report()
	}
}

// adopt lists this deployment's containers and networks on the host, and tells each sandbox to inspect the host. Each
// sandbox then learns from the log which of its objects should exist. The sandbox reads the log after the list was
// made, so that it does not mistake an object that is just being created for a foreign object.
//
// Meanwhile another goroutine writes the firewall rules of the networks. Running sandboxes do not wait for these rules,
// and each start of a sandbox ensures the rules of its own network.
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
		w.log.Warn("some sandboxes on the host were not settled in time; the host takes new sandboxes anyway",
			"sandboxes", left)
	})
	for k, found := range objects {
		w.mailboxes.deliver(ctx, k, func(s *sandbox.Sandbox) bool { return s.Found(found) })
	}
	return nil
}

// list returns the sandboxes that may have something on the host, each with its containers and networks.
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
	for _, d := range dirs { // a sandbox may have left nothing but its directory
		keys = append(keys, d.Key)
	}
	for _, k := range keys {
		if _, listed := objects[k]; !listed {
			objects[k] = nil
		}
	}
	return objects, nil
}

// syncNetworks updates the firewall rules and the list of subnets in use from the engine's networks.
func (e *engineWatch) syncNetworks(ctx context.Context, mark uint64, networks []docker.Network) {
	w := e.w
	if w.isolation.Sync(ctx, mark, networks) {
		w.changed.Wake() // the table of hosts shows the firewall's status
	}
	if err := w.isolation.RefreshSubnets(ctx); err != nil && ctx.Err() == nil {
		w.log.Warn("could not determine which subnets of the network pool are free; retrying later", "error", err)
	}
}
