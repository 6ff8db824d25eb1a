package docker

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/docker/go-connections/nat"

	"github.com/boxfleet/boxfleet/protocol"
)

// loopback is the address on which ports are published. Only processes on the host itself can connect to it.
const loopback = "127.0.0.1"

// published translates ports into the Engine's types.
func published(ports []protocol.Port) (nat.PortSet, nat.PortMap) {
	if len(ports) == 0 {
		return nil, nil
	}
	exposed, bindings := nat.PortSet{}, nat.PortMap{}
	for _, p := range ports {
		port := nat.Port(strconv.Itoa(p.Container) + "/" + cmp.Or(p.Protocol, protocol.ProtocolTCP))
		binding := nat.PortBinding{HostIP: loopback}
		if p.Host != 0 {
			binding.HostPort = strconv.Itoa(p.Host)
		}
		exposed[port] = struct{}{}
		bindings[port] = append(bindings[port], binding)
	}
	return exposed, bindings
}

// bound translates the Engine's published ports. The result is sorted.
func bound(bindings nat.PortMap) []protocol.Port {
	var ports []protocol.Port
	for port, to := range bindings {
		for _, b := range to {
			if host, err := strconv.Atoi(b.HostPort); err == nil {
				ports = append(ports, protocol.Port{Container: port.Int(), Host: host, Protocol: port.Proto()})
			}
		}
	}
	slices.SortFunc(ports, func(a, b protocol.Port) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Host, b.Host))
	})
	return ports
}
