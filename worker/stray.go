package worker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/network"
)

// labelled is a container or a network on the host that carries a sandbox's labels. Most are what
// the sandbox consists of. A stray is one that the log knows to be over: of a sandbox that is
// deleted, or on another host, or of a generation before its present one.
type labelled struct {
	id, name   string
	network    bool
	subnet     netip.Prefix
	bridge     string
	generation uint64
}

// stray says whether an object is one, by the log. What the log does not know at all is none; nor is
// what has the name that its sandbox uses here: the sandbox's own steps see to that.
func (o labelled) stray(b *protocol.Sandbox, hostID, name string) bool {
	if b.State == protocol.StateNone {
		return false
	}
	return b.State == protocol.StateDeleted || b.HostID != hostID || o.generation != b.Generation && o.name != name
}

// found takes what was seen on the host of the sandbox, and has the host looked at again. It reports
// false when the mailbox has ended.
func (s *sandbox) found(objects []labelled) bool {
	s.mu.Lock()
	s.labelled = objects
	s.mayBeStale(time.Now())
	s.networkSeen = s.networkSeen || slices.ContainsFunc(objects, func(o labelled) bool { return o.network })
	s.mu.Unlock()
	return s.look()
}

// removeStrays removes the strays among what was found, by their ids, whatever their names are. The
// log is read once more before, since it was known to be so only when the host was looked at.
func (s *sandbox) removeStrays(ctx context.Context) error {
	s.mu.Lock()
	objects := s.labelled
	s.labelled = nil
	s.mu.Unlock()
	keep := func(o labelled) (keep bool) {
		s.journal.View(func(st *protocol.State, _ uint64) { keep = !o.stray(&st.Sandbox, s.w.hostID, s.name()) })
		return keep
	}
	objects = slices.DeleteFunc(objects, keep)
	if len(objects) == 0 {
		return nil
	}
	if err := s.journal.Refresh(ctx); err != nil {
		return err
	}
	objects, err := s.w.present(ctx, slices.DeleteFunc(objects, keep))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if s.w.cfg.ReapDryRun {
			s.log.Warn("would remove a stray", "id", o.id, "name", o.name, "network", o.network, "generation", o.generation)
			continue
		}
		s.log.Info("removing a stray", "id", o.id, "name", o.name, "network", o.network, "generation", o.generation)
		if err := s.removeLabelled(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// present leaves out the networks that are gone.
func (w *worker) present(ctx context.Context, objects []labelled) ([]labelled, error) {
	if !slices.ContainsFunc(objects, func(o labelled) bool { return o.network }) {
		return objects, nil
	}
	networks, err := w.engine.Networks(ctx)
	return withoutGone(objects, networks), err
}

// withoutGone keeps of networks those that the engine still has, by their ids: another sandbox may have
// the subnet of one that is gone, and with it the name of its bridge.
func withoutGone(objects []labelled, networks []docker.Network) []labelled {
	return slices.DeleteFunc(objects, func(o labelled) bool {
		return o.network && !slices.ContainsFunc(networks, func(n docker.Network) bool { return n.ID == o.id })
	})
}

// removeLabelled removes what is on the host, as far as is known.
func (s *sandbox) removeLabelled(ctx context.Context, o labelled) error {
	if !o.network {
		return s.w.engine.RemoveContainer(ctx, o.id)
	}
	// The kernel takes as long to take rules away as the engine its network. Nothing of the sandbox is in
	// it any more; if something else is, the engine refuses, and the rules are put back.
	forgotten := make(chan error, 1)
	go func() { forgotten <- s.w.isolation.Unprotect(o.bridge) }()
	err := s.w.engine.RemoveNetwork(ctx, o.id)
	lost := <-forgotten
	if err != nil {
		if n, found, _ := s.findNetwork(ctx); found {
			lost = errors.Join(lost, s.w.isolation.Protect(network.RulesOf(n)))
		}
	}
	if err == nil {
		lost = errors.Join(lost, s.w.isolation.Removed(o.bridge))
	}
	if err = errors.Join(err, lost); err == nil {
		s.w.isolation.Withdraw()
		s.w.subnets.Release(o.subnet)
	}
	return err
}

// labelledObjects sorts what carries the labels of this deployment's sandboxes, containers first.
func labelledObjects(containers []docker.Container, networks []docker.Network) map[key][]labelled {
	objects := map[key][]labelled{}
	for _, c := range containers {
		if k, ok := docker.KeyOf(c.Labels); ok {
			objects[k] = append(objects[k], labelled{id: c.ID, name: c.Name, generation: docker.GenerationOf(c.Labels)})
		}
	}
	for _, n := range networks {
		if k, ok := docker.KeyOf(n.Labels); ok {
			objects[k] = append(objects[k], networkObject(n))
		}
	}
	return objects
}

func networkObject(n docker.Network) labelled {
	return labelled{id: n.ID, name: n.Name, network: true, subnet: n.Subnet, bridge: n.Bridge, generation: docker.GenerationOf(n.Labels)}
}
