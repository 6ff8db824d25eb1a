package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// maxPortTries is how often a create looks for free ports, where somebody takes them in between.
const maxPortTries = 5

// checkPorts refuses ports of the host that its operator does not let sandboxes publish.
func (w *worker) checkPorts(spec *protocol.SandboxSpec) error {
	if i := w.ports.Outside(spec.Ports); i >= 0 {
		return denied(portField(i), "the host's operator lets sandboxes publish its ports %s (worker.ports), and not %d", w.ports, spec.Ports[i].Host)
	}
	return nil
}

func portField(i int) string { return fmt.Sprintf("spec.ports[%d].host", i) }

// choosePorts fills in the host ports that the spec leaves open, from those that the operator allows. The
// engine would choose others at each start; a port that is asked for is the same after a stop, a resume and a
// restart of the engine. What is found free here is only asked for: the engine has the last word at the start.
// Where the engine's network cannot be looked into, any is asked for. Rules around networks have no part in it.
func (s *sandbox) choosePorts(spec []protocol.Port) ([]protocol.Port, error) {
	ports := slices.Clone(spec)
	for i, p := range ports {
		if p.Host != 0 {
			continue
		}
		some := somePorts(s.w.ports, func(host int) bool {
			return slices.ContainsFunc(ports, func(q protocol.Port) bool { return q.Host == host && q.Protocol == p.Protocol })
		})
		host, err := s.w.isolation.wall.FreePort(p.Protocol, some)
		switch {
		case protocol.CodeOf(err) == protocol.ResourceExhausted || len(some) == 0:
			e := protocol.Errorf(protocol.ResourceExhausted, docker.ReasonPortTaken, "none of the ports %s that the host's operator lets sandboxes publish is free (worker.ports)", s.w.ports)
			e.Field = portField(i)
			return nil, e
		case err != nil:
			s.log.Warn("a port is asked for that may be taken", "error", err)
			host = some[0]
		}
		ports[i].Host = host
	}
	return ports, nil
}

// maxPortLooks is how many ports are tried for a free one.
const maxPortLooks = 1024

// somePorts are ports of a range in random order, without those that are taken: sandboxes that start at the
// same time shall not look at the same ones.
func somePorts(r protocol.PortRange, taken func(port int) bool) (some []int) {
	for _, at := range rand.Perm(r.Len()) {
		if port := r.First + at; !taken(port) && len(some) < maxPortLooks {
			some = append(some, port)
		}
	}
	return some
}

// givenPorts are the ports of a spec as the engine gave them, in the spec's order.
func givenPorts(spec, bound []protocol.Port) ([]protocol.Port, error) {
	left, given := slices.Clone(bound), []protocol.Port(nil)
	// First those that were asked for by number: what is left is what was chosen.
	numbers := make([]int, len(spec))
	for _, chosen := range []bool{false, true} {
		for i, p := range spec {
			if (p.Host == 0) != chosen {
				continue
			}
			at := slices.IndexFunc(left, func(q protocol.Port) bool {
				return q.Container == p.Container && q.Protocol == p.Protocol && (chosen || q.Host == p.Host)
			})
			if at < 0 {
				return nil, protocol.Errorf(protocol.Unavailable, docker.ReasonEngineError, "the engine did not publish port %d/%s", p.Container, p.Protocol)
			}
			numbers[i] = left[at].Host
			left = slices.Delete(left, at, at+1)
		}
	}
	for i, p := range spec {
		p.Host = numbers[i]
		given = append(given, p)
	}
	return given, nil
}

var portInMessage = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:(\d+)`)

// portTaken names the port of a spec that somebody else on the host has, or that the engine could not
// publish. chosen says that the spec left it open, so that another one may do.
func portTaken(err error, spec []protocol.Port) (named error, chosen bool) {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Reason != docker.ReasonPortTaken && e.Reason != protocol.ReasonUnsupported {
		return err, false
	}
	n := *e
	if e.Reason == protocol.ReasonUnsupported {
		if i := slices.IndexFunc(spec, func(p protocol.Port) bool { return p.Protocol == protocol.ProtocolSCTP }); i >= 0 && e.Field == "" {
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

// portBusy says whether a start failed because of a port: one that a sandbox had may be free again
// soon, and its files are worth waiting for.
func portBusy(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Reason == docker.ReasonPortTaken
}

func allowField(i int) string { return fmt.Sprintf("spec.network.allow[%d]", i) }

// launch makes the container, where there is none, and starts it. Where a port that was chosen here was
// taken before the engine had it, the container is made again with another one.
func (s *sandbox) launch(ctx context.Context, b *protocol.Sandbox, create func(ports []protocol.Port) (string, error), start func(id string) (*attachment, error)) (id string, a *attachment, err error) {
	id = s.container.ID
	for try := 1; ; try++ {
		if id == "" {
			ports, err := s.choosePorts(b.Spec.Ports)
			if err != nil {
				return "", nil, err
			}
			if id, err = create(ports); err != nil {
				return "", nil, err
			}
		}
		a, err = start(id)
		named, chosen := portTaken(err, b.Spec.Ports)
		if !chosen || try == maxPortTries {
			return id, a, named
		}
		s.log.Info("a port was taken meanwhile, another one is chosen", "error", err)
		if err := s.w.engine.RemoveContainer(ctx, id); err != nil {
			return "", nil, err
		}
		id, s.container, s.inspection.Container = "", docker.Container{}, decide.ContainerAbsent
	}
}
