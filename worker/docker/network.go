package docker

import (
	"context"
	"net/netip"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
)

// bridgeOption is the engine's option for the name of a bridge.
const bridgeOption = "com.docker.network.bridge.name"

// NetworkSpec describes a bridge network.
type NetworkSpec struct {
	Name   string
	Subnet netip.Prefix // the zero value lets the engine choose a subnet from its own pool
	Labels map[string]string
	Bridge string // name of the bridge interface on the host, at most 15 bytes; "" lets the engine choose
}

// Network is a network of this deployment.
type Network struct {
	ID      string
	Name    string
	Subnet  netip.Prefix
	Bridge  string // name of the bridge interface on the host
	Labels  map[string]string
	Created time.Time
}

// networks has the methods for networks.
type networks struct{ *connection }

// createGrace is how long CreateNetwork waits for the engine's answer after its caller has gone.
const createGrace = 5 * time.Second

// CreateNetwork creates a network. It fails with already_exists if the name is taken, and with [ErrSubnetOverlap] if
// the subnet overlaps a subnet that is in use.
//
// An engine goes on to make a network that nobody waits for. If ctx ends during the call, CreateNetwork therefore still
// waits for the engine, for up to 5 s. Otherwise, the next worker of the host could make a second network with the
// name, because the engine does not list the first one yet.
func (ns *networks) CreateNetwork(ctx context.Context, spec NetworkSpec) error {
	options := network.CreateOptions{Driver: "bridge", Labels: ns.labelled(spec.Labels), Options: map[string]string{}}
	if spec.Subnet.IsValid() {
		options.IPAM = &network.IPAM{Driver: "default", Config: []network.IPAMConfig{{Subnet: spec.Subnet.Masked().String()}}}
	}
	if spec.Bridge != "" {
		options.Options[bridgeOption] = spec.Bridge
	}
	if err := ctx.Err(); err != nil {
		return translate(ctx, call{verb: "create", kind: kindNetwork, name: spec.Name}, err)
	}
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(createGrace, cancel) })()
	return ns.do(longer, call{verb: "create", kind: kindNetwork, name: spec.Name, limit: ns.changeLimit()},
		func(ctx context.Context) error {
			made, err := ns.client.NetworkCreate(ctx, spec.Name, options)
			ns.warn(ctx, "network", spec.Name, made.Warning)
			return err
		})
}

// RemoveNetwork removes a network by name or id. A network that does not exist is no error. RemoveNetwork fails with
// failed_precondition if the network still has containers.
func (ns *networks) RemoveNetwork(ctx context.Context, name string) error {
	err := ns.do(ctx, call{verb: "remove", kind: kindNetwork, name: name, limit: ns.changeLimit()},
		func(ctx context.Context) error {
			return ns.client.NetworkRemove(ctx, name)
		})
	return absentIsFine(err)
}

// Networks lists the networks of this deployment.
func (ns *networks) Networks(ctx context.Context) ([]Network, error) {
	found, err := ns.listNetworks(ctx, filters.NewArgs(filters.Arg("label", LabelDeployment+"="+ns.deployment)))
	if err != nil {
		return nil, err
	}
	networks := make([]Network, 0, len(found))
	for _, n := range found {
		networks = append(networks, networkOf(n))
	}
	return networks, nil
}

// Bridges lists all bridge networks on the engine, including those that Boxfleet did not create.
func (ns *networks) Bridges(ctx context.Context) ([]Network, error) {
	found, err := ns.listNetworks(ctx, filters.NewArgs(filters.Arg("driver", "bridge")))
	if err != nil {
		return nil, err
	}
	bridges := make([]Network, 0, len(found))
	for _, n := range found {
		bridges = append(bridges, networkOf(n))
	}
	return bridges, nil
}

// UsedSubnets lists the subnets of all networks on the engine, including those that Boxfleet did not create.
func (ns *networks) UsedSubnets(ctx context.Context) ([]netip.Prefix, error) {
	found, err := ns.listNetworks(ctx, filters.NewArgs())
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	for _, n := range found {
		used = append(used, subnetsOf(n)...)
	}
	return used, nil
}

func (ns *networks) listNetworks(ctx context.Context, filter filters.Args) ([]network.Summary, error) {
	var found []network.Summary
	err := ns.do(ctx, call{verb: "list", kind: kindNetwork, limit: ns.readLimit()}, func(ctx context.Context) (err error) {
		found, err = ns.client.NetworkList(ctx, network.ListOptions{Filters: filter})
		return err
	})
	return found, err
}

func networkOf(n network.Summary) Network {
	one := Network{ID: n.ID, Name: n.Name, Labels: n.Labels, Created: n.Created, Bridge: n.Options[bridgeOption]}
	if one.Bridge == "" {
		one.Bridge = "br-" + n.ID[:min(12, len(n.ID))] // the engine's default name
	}
	if subnets := subnetsOf(n); len(subnets) > 0 {
		one.Subnet = subnets[0]
	}
	return one
}

func subnetsOf(n network.Summary) []netip.Prefix {
	var subnets []netip.Prefix
	for _, config := range n.IPAM.Config {
		if subnet, err := netip.ParsePrefix(config.Subnet); err == nil {
			subnets = append(subnets, subnet)
		}
	}
	return subnets
}
