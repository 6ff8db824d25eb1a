package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/watermark"
)

const (
	beatPeriod     = time.Second
	registerPeriod = 15 * time.Second
	pingPeriod     = 5 * time.Second
)

// health is whether the Engine answers.
type health struct {
	mu      sync.Mutex
	problem string
}

func (h *health) set(err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	changed = (h.problem == "") != (problem == "")
	h.problem = problem
	return changed
}

func (h *health) get() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.problem
}

// register writes the worker's entry in the table of hosts.
func (w *worker) register(ctx context.Context) error {
	for {
		healthy, problem, firewall := w.condition()
		mounts, writable := w.files.Mounts.Advertised()
		_, pids := watermark.Processes()
		now, skew := w.conn.Now(), w.skew()
		h := &protocol.Host{
			Worker: w.cfg.Name, HostID: w.hostID, Instance: w.instance, Token: w.token(), Build: w.cfg.Build,
			Labels: w.cfg.Labels, Slots: w.cfg.Slots, CPU: w.cfg.CPU, Cores: w.info.CPUs, Memory: w.offeredMemory(), Defaults: w.cfg.Defaults,
			Engine: w.info.Version, Runtime: w.info.Runtime, Mounts: mounts, Writable: writable, Tools: w.files.Tools.Usable(),
			Profiles: w.abilities.Profiles, ServiceProfiles: w.abilities.ServiceProfiles, Runtimes: w.abilities.Runtimes, GPUs: w.abilities.GPUs, DiskQuota: w.info.DiskQuota, Images: true, ReadsSegments: true,
			Disk: w.offeredDisk(), PIDs: int64(pids), DenyNetworks: w.isolation.Denied(), AllowNetworks: w.isolation.Allowed(), Ports: w.ports.String(), Registries: w.cfg.Images.Registries, MostPIDs: w.cfg.PIDs, Posture: w.posture(), Firewall: firewall, Healthy: healthy, Problem: problem, Full: w.full(), StartedAt: w.started, SeenAt: now, Skew: skew,
		}
		if h.CPU == 0 {
			h.CPU = float64(w.info.CPUs)
		}
		err := w.conn.RegisterHost(ctx, h)
		if err == nil || protocol.CodeOf(err) == protocol.AlreadyExists || ctx.Err() != nil {
			return err
		}
		w.log.Warn("the worker is not registered yet", "error", err)
		if !backoff.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// condition is what a host says of itself: whether the Engine answers, what is wrong, and what keeps
// the networks of sandboxes apart.
func (w *worker) condition() (healthy bool, problem, firewall string) {
	firewall, unprotected := w.isolation.Status()
	if problem = w.health.get(); problem != "" {
		return false, problem, firewall
	}
	return true, unprotected, firewall
}

// listening counts the times that the worker began to hear work items, each after some may have been
// lost.
type listening struct {
	times atomic.Uint64
	fresh wake.Signal
}

func newListening() *listening { return &listening{fresh: wake.New()} }

func (l *listening) again() {
	l.times.Add(1)
	l.nudge()
}

// nudge has the next heartbeat sent at once.
func (l *listening) nudge() { l.fresh.Wake() }

// beat says that the worker is alive.
func (w *worker) beat(ctx context.Context) error {
	ticker := time.NewTicker(beatPeriod)
	defer ticker.Stop()
	for {
		healthy, problem, _ := w.condition()
		beat := &protocol.Heartbeat{Worker: w.cfg.Name, HostID: w.hostID, Instance: w.instance, Healthy: healthy, Problem: problem, Full: w.full(),
			Listening: w.listening.times.Load(), Skew: w.skew()}
		w.say(healthy, problem)
		if err := w.conn.Beat(beat); err != nil {
			w.log.Debug("a heartbeat is not sent", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.listening.fresh:
		case <-ticker.C:
		}
	}
}

// skew is how far the host's wall clock is ahead of the store's; nil: not known.
func (w *worker) skew() *protocol.Duration {
	skew, known := w.conn.Skew()
	if !known {
		return nil
	}
	shown := protocol.Duration(skew.Round(time.Millisecond))
	return &shown
}

// say says how the worker is, for whoever watches over its process.
func (w *worker) say(healthy bool, problem string) {
	if err := w.fence(); err != nil {
		healthy, problem = false, err.Error()
	}
	if healthy {
		problem = "holds the lock of host " + w.hostID + ", and the engine answers"
	}
	w.cfg.OnState(healthy, problem)
}

// keepRegistered writes the worker's entry in the table of hosts again, before it ends and where it has
// changed. Heartbeats do not wait for that: they need no store.
func (w *worker) keepRegistered(ctx context.Context) error {
	ticker := time.NewTicker(registerPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.changed:
		case <-ticker.C:
		}
		if err := w.register(ctx); err != nil {
			return err
		}
	}
}

// watchEngine follows what happens to containers, looks at everything from time to time, and
// notes whether the Engine answers. known says that all was looked at before.
func (w *worker) watchEngine(ctx context.Context, known bool) error {
	followed := time.Now()
	var asked error // not nil: what the engine is that came back is not known yet
	events, failed := w.engine.Events(ctx, w.epoch.begun, w.epoch.lost)
	if !known {
		w.reconcile(ctx)
	}
	reconcile := time.NewTicker(w.cfg.Reconcile)
	defer reconcile.Stop()
	ping := time.NewTicker(pingPeriod)
	defer ping.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-events:
			if !open {
				events = nil
				continue
			}
			switch e.Action {
			case "die", "oom", "destroy", "start", "stop", "pause", "unpause":
				if k, ok := docker.KeyOf(e.Labels); ok && w.hasName(k, e.Labels["name"]) { // the engine's own word; what has another name is looked at from time to time
					w.reach(ctx, k, (*sandbox).look)
				}
			}
		case err := <-failed:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			w.setHealth(err)
			if !w.awaitEngine(ctx) {
				return ctx.Err()
			}
			if time.Since(followed) < pingPeriod && !backoff.Sleep(ctx, againFirst) { // it answers, and does not tell
				return ctx.Err()
			}
			if asked = w.engineAsBefore(ctx); begunAnew(asked) {
				return asked
			}
			followed = time.Now()
			events, failed = w.engine.Events(ctx, w.epoch.begun, w.epoch.lost)
			w.reconcile(ctx)
		case <-reconcile.C:
			if asked != nil {
				if asked = w.engineAsBefore(ctx); begunAnew(asked) {
					return asked
				}
			}
			w.reconcile(ctx)
		case <-ping.C:
			w.setHealth(w.engine.Ping(ctx))
		}
	}
}

