package sandbox

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/network"
)

// Object is a container or a network on the engine that carries a sandbox's labels. An object that the sandbox no
// longer uses is a stray: the sandbox is deleted, or on another host, or in a later generation.
type Object struct {
	Network bool
	Subnet  netip.Prefix

	id, name   string
	bridge     string
	generation uint64
}

// ObjectsOf groups containers and networks by the sandbox that their labels name. Containers come first in each group.
func ObjectsOf(containers []docker.Container, networks []docker.Network) map[protocol.SandboxKey][]Object {
	objects := map[protocol.SandboxKey][]Object{}
	for _, c := range containers {
		if k, ok := docker.KeyOf(c.Labels); ok {
			objects[k] = append(objects[k], Object{id: c.ID, name: c.Name, generation: docker.GenerationOf(c.Labels)})
		}
	}
	for _, n := range networks {
		if k, ok := docker.KeyOf(n.Labels); ok {
			objects[k] = append(objects[k], networkObject(n))
		}
	}
	return objects
}

func networkObject(n docker.Network) Object {
	return Object{id: n.ID, name: n.Name, Network: true, Subnet: n.Subnet, bridge: n.Bridge,
		generation: docker.GenerationOf(n.Labels)}
}

// stray reports whether an object is a stray according to the log. If the log does not know the sandbox, the object is
// not a stray. name is the engine's name for the sandbox's container and network. While the sandbox is on this host, an
// object with this name is not a stray in any generation, because the sandbox's operations handle it.
func (o Object) stray(b *protocol.Sandbox, hostID, name string) bool {
	if b.State == protocol.StateNone {
		return false
	}
	return b.State == protocol.StateDeleted || b.HostID != hostID || o.generation != b.Generation && o.name != name
}

// removeStrays removes the strays among the objects that the engine listed last, by their ids. It first reads the log
// again, because the log may have changed since the objects were listed.
func removeStrays(ctx context.Context, s *Sandbox) error {
	s.mu.Lock()
	objects := s.objects
	s.objects = nil
	s.mu.Unlock()
	keep := func(o Object) (keep bool) {
		s.history().View(func(st *protocol.State) { keep = !o.stray(&st.Sandbox, s.host.ID, s.name()) })
		return keep
	}
	objects = slices.DeleteFunc(objects, keep)
	if len(objects) == 0 {
		return nil
	}
	if err := s.journal.Refresh(ctx); err != nil {
		return err
	}
	objects, err := stillThere(ctx, s, slices.DeleteFunc(objects, keep))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if s.host.DryRun {
			s.log.Warn("dry run: would remove a container or network that its sandbox no longer uses",
				"id", o.id, "name", o.name, "network", o.Network, "generation", o.generation)
			continue
		}
		s.log.Info("removing a container or network that its sandbox no longer uses",
			"id", o.id, "name", o.name, "network", o.Network, "generation", o.generation)
		if err := removeObject(ctx, s, o); err != nil {
			return err
		}
	}
	return nil
}

// stillThere returns the objects without the networks that the engine no longer has.
func stillThere(ctx context.Context, s *Sandbox, objects []Object) ([]Object, error) {
	if !slices.ContainsFunc(objects, func(o Object) bool { return o.Network }) {
		return objects, nil
	}
	networks, err := s.host.Engine.Networks(ctx)
	return withoutGone(objects, networks), err
}

// withoutGone returns the objects, except those networks that the engine's list of networks lacks. The subnet of such a
// network, and the name of its bridge, may already belong to another sandbox's network.
func withoutGone(objects []Object, networks []docker.Network) []Object {
	return slices.DeleteFunc(objects, func(o Object) bool {
		return o.Network && !slices.ContainsFunc(networks, func(n docker.Network) bool { return n.ID == o.id })
	})
}

// removeObject removes an object from the engine, and the firewall rules of a network.
func removeObject(ctx context.Context, s *Sandbox, o Object) error {
	if !o.Network {
		return s.host.Engine.RemoveContainer(ctx, o.id)
	}
	// The kernel takes about as long to remove the rules as the engine takes to remove the network, so do both at once.
	// The sandbox has no container in the network any more. If another container is in the network, the engine does not
	// remove the network, and the rules are restored.
	unprotected := make(chan error, 1)
	go func() { unprotected <- s.host.Network.Unprotect(o.bridge) }()
	err := s.host.Engine.RemoveNetwork(ctx, o.id)
	lost := <-unprotected
	if err != nil {
		n, found, findErr := s.networks.find(ctx)
		lost = errors.Join(lost, findErr)
		if found {
			lost = errors.Join(lost, s.host.Network.Protect(network.RulesOf(n)))
		}
	}
	if err == nil {
		lost = errors.Join(lost, s.host.Network.Removed(o.bridge))
	}
	if err = errors.Join(err, lost); err == nil {
		s.host.Network.Withdraw()
		s.host.Subnets.Release(o.Subnet)
	}
	return err
}
