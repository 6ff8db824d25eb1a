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
	Subnet netip.Prefix // the zero value: the engine takes one from its own pool
	Labels map[string]string
	Bridge string // name of the host's interface, at most 15 bytes; "" lets the engine choose
}

// Network is a network of this deployment.
type Network struct {
	ID      string
	Name    string
	Subnet  netip.Prefix
	Bridge  string // name of the host's interface
	Labels  map[string]string
	Created time.Time
}

// CreateNetwork creates a network. It fails with already_exists if the name is taken, and with [ErrSubnetOverlap] if
// the subnet is.
func (e *Engine) CreateNetwork(ctx context.Context, spec NetworkSpec) error {
	options := network.CreateOptions{Driver: "bridge", Labels: e.labelled(spec.Labels), Options: map[string]string{}}
	if spec.Subnet.IsValid() {
		options.IPAM = &network.IPAM{Driver: "default", Config: []network.IPAMConfig{{Subnet: spec.Subnet.Masked().String()}}}
	}
	if spec.Bridge != "" {
		options.Options[bridgeOption] = spec.Bridge
	}
	return e.do(ctx, call{verb: "create", kind: kindNetwork, name: spec.Name, limit: e.changeLimit()},
		func(ctx context.Context) error {
			made, err := e.client.NetworkCreate(ctx, spec.Name, options)
			e.warn(ctx, "network", spec.Name, made.Warning)
			return err
		})
}

// RemoveNetwork removes a network by name or id. Absent is no error. It fails with failed_precondition if the network
// still has containers.
func (e *Engine) RemoveNetwork(ctx context.Context, name string) error {
	err := e.do(ctx, call{verb: "remove", kind: kindNetwork, name: name, limit: e.changeLimit()},
		func(ctx context.Context) error {
			return e.client.NetworkRemove(ctx, name)
		})
	return absentIsFine(err)
}

// Networks lists the networks of this deployment.
func (e *Engine) Networks(ctx context.Context) ([]Network, error) {
	found, err := e.listNetworks(ctx, filters.NewArgs(filters.Arg("label", LabelDeployment+"="+e.deployment)))
	if err != nil {
		return nil, err
	}
	networks := make([]Network, 0, len(found))
	for _, n := range found {
		networks = append(networks, networkOf(n))
	}
	return networks, nil
}

// Bridges lists all bridge networks of the engine, of any owner.
func (e *Engine) Bridges(ctx context.Context) ([]Network, error) {
	found, err := e.listNetworks(ctx, filters.NewArgs(filters.Arg("driver", "bridge")))
	if err != nil {
		return nil, err
	}
	bridges := make([]Network, 0, len(found))
	for _, n := range found {
		bridges = append(bridges, networkOf(n))
	}
	return bridges, nil
}

// UsedSubnets lists the subnets of all networks of the engine, of any owner.
func (e *Engine) UsedSubnets(ctx context.Context) ([]netip.Prefix, error) {
	found, err := e.listNetworks(ctx, filters.NewArgs())
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	for _, n := range found {
		used = append(used, subnetsOf(n)...)
	}
	return used, nil
}

func (e *Engine) listNetworks(ctx context.Context, filter filters.Args) ([]network.Summary, error) {
	var found []network.Summary
	err := e.do(ctx, call{verb: "list", kind: kindNetwork, limit: e.readLimit()}, func(ctx context.Context) (err error) {
		found, err = e.client.NetworkList(ctx, network.ListOptions{Filters: filter})
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

// warn logs the engine's warnings about settings that it ignored or changed.
func (e *Engine) warn(ctx context.Context, kind, name string, warnings ...string) {
	for _, w := range warnings {
		if w != "" {
			e.log.WarnContext(ctx, "warning from the engine", "kind", kind, "name", name, "warning", w)
		}
	}
}
