package coordinator

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// imageWorth is how much room a sandbox's images are worth that a host has already. It is little: a
// host that lacks them gets the sandbox once it is emptier by more than a tenth, so that one that was
// first to pull an image does not get all that use it, and a burst does not pull everywhere at once.
const imageWorth = 0.1

// place chooses the host for a sandbox: of those that would take it the one with the most room, or
// with nearly as much and the images there. It is pure. When no host takes it, worker is empty and the
// refusals say why, one per host, in the order of the hosts' names.
func place(b *protocol.Sandbox, hosts []*protocol.Host, images imageTable) (chosen *protocol.Host, refusals []protocol.HostRefusal) {
	sorted := slices.SortedFunc(slices.Values(hosts), func(a, b *protocol.Host) int { return cmp.Compare(a.Worker, b.Worker) })
	best := math.Inf(-1)
	for _, h := range sorted {
		reason := refuse(b, h, images)
		refusals = append(refusals, protocol.HostRefusal{Worker: h.Worker, Reason: reason})
		if reason == "" {
			if fit := room(h) + imageWorth*imagesThere(&b.Spec, h, images); fit > best {
				best, chosen = fit, h
			}
		}
	}
	return chosen, refusals
}

// specOn is the spec of a sandbox as it would be on a host, with the defaults of the host's worker. A
// sandbox that is resumed keeps what it was made with.
func specOn(b *protocol.Sandbox, h *protocol.Host) (*protocol.SandboxSpec, error) {
	switch {
	case b.Resuming:
		return &b.Spec, nil
	case h.Defaults == nil:
		return b.AcceptedSpec(), nil
	}
	there := spec.OnWorker(*b.AcceptedSpec(), b.BuiltIn, h.Defaults)
	err := there.Validate()
	if err != nil {
		e := *protocol.AsError(err)
		e.Message = "with the defaults of worker " + h.Worker + ": " + e.Message
		err = &e
	}
	return &there, err
}

// refuse says why a host does not take a sandbox, "" when it does. Memory is reserved; cpu is a
// limit that hosts may promise several times over.
func refuse(b *protocol.Sandbox, h *protocol.Host, images imageTable) string {
	if why := closed(b, h); why != "" {
		return why
	}
	s, err := specOn(b, h)
	if err != nil {
		e := protocol.AsError(err)
		return e.Field + ": " + e.Message
	}
	_, memory, _ := s.Totals()
	switch {
	case h.UsedMem+memory > h.Memory:
		return fmt.Sprintf("%s of memory are wanted, %s of %s are free", memory, max(h.Memory-h.UsedMem, 0), h.Memory)
	case s.GPUs != "" && h.GPUs-h.UsedGPUs < max(s.GPUCount(), 1), s.GPUs == "all" && h.UsedGPUs > 0:
		return fmt.Sprintf("spec.gpus: %s wanted, %d of %d are free", s.GPUs, max(h.GPUs-h.UsedGPUs, 0), h.GPUs)
	}
	if e := unable(s, h); e != nil {
		return e.Field + ": " + e.Message
	}
	for i, m := range asked(b).Mounts {
		if field, why := mountRefusal(m, h); why != "" {
			return fmt.Sprintf("spec.mounts[%d].%s: %s %s of the host", i, field, m.Source, why)
		}
	}
	if b.Resuming { // its containers are there, and keep their images
		return ""
	}
	return imageRefusal(s, h, images)
}

// asked is the spec whose mounts are judged. Those of a worker's defaults it has judged itself.
func asked(b *protocol.Sandbox) *protocol.SandboxSpec {
	if b.Resuming {
		return &b.Spec
	}
	return b.AcceptedSpec()
}

// closed says why a host takes no sandbox now, or not this one, whatever its spec.
func closed(b *protocol.Sandbox, h *protocol.Host) string {
	switch {
	case b.Resuming && b.HostID != h.HostID:
		return "the stopped sandbox is on another host, " + b.Worker
	case h.State != protocol.HostReady:
		if h.Problem != "" {
			return fmt.Sprintf("the host is %s: %s", h.State, h.Problem)
		}
		return fmt.Sprintf("the host is %s", h.State)
	case h.Firewall == "":
		return "the host does not keep the networks of sandboxes apart: " + cmp.Or(h.Problem, "its worker says nothing of it")
	case h.Full != "" && !b.Resuming: // what was stopped has its place
		return h.Full
	case h.Sandboxes >= h.Slots:
		return fmt.Sprintf("all of its %d slots are taken", h.Slots)
	}
	return ""
}

