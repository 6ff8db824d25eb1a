package placement

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// CouldTake reports whether a host could take a sandbox if the host were empty and ready.
func CouldTake(b *protocol.Sandbox, h *protocol.Host, limits Limits) bool {
	s, err := SpecOn(b, h)
	return err == nil && len(unmet(b, s, h, limits)) == 0
}

// unmet lists the requirements of a spec that a host could not meet even if it were empty, or that the host's operator
// does not allow. s is the sandbox's spec on that host. The worker checks the requirements again.
func unmet(b *protocol.Sandbox, s *protocol.SandboxSpec, h *protocol.Host, limits Limits) []*protocol.Error {
	return slices.Concat(unmetLabels(b, h), unmetPorts(s, h), unmetNetwork(s, h), unmetFeatures(s, h),
		unmetLimits(s, h, limits), unmetTotals(b, s, h, limits), unmetServiceProfiles(s, h), unmetFiles(b, s, h))
}

func unmetError(code protocol.Code, reason, field, format string, args ...any) *protocol.Error {
	return &protocol.Error{Code: code, Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)}
}

// unmetLabels lists the placement constraints that a host's labels do not satisfy. A sandbox that resumes stays on its
// host.
func unmetLabels(b *protocol.Sandbox, h *protocol.Host) (all []*protocol.Error) {
	if b.Resuming {
		return nil
	}
	for i, text := range b.AcceptedSpec().Placement {
		field := fmt.Sprintf("spec.placement[%d]", i)
		c, err := protocol.ParseConstraint(text)
		if err != nil {
			all = append(all, unmetError(protocol.InvalidArgument, "", field, "%v", err))
		} else if reason := c.Unmet(h.Labels); reason != "" {
			all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonNoHost, field,
				"on %s %s", h.Worker, reason))
		}
	}
	return all
}

func unmetPorts(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	if allowed, err := protocol.ParsePortRange("", h.Ports); err == nil {
		if i := allowed.Outside(s.Ports); i >= 0 {
			all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied,
				fmt.Sprintf("spec.ports[%d].host", i),
				"the operator of %s lets sandboxes publish ports %s (worker.ports), not %d",
				h.Worker, allowed, s.Ports[i].Host))
		}
	}
	return all
}

func unmetNetwork(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	n := s.Network
	if n == nil {
		return nil
	}
	if h.Firewall == protocol.FirewallOff && n.Mode != "" && n.Mode != protocol.NetworkInternet {
		all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonFirewall, "spec.network",
			"the operator of %s turned its firewall off", h.Worker))
	}
	allow := func(i int) string { return fmt.Sprintf("spec.network.allow[%d]", i) }
	if i := deniedRange(n, h); i >= 0 {
		all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied, allow(i),
			"the operator of %s lets no sandbox reach %s", h.Worker, n.Allow[i]))
	}
	if i := privateRangeNotAllowed(n, h); i >= 0 {
		all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied, allow(i),
			"%s is private, and the operator of %s does not allow it (worker.allow_networks)",
			n.Allow[i], h.Worker))
	}
	return all
}

func unmetFeatures(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	olderTakesProfile := len(h.Profiles) == 0 && s.Profile == protocol.ProfileHardened // an older worker lists no profiles
	if s.Profile != "" && !slices.Contains(h.Profiles, s.Profile) && !olderTakesProfile {
		all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied, "spec.profile",
			"%s does not allow %s", h.Worker, s.Profile))
	}
	if s.Runtime != "" && !slices.Contains(h.Runtimes, s.Runtime) {
		all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied, "spec.runtime",
			"%s does not allow the runtime %s", h.Worker, s.Runtime))
	}
	if s.GPUs != "" && h.GPUs < max(s.GPUCount(), 1) {
		all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonUnsupported, "spec.gpus",
			"%s wanted, %s has %d", s.GPUs, h.Worker, h.GPUs))
	}
	return all
}

// Limits are the most that any host of the fleet offers. If no host can limit how much a container writes, a sandbox
// with a disk limit goes to any host. That host's engine refuses the sandbox with the exact reason.
type Limits struct {
	quotas bool           // at least one host can limit how much a container writes
	cores  float64        // the most cores for one container
	memory protocol.Bytes // the most memory for one sandbox
	disk   protocol.Bytes // the most disk for one sandbox
}

