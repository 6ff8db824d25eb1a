package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// networkFlags are the flags for what a sandbox may connect to and which of its ports are published.
type networkFlags struct {
	network string
	ports   []string
}

func (f *networkFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.network, "network", "",
		"what the sandbox may connect to: internet (default), none, or `RANGE,...` such as 10.1.0.0/16")
	flags.StringArrayVar(&f.ports, "port", nil,
		"publish port `[HOST:]CONTAINER[/PROTOCOL]` on the loopback interface of the host, as tcp, udp or sctp; without "+
			"HOST, on a free port; may be repeated")
}

// apply sets in s the fields whose flags are given.
func (f *networkFlags) apply(s *protocol.SandboxSpec) error {
	if f.network != "" {
		n, err := spec.ParseNetwork(f.network)
		if err != nil {
			return usage("--network: %v", err)
		}
		s.Network = &n
	}
	for _, arg := range f.ports {
		p, err := spec.ParsePort(arg)
		if err != nil {
			return usage("--port: %v", err)
		}
		s.Ports = append(s.Ports, p)
	}
	return nil
}

// networkRows returns the rows about the network of a sandbox. It shows the published ports or, while no port is
// published yet, the requested ports.
func networkRows(s *protocol.Sandbox) (rows [][]any) {
	if n := s.Spec.Network; n != nil && n.Mode == protocol.NetworkAllow {
		rows = append(rows, []any{"network", strings.Join(n.Allow, ", ")})
	} else if n != nil && n.Mode != "" {
		rows = append(rows, []any{"network", n.Mode})
	}
	ports := s.Ports
	if ports == nil {
		ports = s.Spec.Ports
	}
	for _, p := range ports {
		host := "a free port"
		if p.Host != 0 {
			host = fmt.Sprintf("127.0.0.1:%d", p.Host)
		}
		rows = append(rows, []any{"port", fmt.Sprintf("%s -> %d/%s", host, p.Container, p.Protocol)})
	}
	return rows
}