// unable says what of a spec a host could not do, or its operator does not allow, even if it were
// empty; nil where it could. The worker checks again.
func unable(s *protocol.SandboxSpec, h *protocol.Host) *protocol.Error {
	fail := func(code protocol.Code, reason, field, format string, args ...any) *protocol.Error {
		return &protocol.Error{Code: code, Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	denied, unsupported := protocol.ReasonPolicyDenied, protocol.ReasonUnsupported
	switch {
	case h.Firewall == protocol.FirewallOff && s.Network != nil && s.Network.Mode != "" && s.Network.Mode != protocol.NetworkInternet:
		return fail(protocol.FailedPrecondition, protocol.ReasonFirewall, "spec.network", "the operator of %s turned its firewall off", h.Worker)
	case s.Profile != "" && !slices.Contains(h.Profiles, s.Profile) && (s.Profile != protocol.ProfileHardened || len(h.Profiles) > 0): // an older worker names none
		return fail(protocol.PermissionDenied, denied, "spec.profile", "%s does not allow %s", h.Worker, s.Profile)
	case s.Runtime != "" && !slices.Contains(h.Runtimes, s.Runtime):
		return fail(protocol.PermissionDenied, denied, "spec.runtime", "%s does not allow to choose %s", h.Worker, s.Runtime)
	case s.GPUs != "" && h.GPUs < max(s.GPUCount(), 1):
		return fail(protocol.FailedPrecondition, unsupported, "spec.gpus", "%s wanted, %s has %d", s.GPUs, h.Worker, h.GPUs)
	}
	names, _ := s.Services()
	for _, name := range names {
		v, _ := s.Service(name)
		allowed := h.ServiceProfiles
		if len(allowed) == 0 {
			allowed = []string{protocol.ProfileStandard} // an older worker: it would take a hardened one, and not make it so
		}
		if profile := v.Capabilities(); !slices.Contains(allowed, profile) {
			return fail(protocol.PermissionDenied, denied, s.ServiceField(name)+".profile", "%s allows services %s, and not %s", h.Worker, strings.Join(allowed, ", "), profile)
		}
	}
	for i, name := range s.Tools {
		if !slices.Contains(h.Tools, name) {
			return fail(protocol.FailedPrecondition, protocol.ReasonToolUnavailable, fmt.Sprintf("spec.tools[%d]", i), "%s does not offer %s", h.Worker, name)
		}
	}
	return nil
}

// mountRefusal says why a host does not let a path be mounted, and which field of the mount is in
// the way; "" when it does. The narrowest entry of its allow-list decides whether the path may be
// written. The worker judges again, with links resolved.
func mountRefusal(m protocol.Mount, h *protocol.Host) (field, why string) {
	source, narrowest := path.Clean(m.Source), ""
	for _, dir := range h.Mounts {
		if isBelow(source, dir) && len(dir) > len(narrowest) {
			narrowest = dir
		}
	}
	if narrowest == "" {
		return "source", "is not below the allow-list"
	}
	if !m.Writable {
		return "", ""
	}
	for _, dir := range h.Mounts {
		if (dir == narrowest || isBelow(dir, source)) && !slices.Contains(h.Writable, dir) {
			return "writable", "may be mounted read-only by the allow-list"
		}
	}
	return "", ""
}

func isBelow(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// unregistered says that only sandboxes know of a host: its worker, which is away, may offer anything.
func unregistered(h *protocol.Host) bool { return h.Instance == "" }

// impossible returns the error for a sandbox that no host, whatever its load, would ever take
// because of the operators' policy; nil where waiting may help, and while one of them is not heard of.
func impossible(b *protocol.Sandbox, hosts []*protocol.Host) *protocol.Error {
	if slices.ContainsFunc(hosts, unregistered) {
		return nil
	}
	for i, m := range asked(b).Mounts {
		refused := ""
		allows := func(h *protocol.Host) bool {
			field, why := mountRefusal(m, h)
			refused = max(refused, field) // a host that allows to read it says more than one that does not
			return why == ""
		}
		if len(hosts) > 0 && !slices.ContainsFunc(hosts, allows) {
			why := " is not below any host's allow-list"
			if refused == "writable" {
				why = " may be mounted read-only at most, by every host's allow-list"
			}
			return &protocol.Error{Code: protocol.PermissionDenied, Reason: protocol.ReasonMountDenied,
				Field: fmt.Sprintf("spec.mounts[%d].%s", i, refused), Message: m.Source + why}
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	var last *protocol.Error
	for _, h := range hosts {
		s, err := specOn(b, h)
		if last = protocol.AsError(err); err == nil {
			last = unable(s, h)
		}
		if last == nil {
			return nil
		}
	}
	return last
}

// room says how empty a host is: the scarcest of slots, memory and cores counts. 1: it is empty; 0: all
// is promised; less: its cores are promised several times over.
func room(h *protocol.Host) float64 {
	slots := 1 - float64(h.Sandboxes)/float64(max(h.Slots, 1))
	memory := 1 - float64(h.UsedMem)/float64(max(h.Memory, 1))
	cores := 1 - h.UsedCPU/max(h.CPU, 1)
	return min(slots, memory, cores)
}