// LimitsOf returns the limits of a fleet.
func LimitsOf(hosts []*protocol.Host) (most Limits) {
	for _, h := range hosts {
		most.quotas = most.quotas || h.DiskQuota || unregistered(h)
		if h.Cores == 0 { // the host has not reported its cores
			most.cores = math.Inf(1)
		}
		most.cores = max(most.cores, float64(h.Cores))
		most.memory, most.disk = max(most.memory, h.Memory), max(most.disk, h.Disk)
	}
	return most
}

// unmetLimits lists the limits of single containers that are above the host's cores or above what the host allows. A
// disk limit that the host cannot enforce is listed only if another host can enforce one.
func unmetLimits(s *protocol.SandboxSpec, h *protocol.Host, limits Limits) (all []*protocol.Error) {
	check := func(field string, disk protocol.Bytes, cores float64, pids int64) {
		if h.MostPIDs > 0 && pids > h.MostPIDs {
			all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied, field+".pids",
				"the operator of %s allows a container at most %d (worker.pids), not %d", h.Worker, h.MostPIDs, pids))
		}
		if disk > 0 && limits.quotas && !h.DiskQuota {
			all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonUnsupported, field+".disk",
				"%s cannot limit what a container writes", h.Worker))
		}
		switch {
		case h.Cores == 0 || cores <= float64(h.Cores): // 0: the host has not reported its cores
		case cores > limits.cores:
			all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonUnsupported, field+".cpu",
				"%g wanted, and the largest host has %g", cores, limits.cores))
		default:
			all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonUnsupported, field+".cpu",
				"%g wanted, %s has %d", cores, h.Worker, h.Cores))
		}
	}
	check("spec", s.Disk, s.CPU, s.PIDs)
	names, _ := s.Services()
	for _, name := range names {
		v, _ := s.Service(name)
		check(s.ServiceField(name), v.Disk, v.CPU, v.PIDs)
	}
	return all
}

// unmetTotals lists the resources of which a sandbox and its services reserve more than an empty host has. It returns
// nothing for a sandbox that resumes: the sandbox fitted before, and it waits if the capacity of its host has been
// lowered since then.
func unmetTotals(
	b *protocol.Sandbox, s *protocol.SandboxSpec, h *protocol.Host, limits Limits,
) (all []*protocol.Error) {
	if b.Resuming {
		return nil
	}
	with := ""
	if len(s.RequiredServices)+len(s.OptionalServices) > 0 {
		with = " with all services"
	}
	check := func(field string, wanted, has, most protocol.Bytes) {
		switch {
		case has == 0 || wanted <= has: // 0: the host has not reported the resource
		case wanted > most:
			all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonNoHost, field,
				"%s wanted%s, and the largest host has %s", wanted, with, most))
		default:
			all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonNoHost, field,
				"%s wanted%s, %s has %s", wanted, with, h.Worker, has))
		}
	}
	t := s.Totals()
	check("spec.memory", t.Memory, h.Memory, limits.memory)
	check("spec.disk", t.Disk, h.Disk, limits.disk)
	return all
}

func unmetServiceProfiles(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	allowed := h.ServiceProfiles
	if len(allowed) == 0 {
		// An older worker accepts a hardened service, but does not harden it.
		allowed = []string{protocol.ProfileStandard}
	}
	names, _ := s.Services()
	for _, name := range names {
		v, _ := s.Service(name)
		if profile := v.Capabilities(); !slices.Contains(allowed, profile) {
			all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied,
				s.ServiceField(name)+".profile",
				"%s allows services %s, not %s", h.Worker, strings.Join(allowed, ", "), profile))
		}
	}
	return all
}

func unmetFiles(b *protocol.Sandbox, s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	for i, name := range s.Tools {
		if !slices.Contains(h.Tools, name) {
			all = append(all, unmetError(protocol.FailedPrecondition, protocol.ReasonToolUnavailable,
				fmt.Sprintf("spec.tools[%d]", i), "%s does not offer %s", h.Worker, name))
		}
	}
	for i, m := range requestedMounts(b) {
		if field, reason := mountRefusal(m, h); reason != "" {
			all = append(all, unmetError(protocol.PermissionDenied, protocol.ReasonMountDenied,
				fmt.Sprintf("spec.mounts[%d].%s", i, field), "%s %s of %s", m.Source, reason, h.Worker))
		}
	}
	return all
}

// requestedMounts returns the mounts that a client asked for. The mounts in a worker's own defaults need no check here:
// the worker has checked them.
func requestedMounts(b *protocol.Sandbox) []protocol.Mount {
	if b.Resuming {
		return b.Spec.Mounts
	}
	return b.AcceptedSpec().Mounts
}

