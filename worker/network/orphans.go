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

// A bridge is removed once it was an orphan for orphanPasses times Config.Reconcile. The wait is necessary after a
// worker was killed: the engine may still be creating the network of a bridge that looks like an orphan.
const orphanPasses = 4

// orphans are bridges that were created for networks of this deployment, but belong to no network of the engine. The
// value of a bridge is the time at which it was first found to be an orphan.
type orphans map[firewall.Bridge]time.Time

// orphanBridges removes bridges that were orphans for some time.
type orphanBridges struct {
	firewall *firewall.Firewall
	subnets  *Subnets
	engine   Engine
	fence    func() error
	log      *slog.Logger
	since    orphans
	rest     time.Duration // how long a bridge must have been an orphan before it is removed
	dryRun   bool          // only report orphans, and remove none
}

// remove removes bridges that an engine left behind because it was killed while it created their networks. It first
// lists the bridges, and then the engine's networks. So a network that is created in between does not make its bridge
// look like an orphan.
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
			o.log.Warn("dry run: would remove an orphan bridge", "bridge", b.Name)
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

// update returns the orphans among the abandoned bridges. Bridges that were orphans before keep their time. Only
// bridges in this worker's pool count, because an earlier worker may have used another pool.
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
