package worker

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/watermark"
)

const (
	beatPeriod     = time.Second
	registerPeriod = 15 * time.Second

	beatLoop   = "heartbeats"     // for Config.OnTurn
	beatWithin = 30 * time.Second // longest time between two turns of this loop
)

// listening counts how many times the worker has begun to receive notifications. Between two such times, the worker may
// have missed notifications. The coordinators read the count from the heartbeats, and repeat lost notifications.
type listening struct {
	times atomic.Uint64
	beat  wake.Signal // set to send the next heartbeat at once
}

func newListening() *listening { return &listening{beat: wake.New()} }

func (l *listening) begin() {
	l.times.Add(1)
	l.beat.Wake()
}

// registration keeps the worker's entry in the table of hosts, and sends its heartbeats.
type registration struct{ w *worker }

// register writes the worker's entry in the table of hosts.
func (r *registration) register(ctx context.Context) error {
	w := r.w
	for {
		err := w.conn.RegisterHost(ctx, r.entry())
		if err == nil || protocol.CodeOf(err) == protocol.AlreadyExists || ctx.Err() != nil {
			return err
		}
		w.log.Warn("could not register the worker; retrying", "error", err)
		if !backoff.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// entry returns the worker's entry for the table of hosts.
func (r *registration) entry() *protocol.Host {
	w := r.w
	healthy, problem, firewall := r.condition()
	mounts, writable := w.files.Mounts.Advertised()
	_, pids := watermark.Processes()
	now, skew := w.conn.Now(), r.skew()
	issued, expires := w.conn.CredentialsLife()
	return &protocol.Host{
		Worker: w.cfg.Name, HostID: w.hostID, Instance: w.instance, Token: w.lock.token(), Build: w.cfg.Build,
		Labels: w.cfg.Labels, Engine: w.info.Version, Runtime: w.info.Runtime,

		Slots: w.cfg.Slots, CPU: cmp.Or(w.cfg.CPU, float64(w.info.CPUs)), Cores: w.info.CPUs,
		Memory: w.capacity().memory(), Disk: w.capacity().disk(), DiskQuota: w.info.DiskQuota,
		PIDs: int64(pids), MostPIDs: w.cfg.PIDs, GPUs: w.abilities.GPUs,

		Defaults: w.cfg.Defaults, Mounts: mounts, Writable: writable, Tools: w.files.Tools.Usable(),
		Profiles: w.abilities.Profiles, ServiceProfiles: w.abilities.ServiceProfiles, Runtimes: w.abilities.Runtimes,
		DenyNetworks: w.isolation.Denied(), AllowNetworks: w.isolation.Allowed(), Ports: w.ports.String(),
		Registries: w.cfg.Images.Registries, Images: true, ReadsSegments: true, TakesInput: true,

		Posture: posture(w), Firewall: firewall, Healthy: healthy, Problem: problem, Full: w.capacity().full(),
		CredentialsIssued: issued, CredentialsExpire: expires, LeaseTTL: w.lock.ttl(),
		Speaks: protocol.Version, Oldest: protocol.OldestVersion,
		StartedAt: w.started, SeenAt: now, Skew: skew,
	}
}

// condition returns what the host reports about itself: whether the engine answers, what is wrong, and which firewall
// isolates the networks of sandboxes.
func (r *registration) condition() (healthy bool, problem, firewall string) {
	w := r.w
	firewall, unprotected := w.isolation.Status()
	if problem = w.health.Get(); problem != "" {
		return false, problem, firewall
	}
	return true, unprotected, firewall
}

// beat sends heartbeats until ctx ends.
func (r *registration) beat(ctx context.Context) error {
	w := r.w
	ticker := time.NewTicker(beatPeriod)
	defer ticker.Stop()
	defer w.cfg.OnTurn(beatLoop, 0)
	for {
		w.cfg.OnTurn(beatLoop, beatWithin)
		healthy, problem, _ := r.condition()
		beat := &protocol.Heartbeat{Worker: w.cfg.Name, HostID: w.hostID, Instance: w.instance, Healthy: healthy,
			Problem: problem, Full: w.capacity().full(), Listening: w.listening.times.Load(), Skew: r.skew()}
		beat.LeaseMargin = w.lock.lowMargin()
		beat.DiskFree, beat.DiskSize = w.disk.Fullest()
		r.reportState(healthy, problem)
		if err := w.conn.Beat(beat); err != nil {
			w.log.Debug("could not send a heartbeat", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.listening.beat:
		case <-ticker.C:
		}
	}
}

// skew returns how far the host's wall clock is ahead of the clock of NATS, or nil if that is unknown.
func (r *registration) skew() *protocol.Duration {
	w := r.w
	skew, known := w.conn.Skew()
	if !known {
		return nil
	}
	shown := protocol.Duration(skew.Round(time.Millisecond))
	return &shown
}

// reportState calls OnState with the worker's state.
func (r *registration) reportState(healthy bool, problem string) {
	w := r.w
	if err := w.lock.fence(); err != nil {
		healthy, problem = false, err.Error()
	}
	if healthy {
		problem = "holds the lock of host " + w.hostID + ", and the engine answers"
	}
	w.cfg.OnState(healthy, problem)
}

// keepRegistered writes the worker's entry again before the entry expires, and when the entry changes. Writing the
// entry waits for JetStream. Heartbeats do not need JetStream, so another goroutine sends them.
func (r *registration) keepRegistered(ctx context.Context) error {
	w := r.w
	ticker := time.NewTicker(registerPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.changed:
		case <-ticker.C:
		}
		if err := r.register(ctx); err != nil {
			return err
		}
	}
}