// deniedRange returns the index of the first allowed range that a host's operator denies entirely, or -1.
func deniedRange(n *protocol.Network, h *protocol.Host) int {
	denied := prefixes(h.DenyNetworks)
	return slices.IndexFunc(n.Allow, func(allowed string) bool {
		r, err := netip.ParsePrefix(allowed)
		return err == nil && protocol.IsWithinAny(r, denied)
	})
}

// privateRangeNotAllowed returns the index of the first private range that a host's operator does not allow, or -1.
func privateRangeNotAllowed(n *protocol.Network, h *protocol.Host) int {
	given := prefixes(h.AllowNetworks)
	return slices.IndexFunc(n.Allow, func(allowed string) bool {
		r, err := netip.ParsePrefix(allowed)
		return err == nil && protocol.IsPrivateRange(r) && !protocol.IsWithinAny(r, given)
	})
}

func prefixes(texts []string) (list []netip.Prefix) {
	for _, text := range texts {
		if r, err := netip.ParsePrefix(text); err == nil {
			list = append(list, r)
		}
	}
	return list
}

// unregistered reports whether a host is known only from the sandboxes assigned to it. The offer of such a host is
// unknown, because its worker has not registered.
func unregistered(h *protocol.Host) bool { return h.Instance == "" }

// mountRefusal returns why a host does not allow a mount, and which field of the mount is at fault, or "" if the host
// allows it. The narrowest entry of the host's allow-list decides whether the path may be written. The worker checks
// again, because only it can resolve links.
func mountRefusal(m protocol.Mount, h *protocol.Host) (field, reason string) {
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
			return "writable", "may only be mounted read-only, according to the allow-list"
		}
	}
	return "", ""
}

func isBelow(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// Impossible returns the error for a sandbox that no host would ever take, whatever the hosts' load. It returns nil if
// waiting may help. It also returns nil while there is a known host whose worker has not registered.
func Impossible(b *protocol.Sandbox, hosts []*protocol.Host) *protocol.Error {
	if len(hosts) == 0 || slices.ContainsFunc(hosts, unregistered) {
		return nil
	}
	limits := LimitsOf(hosts)
	var all [][]*protocol.Error // by host
	hosts = byName(hosts)
	for _, h := range hosts {
		s, err := SpecOn(b, h)
		errs := []*protocol.Error{protocol.AsError(err)}
		if err == nil {
			errs = unmet(b, s, h, limits)
		}
		if len(errs) == 0 {
			return nil
		}
		all = append(all, errs)
	}
	if e := mountAllowedNowhere(b, hosts); e != nil {
		return e
	}
	for _, e := range all[0] {
		if !slices.ContainsFunc(all, func(other []*protocol.Error) bool { return !hasField(other, e.Field) }) {
			return e
		}
	}
	return unmetTogether(hosts, all)
}

func hasField(all []*protocol.Error, field string) bool {
	return slices.ContainsFunc(all, func(e *protocol.Error) bool { return e.Field == field })
}

// mountAllowedNowhere returns the error for the first mount that no host allows, or nil if there is none.
func mountAllowedNowhere(b *protocol.Sandbox, hosts []*protocol.Host) *protocol.Error {
	for i, m := range requestedMounts(b) {
		refused := ""
		allows := func(h *protocol.Host) bool {
			field, reason := mountRefusal(m, h)
			refused = max(refused, field) // blame "writable" rather than "source" if any host allows reading
			return reason == ""
		}
		if !slices.ContainsFunc(hosts, allows) {
			reason := " is not below any host's allow-list"
			if refused == "writable" {
				reason = " may only be mounted read-only, according to every host's allow-list"
			}
			return unmetError(protocol.PermissionDenied, protocol.ReasonMountDenied,
				fmt.Sprintf("spec.mounts[%d].%s", i, refused), "%s%s", m.Source, reason)
		}
	}
	return nil
}

// unmetTogether returns the error for a sandbox if every host fails some requirement, but no requirement fails on all
// hosts.
func unmetTogether(hosts []*protocol.Host, all [][]*protocol.Error) *protocol.Error {
	reason := "no host alone meets all requirements"
	for i, h := range hosts {
		if i == maxListedHosts {
			reason += fmt.Sprintf("; and %d more hosts", len(hosts)-maxListedHosts)
			break
		}
		reason += fmt.Sprintf("; %s: %s", h.Worker, fieldMessage(all[i][0]))
	}
	return unmetError(protocol.FailedPrecondition, protocol.ReasonNoHost, "spec", "%s", reason)
}
