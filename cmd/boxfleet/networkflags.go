package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// networkFlags are the flags that say what a sandbox may connect to, and who may connect to it.
type networkFlags struct {
	network string
	ports   []string
}

func (f *networkFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.network, "network", "",
		"what it may connect to: internet (default), none, or `RANGE,...` such as 10.1.0.0/16")
	flags.StringArrayVar(&f.ports, "port", nil,
		"publish `[HOST:]CONTAINER[/PROTOCOL]` on the loopback of its host, tcp, udp or sctp; without HOST on a free port; may be repeated")
}

// apply sets what was given.
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

// networkRows describes the network of a sandbox. Ports are as they were given, or, until then, as they
// were asked for.
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
