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
			"the host's operator lets sandboxes publish the ports %s (worker.ports), but not %d", allowed, spec.Ports[i].Host)
	}
	return nil
}

func portField(i int) string { return fmt.Sprintf("spec.ports[%d].host", i) }

// ChoosePorts fills in the host ports that the spec leaves open, with free ones that the operator allows. The engine
// itself would choose different ports at each start, while a port that the container asks for stays the same after a
// stop, a resume and a restart of the engine.
//
// A port that is free here may be taken before the container starts; the engine then refuses the start. Where the
// engine's network namespace cannot be entered, the choice is blind. Firewall rules do not matter for this.
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
				"no port is free among %s, which the host's operator lets sandboxes publish (worker.ports)", allowed)
			e.Field = portField(n)
			return nil, e
		case err != nil:
			log.Warn("could not check whether a port is free; choosing one at random", "error", err)
			host = candidates[0]
		}
		ports[n].Host = host
	}
	return ports, nil
}

// maxCandidates is how many ports are tried to find a free one.
const maxCandidates = 1024

// portCandidates returns ports of a range in random order, without those for which taken is true. The order is random
// so that sandboxes starting at the same time do not try the same ports.
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
	// First match the ports that the spec names; the remaining ones were chosen.
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

// PortConflict adds the spec's field to an error of the engine about a port that is taken or cannot be published. retry
// reports that the spec left the port open, so a start with another port may succeed.
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

// PortTaken reports whether a start failed because a port is taken. The port of an existing sandbox may be free again
// soon, and the sandbox's files are worth the wait.
func PortTaken(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Reason == docker.ReasonPortTaken
}