func (w *worker) setHealth(err error) {
	if !w.health.set(err) {
		return
	}
	if err != nil {
		w.log.Warn("the engine does not answer", "error", err)
	} else {
		w.log.Info("the engine answers")
		w.recovery.happened()
	}
}

// awaitEngine waits until the Engine answers; false for the end of ctx.
func (w *worker) awaitEngine(ctx context.Context) bool {
	for {
		err := w.engine.Ping(ctx)
		w.setHealth(err)
		if err == nil {
			return true
		}
		if !backoff.Sleep(ctx, 250*time.Millisecond) {
			return false
		}
	}
}

var (
	errEngineChanged  = errors.New("the engine has another version or configuration")
	errEngineReplaced = errors.New("the engine is another host's")
)

// engineAsBefore asks an engine that is back what it is: all that the worker knows of it is as it was at the
// start of a tenure. It returns one of the two errors above, or one that passes. One that does not answer
// what it is asked any more may have another version.
func (w *worker) engineAsBefore(ctx context.Context) error {
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
		w.log.Warn("the engine that is back is asked again later what it is", "error", err)
		return err
	case err != nil:
		w.log.Warn("the engine that is back does not say what it is", "error", err)
		return errEngineChanged
	case !info.Like(w.info):
		return errEngineChanged
	}
	return nil
}

func (w *worker) reconcile(ctx context.Context) {
	err := w.adopt(ctx)
	if ctx.Err() == nil {
		w.setHealth(err)
	}
}

// adopt lists what is on the host and has each sandbox looked at, while the rules of their networks are
// written anew: those that run need not wait for that, and what is started makes sure of its own. What
// carries another deployment's label, or none, is not in the list. Of what is in the list, the log says
// whether it should be there; it is asked after the list was made, so that nothing that was just being
// made looks foreign.
func (w *worker) adopt(ctx context.Context) error {
	containers, err := w.containers(ctx)
	if err != nil {
		return err
	}
	mark := w.isolation.Mark()
	networks, err := w.engine.Networks(ctx)
	if err != nil {
		return err
	}
	ruled := make(chan struct{})
	go func() {
		defer close(ruled)
		if w.isolation.Sync(ctx, mark, networks) {
			w.changed.Wake() // the table of hosts shows the firewall's status
		}
		if err := w.isolation.RefreshSubnets(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("what of the pool of networks is free is looked at again later", "error", err)
		}
	}()
	defer func() { <-ruled }()
	dirs, err := w.dirs.List()
	if err != nil {
		return err
	}
	objects := labelledObjects(containers, networks)
	for _, found := range objects {
		for _, o := range found {
			if o.network {
				w.subnets.Use(o.subnet)
			}
		}
	}
	named := func(k key) {
		if _, there := objects[k]; !there {
			objects[k] = nil
		}
	}
	w.findGPUs(containers)
	for _, d := range dirs {
		named(d.Key) // to be looked at, also where there is nothing else
	}
	w.mu.Lock()
	for k := range w.sandboxes {
		named(k)
	}
	w.mu.Unlock()
	w.firstLook.begin(objects, func(left []key) {
		w.log.Warn("the host takes sandboxes, though some on it could not be looked at", "sandboxes", left)
	})
	for k, found := range objects {
		w.reach(ctx, k, func(s *sandbox) bool { return s.found(found) })
	}
	return nil
}
