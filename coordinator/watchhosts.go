package coordinator

import (
	"context"
	"errors"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// lostRounds is how many scans pass until the sandboxes of a lost host are inspected again: their last events may
// arrive late.
const lostRounds = 10

// watchHosts finds out which silent hosts are lost, and carries out the intents of operators. It makes the sandboxes of
// these hosts due for inspection.
func (w *watchdog) watchHosts(ctx context.Context) error {
	lost, round := map[string]bool{}, 0
	return w.eachScan(ctx, func() {
		round++
		hosts, list := map[string]*protocol.Host{}, w.hosts.list()
		for _, h := range list {
			hosts[h.HostID] = h
		}
		w.seizeSilentHosts(ctx, hosts)
		w.carryOutIntents(ctx, hosts)
		w.moves.beginScan(list, w.images.list())
		w.inspectIntended(hosts, round)
		for id, h := range hosts {
			isLost := h.State == protocol.HostLost
			if isLost != lost[id] || isLost && round%lostRounds == 0 {
				lost[id] = isLost
				w.projection.work.inspectBy(w.conn.Now(), w.projection.work.hosts.on(id)...)
			}
		}
	})
}

// seizeSilentHosts takes the locks of silent hosts. A host is lost only if its lock could be taken: the lease had
// ended, so the host's worker changes nothing any more.
func (w *watchdog) seizeSilentHosts(ctx context.Context, hosts map[string]*protocol.Host) {
	if !w.conn.Connected() {
		return
	}
	for _, h := range hosts {
		if h.State != protocol.HostSuspect || h.HostID == "" ||
			time.Since(w.tried[h.Worker]) < w.cfg.Timing.Seize || !w.hosts.mayBeLost(h.Worker) {
			continue
		}
		w.tried[h.Worker] = time.Now()
		w.seizeHost(ctx, h)
		w.projection.work.schedulerWake.Wake()
	}
}

func (w *watchdog) seizeHost(ctx context.Context, h *protocol.Host) {
	// Each attempt is a new holder. A worker that waits for the lock would otherwise regard two attempts as one holder
	// that renews its lease.
	holder := jetstream.Holder{
		Name: w.cfg.Name, Instance: ulid.Make().String(), Detail: "checking whether a silent host is lost",
	}
	err := w.conn.SeizeHost(ctx, h.HostID, holder, func(uint64) error {
		if !w.hosts.mayBeLost(h.Worker) {
			return nil // NATS was unavailable meanwhile, which explains the silence
		}
		w.log.Warn("a host is lost", "worker", h.Worker, "host", h.HostID)
		w.hosts.setLost(h.Worker)
		h.State = protocol.HostLost
		return nil
	})
	if held := (*jetstream.HeldError)(nil); err != nil && !errors.As(err, &held) {
		w.log.Warn("could not determine whether a silent host is lost; trying again", "worker", h.Worker, "error", err)
	}
}

// followLost shows on a coordinator that does not lead which hosts are lost, until ctx ends. Otherwise two reads in a
// row would differ when two coordinators answer them.
func (c *coordinator) followLost(ctx context.Context) error {
	for backoff.Sleep(ctx, c.cfg.Timing.Scan) {
		if c.elected.Load() || !c.conn.Connected() {
			continue
		}
		for _, h := range c.hosts.list() {
			if h.HostID == "" || h.State != protocol.HostSuspect && h.State != protocol.HostLost ||
				!c.hosts.mayBeLost(h.Worker) {
				continue
			}
			holder, err := c.conn.HostHolder(ctx, h.HostID)
			if err == nil { // otherwise the last answer stands
				noteFree(c.hosts, h.Worker, holder == "")
			}
		}
	}
	return ctx.Err()
}

// noteFree records whether the lock of a silent host was free when this coordinator last read it.
func noteFree(h *hosts, worker string, free bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.known[worker]; e != nil && e.free != free {
		e.free = free
		h.noteLocked(e)
	}
}

// noteLeading records whether this coordinator leads. A leader finds out by itself which hosts are lost.
func noteLeading(h *hosts, leading bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading = leading
	for _, e := range h.known {
		e.free = false
	}
}
