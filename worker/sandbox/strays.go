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

// Object is a container or a network on the engine that carries a sandbox's labels. Most belong to the sandbox. A stray
// does not: its sandbox is deleted, or on another host, or in a later generation.
type Object struct {
	Network bool
	Subnet  netip.Prefix

	id, name   string
	bridge     string
	generation uint64
}

// ObjectsOf sorts containers and networks by the sandbox that their labels name, containers first.
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

// stray reports whether an object is a stray according to the log. An object of a sandbox that the log does not know is
// not a stray. Neither is an object with the name that its sandbox uses here: the sandbox's operations handle it.
func (o Object) stray(b *protocol.Sandbox, hostID, name string) bool {
	if b.State == protocol.StateNone {
		return false
	}
	return b.State == protocol.StateDeleted || b.HostID != hostID || o.generation != b.Generation && o.name != name
}

// removeStrays removes the strays among the objects that were found, by their ids. It reads the log once more before,
// since the log may have moved on since the objects were listed.
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
			s.log.Warn("would remove a stray", "id", o.id, "name", o.name, "network", o.Network, "generation", o.generation)
			continue
		}
		s.log.Info("removing a stray", "id", o.id, "name", o.name, "network", o.Network, "generation", o.generation)
		if err := removeObject(ctx, s, o); err != nil {
			return err
		}
	}
	return nil
}

// stillThere leaves out the networks that are gone.
func stillThere(ctx context.Context, s *Sandbox, objects []Object) ([]Object, error) {
	if !slices.ContainsFunc(objects, func(o Object) bool { return o.Network }) {
		return objects, nil
	}
	networks, err := s.host.Engine.Networks(ctx)
	return withoutGone(objects, networks), err
}

// withoutGone leaves out the networks that the engine no longer has, by their ids: the subnet of a network that is
// gone, and with it the name of its bridge, may be another sandbox's by now.
func withoutGone(objects []Object, networks []docker.Network) []Object {
	return slices.DeleteFunc(objects, func(o Object) bool {
		return o.Network && !slices.ContainsFunc(networks, func(n docker.Network) bool { return n.ID == o.id })
	})
}

// removeObject removes an object from the engine.
func removeObject(ctx context.Context, s *Sandbox, o Object) error {
	if !o.Network {
		return s.host.Engine.RemoveContainer(ctx, o.id)
	}
	// The kernel takes as long to remove the rules as the engine its network, so do both at once. Nothing of the sandbox
	// is in the network any more. If something else is, the engine refuses, and the rules are put back.
	unprotected := make(chan error, 1)
	go func() { unprotected <- s.host.Network.Unprotect(o.bridge) }()
	err := s.host.Engine.RemoveNetwork(ctx, o.id)
	lost := <-unprotected
	if err != nil {
		if n, found, _ := s.networks.find(ctx); found {
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
