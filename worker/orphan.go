package worker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

// orphanRest is how many times the pause between two looks a bridge must have been an orphan. An
// engine may still be at work on a network that a killed worker asked for.
const orphanRest = 4

// orphans are bridges that were made for networks of this deployment, and that no network of the
// engine has, with the time at which that was first seen.
type orphans map[firewall.Bridge]time.Time

// removeOrphanBridges removes the bridges that an engine left which was killed while it made their
// networks. It goes by whole lists of the engine's networks, read after the bridges were seen.
func (w *worker) removeOrphanBridges(ctx context.Context) error {
	found, err := w.isolation.wall.Abandoned()
	if err != nil {
		return err
	}
	if len(found) == 0 {
		w.orphans = nil
		return nil
	}
	used, err := w.engine.UsedSubnets(ctx)
	if err != nil {
		return err
	}
	bridges, err := w.engine.Bridges(ctx)
	if err != nil {
		return err
	}
	rest := orphanRest * w.cfg.Reconcile
	w.orphans = w.orphans.look(found, w.subnets.pool, used, bridges, time.Now())
	for b, since := range w.orphans {
		if time.Since(since) < rest {
			continue
		}
		if w.cfg.ReapDryRun {
			w.log.Warn("would remove an orphan bridge", "bridge", b.Name)
			continue
		}
		if err := w.fence(); err != nil {
			return err
		}
		removed, err := w.isolation.wall.RemoveBridge(b)
		if err != nil {
			return err
		}
		if removed {
			w.log.Info("removed an orphan bridge", "bridge", b.Name)
			w.subnets.regain(b.Subnet)
		}
	}
	return nil
}

// look takes what was found at one look at the host, and keeps of the orphans those that still are. A
// worker removes what is in its pool only: its predecessor may have had another one.
func (o orphans) look(found []firewall.Bridge, pool netip.Prefix, used []netip.Prefix, bridges []docker.Network, now time.Time) orphans {
	still := orphans{}
	for _, b := range found {
		if !pool.Overlaps(b.Subnet) || slices.ContainsFunc(used, b.Subnet.Overlaps) || slices.ContainsFunc(bridges, func(n docker.Network) bool { return n.Bridge == b.Name }) {
			continue
		}
		still[b] = now
		if since, known := o[b]; known {
			still[b] = since
		}
	}
	return still
}
