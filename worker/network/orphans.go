package network

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// A bridge is removed after it has been an orphan for orphanPasses reconciliations. A newer orphan may belong to a
// network that the engine is still creating, for a worker that was killed.
const orphanPasses = 4

// orphans are bridges that were made for networks of this deployment, but belong to no network of the engine now. Each
// has the time at which it was first found to be an orphan.
type orphans map[firewall.Bridge]time.Time

// orphanBridges removes orphans that stay orphans long enough.
type orphanBridges struct {
	firewall *firewall.Firewall
	subnets  *Subnets
	engine   Engine
	fence    func() error
	log      *slog.Logger
	since    orphans
	rest     time.Duration // how long a bridge must have been an orphan before it is removed
	dryRun   bool          // only report orphans
}

// remove removes bridges left by an engine that was killed while it created their networks. It lists the engine's
// networks after the bridges, so the bridge of a network that was created in between is no orphan.
func (o *orphanBridges) remove(ctx context.Context) error {
	abandoned, err := o.firewall.Abandoned()
	if err != nil {
		return err
	}
	if len(abandoned) == 0 {
		o.since = nil
		return nil
	}
	used, err := o.engine.UsedSubnets(ctx)
	if err != nil {
		return err
	}
	bridges, err := o.engine.Bridges(ctx)
	if err != nil {
		return err
	}
	o.since = o.since.update(abandoned, o.subnets.Pool(), used, bridges, time.Now())
	for b, since := range o.since {
		if time.Since(since) < o.rest {
			continue
		}
		if o.dryRun {
			o.log.Warn("would remove an orphan bridge", "bridge", b.Name)
			continue
		}
		if err := o.fence(); err != nil {
			return err
		}
		removed, err := o.firewall.RemoveBridge(b)
		if err != nil {
			return err
		}
		if removed {
			o.log.Info("removed an orphan bridge", "bridge", b.Name)
			o.subnets.unmarkForeign(b.Subnet)
		}
	}
	return nil
}

// update returns the orphans among the abandoned bridges; those that were orphans before keep their time. Only bridges
// in this worker's pool count: an earlier worker may have used another pool.
func (o orphans) update(abandoned []firewall.Bridge, pool netip.Prefix, used []netip.Prefix, bridges []docker.Network,
	now time.Time) orphans {
	updated := orphans{}
	for _, b := range abandoned {
		if !pool.Overlaps(b.Subnet) || slices.ContainsFunc(used, b.Subnet.Overlaps) ||
			slices.ContainsFunc(bridges, func(n docker.Network) bool { return n.Bridge == b.Name }) {
			continue
		}
		updated[b] = now
		if since, known := o[b]; known {
			updated[b] = since
		}
	}
	return updated
}
