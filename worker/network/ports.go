package network

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// CheckPorts refuses host ports that the operator does not let sandboxes publish.
func CheckPorts(allowed protocol.PortRange, spec *protocol.SandboxSpec) error {
	if i := allowed.Outside(spec.Ports); i >= 0 {
		return policyDenied(portField(i),
			"the host's operator lets sandboxes publish only the ports %s (worker.ports), got %d", allowed, spec.Ports[i].Host)
	}
	return nil
}

func portField(i int) string { return fmt.Sprintf("spec.ports[%d].host", i) }

// ChoosePorts returns the ports of a spec. For host ports that the spec leaves open, it chooses free ports that the
// operator allows. If the engine chose the ports, they would change at each start. The ports that ChoosePorts returns
// become part of the container's configuration, so they stay the same when the sandbox is stopped and resumed, or the
// engine is restarted.
//
// A chosen port may be taken before the container starts. The engine then refuses the start. If the engine's network
// namespace cannot be entered, ChoosePorts chooses without knowing whether a port is free. ChoosePorts also works if
// the firewall is off.
func (i *Isolation) ChoosePorts(allowed protocol.PortRange, spec []protocol.Port, log *slog.Logger) ([]protocol.Port,
	error) {
	ports := slices.Clone(spec)
	for n, p := range ports {
		if p.Host != 0 {
			continue
		}
		candidates := portCandidates(allowed, func(host int) bool {
			return slices.ContainsFunc(ports, func(q protocol.Port) bool { return q.Host == host && q.Protocol == p.Protocol })
		})
		host, err := i.firewall.FreePort(p.Protocol, candidates)
		switch {
		case protocol.CodeOf(err) == protocol.ResourceExhausted || len(candidates) == 0:
			e := protocol.Errorf(protocol.ResourceExhausted, docker.ReasonPortTaken,
				"all ports that the host's operator lets sandboxes publish are taken: %s (worker.ports)", allowed)
			e.Field = portField(n)
			return nil, e
		case err != nil:
			log.Warn("could not check which host ports are free; choosing a port at random", "error", err)
			host = candidates[0]
		}
		ports[n].Host = host
	}
	return ports, nil
}

// maxCandidates limits how many ports are tried to find a free port.
const maxCandidates = 1024

// portCandidates returns ports of a range, except those that are taken. The order is random, so that sandboxes that
// start at the same time do not try the same ports.
func portCandidates(r protocol.PortRange, taken func(port int) bool) (candidates []int) {
	for _, at := range rand.Perm(r.Len()) {
		if port := r.First + at; !taken(port) && len(candidates) < maxCandidates {
			candidates = append(candidates, port)
		}
	}
	return candidates
}

// PublishedPorts returns the ports of a spec, in the spec's order, with the host ports that the engine bound.
func PublishedPorts(spec, bound []protocol.Port) ([]protocol.Port, error) {
	left, published := slices.Clone(bound), []protocol.Port(nil)
	// First match the host ports that the spec names. The remaining host ports belong to the ports that the spec leaves
	// open.
	hosts := make([]int, len(spec))
	for _, chosen := range []bool{false, true} {
		for i, p := range spec {
			if (p.Host == 0) != chosen {
				continue
			}
			at := slices.IndexFunc(left, func(q protocol.Port) bool {
				return q.Container == p.Container && q.Protocol == p.Protocol && (chosen || q.Host == p.Host)
			})
			if at < 0 {
				return nil, protocol.Errorf(protocol.Unavailable, docker.ReasonEngineError, "the engine did not publish port %d/%s",
					p.Container, p.Protocol)
			}
			hosts[i] = left[at].Host
			left = slices.Delete(left, at, at+1)
		}
	}
	for i, p := range spec {
		p.Host = hosts[i]
		published = append(published, p)
	}
	return published, nil
}

var portInMessage = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:(\d+)`)

// PortConflict adds the spec's field to an error of the engine about a port that is taken or cannot be published. The
// result retry is true if the spec left the port open: a start with another port may then succeed.
func PortConflict(err error, spec []protocol.Port) (named error, retry bool) {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Reason != docker.ReasonPortTaken && e.Reason != protocol.ReasonUnsupported {
		return err, false
	}
	n := *e
	if e.Reason == protocol.ReasonUnsupported {
		if i := slices.IndexFunc(spec, func(p protocol.Port) bool { return p.Protocol == protocol.ProtocolSCTP }); i >= 0 &&
			e.Field == "" {
			n.Field = fmt.Sprintf("spec.ports[%d].protocol", i)
		}
		return &n, false
	}
	if m := portInMessage.FindStringSubmatch(e.Message); m != nil {
		host, _ := strconv.Atoi(m[1])
		i := slices.IndexFunc(spec, func(p protocol.Port) bool { return p.Host == host })
		if i < 0 {
			return &n, slices.ContainsFunc(spec, func(p protocol.Port) bool { return p.Host == 0 })
		}
		n.Field = portField(i)
		n.Message = fmt.Sprintf("port %d of the host's loopback is taken: %s", host, e.Message)
	}
	return &n, false
}

// PortTaken reports whether a start failed because a port is taken. Such a start of an existing sandbox should be
// retried: the port may soon be free again, and giving up would lose the sandbox's files.
func PortTaken(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Reason == docker.ReasonPortTaken
}
