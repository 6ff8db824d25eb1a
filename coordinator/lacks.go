package coordinator

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// lacks lists what of a sandbox a host could not do, or its operator does not allow, even if it were
// empty; s is its spec there. The worker checks again.
func lacks(b *protocol.Sandbox, s *protocol.SandboxSpec, h *protocol.Host, most abilities) []*protocol.Error {
	return slices.Concat(lacksLabels(b, h), lacksPorts(s, h), lacksNetwork(s, h), lacksAbility(s, h), lacksRoom(s, h, most), lacksTotal(b, s, h, most), lacksServiceProfile(s, h), lacksFiles(b, s, h))
}

func lack(code protocol.Code, reason, field, format string, args ...any) *protocol.Error {
	return &protocol.Error{Code: code, Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)}
}

// lacksLabels lists the constraints of a spec that a host's labels do not meet. What is resumed has been there before.
func lacksLabels(b *protocol.Sandbox, h *protocol.Host) (all []*protocol.Error) {
	if b.Resuming {
		return nil
	}
	for i, text := range b.AcceptedSpec().Placement {
		field := fmt.Sprintf("spec.placement[%d]", i)
		c, err := protocol.ParseConstraint(text)
		if err != nil {
			all = append(all, lack(protocol.InvalidArgument, "", field, "%v", err))
		} else if why := c.Unmet(h.Labels); why != "" {
			all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonNoHost, field, "on %s %s", h.Worker, why))
		}
	}
	return all
}

func lacksPorts(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	if allowed, err := protocol.ParsePortRange("", h.Ports); err == nil {
		if i := allowed.Outside(s.Ports); i >= 0 {
			all = append(all, lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, fmt.Sprintf("spec.ports[%d].host", i),
				"the operator of %s lets sandboxes publish its ports %s (worker.ports), and not %d", h.Worker, allowed, s.Ports[i].Host))
		}
	}
	return all
}

func lacksNetwork(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	if s.Network == nil {
		return nil
	}
	if h.Firewall == protocol.FirewallOff && s.Network.Mode != "" && s.Network.Mode != protocol.NetworkInternet {
		all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonFirewall, "spec.network", "the operator of %s turned its firewall off", h.Worker))
	}
	if i := deniedRange(s.Network, h); i >= 0 {
		all = append(all, lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, fmt.Sprintf("spec.network.allow[%d]", i),
			"the operator of %s lets no sandbox reach %s", h.Worker, s.Network.Allow[i]))
	}
	if i := withheldRange(s.Network, h); i >= 0 {
		all = append(all, lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, fmt.Sprintf("spec.network.allow[%d]", i),
			"%s is private: the operator of %s would have to allow it with worker.allow_networks", s.Network.Allow[i], h.Worker))
	}
	return all
}

func lacksAbility(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	if s.Profile != "" && !slices.Contains(h.Profiles, s.Profile) && (s.Profile != protocol.ProfileHardened || len(h.Profiles) > 0) { // an older worker names none
		all = append(all, lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, "spec.profile", "%s does not allow %s", h.Worker, s.Profile))
	}
	if s.Runtime != "" && !slices.Contains(h.Runtimes, s.Runtime) {
		all = append(all, lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, "spec.runtime", "%s does not allow to choose %s", h.Worker, s.Runtime))
	}
	if s.GPUs != "" && h.GPUs < max(s.GPUCount(), 1) {
		all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonUnsupported, "spec.gpus", "%s wanted, %s has %d", s.GPUs, h.Worker, h.GPUs))
	}
	return all
}

// abilities is what some host may be able to do. Where none is, a sandbox that asks for it goes to any,
// whose Engine says why it refuses it.
type abilities struct {
	quotas bool           // limit what a container writes
	cores  float64        // that one container may have
	memory protocol.Bytes // that one sandbox may be promised
	disk   protocol.Bytes
}

func abilitiesOf(hosts []*protocol.Host) (most abilities) {
	for _, h := range hosts {
		most.quotas = most.quotas || h.DiskQuota || unregistered(h)
		if h.Cores == 0 { // it has not said
			most.cores = math.Inf(1)
		}
		most.cores = max(most.cores, float64(h.Cores))
		most.memory, most.disk = max(most.memory, h.Memory), max(most.disk, h.Disk)
	}
	return most
}

// lacksRoom lists the limits of containers that a host could not keep, where another may.
func lacksRoom(s *protocol.SandboxSpec, h *protocol.Host, most abilities) (all []*protocol.Error) {
	check := func(field string, disk protocol.Bytes, cores float64, pids int64) {
		if h.MostPIDs > 0 && pids > h.MostPIDs {
			all = append(all, lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, field+".pids", "the operator of %s gives one container %d at most (worker.pids), and not %d", h.Worker, h.MostPIDs, pids))
		}
		if disk > 0 && most.quotas && !h.DiskQuota {
			all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonUnsupported, field+".disk", "%s cannot limit what a container writes", h.Worker))
		}
		if h.Cores > 0 && cores > float64(h.Cores) && cores <= most.cores {
			all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonUnsupported, field+".cpu", "%g wanted, %s has %d", cores, h.Worker, h.Cores))
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

// lacksTotal lists what a sandbox and its services reserve together, where a host would not have as much if it
// were empty. What is resumed has been there before, and waits for an operator who lowered what his host offers.
func lacksTotal(b *protocol.Sandbox, s *protocol.SandboxSpec, h *protocol.Host, most abilities) (all []*protocol.Error) {
	if b.Resuming {
		return nil
	}
	with := ""
	if len(s.RequiredServices)+len(s.OptionalServices) > 0 {
		with = " with all services"
	}
	check := func(field string, wanted, has, most protocol.Bytes) {
		switch {
		case has == 0 || wanted <= has: // 0: it has not said
		case wanted > most:
			all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonNoHost, field, "%s wanted%s, and the largest host has %s", wanted, with, most))
		default:
			all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonNoHost, field, "%s wanted%s, %s has %s", wanted, with, h.Worker, has))
		}
	}
	t := s.Totals()
	check("spec.memory", t.Memory, h.Memory, most.memory)
	check("spec.disk", t.Disk, h.Disk, most.disk)
	return all
}

func lacksServiceProfile(s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	allowed := h.ServiceProfiles
	if len(allowed) == 0 {
		allowed = []string{protocol.ProfileStandard} // an older worker: it would take a hardened one, and not make it so
	}
	names, _ := s.Services()
	for _, name := range names {
		v, _ := s.Service(name)
		if profile := v.Capabilities(); !slices.Contains(allowed, profile) {
			all = append(all, lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, s.ServiceField(name)+".profile",
				"%s allows services %s, and not %s", h.Worker, strings.Join(allowed, ", "), profile))
		}
	}
	return all
}

func lacksFiles(b *protocol.Sandbox, s *protocol.SandboxSpec, h *protocol.Host) (all []*protocol.Error) {
	for i, name := range s.Tools {
		if !slices.Contains(h.Tools, name) {
			all = append(all, lack(protocol.FailedPrecondition, protocol.ReasonToolUnavailable, fmt.Sprintf("spec.tools[%d]", i), "%s does not offer %s", h.Worker, name))
		}
	}
	for i, m := range asked(b).Mounts {
		if field, why := mountRefusal(m, h); why != "" {
			all = append(all, lack(protocol.PermissionDenied, protocol.ReasonMountDenied, fmt.Sprintf("spec.mounts[%d].%s", i, field), "%s %s of %s", m.Source, why, h.Worker))
		}
	}
	return all
}

// deniedRange is the index of the first range of a network that a host's operator denies whole, -1
// where there is none.
func deniedRange(n *protocol.Network, h *protocol.Host) int {
	denied := prefixes(h.DenyNetworks)
	return slices.IndexFunc(n.Allow, func(allowed string) bool {
		r, err := netip.ParsePrefix(allowed)
		return err == nil && protocol.RangeWithin(r, denied)
	})
}

// withheldRange is the index of the first range of a network that is private, and that a host's operator does
// not allow, -1 where there is none.
func withheldRange(n *protocol.Network, h *protocol.Host) int {
	given := prefixes(h.AllowNetworks)
	return slices.IndexFunc(n.Allow, func(allowed string) bool {
		r, err := netip.ParsePrefix(allowed)
		return err == nil && protocol.PrivateRange(r) && !protocol.RangeWithin(r, given)
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

// unregistered says that only sandboxes know of a host: its worker, which is away, may offer anything.
func unregistered(h *protocol.Host) bool { return h.Instance == "" }

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

// impossible returns the error for a sandbox that no host, whatever its load, would ever take
// because of the operators' policy; nil where waiting may help, and while one of them is not heard of.
func impossible(b *protocol.Sandbox, hosts []*protocol.Host) *protocol.Error {
	if len(hosts) == 0 || slices.ContainsFunc(hosts, unregistered) {
		return nil
	}
	most := abilitiesOf(hosts)
	var all [][]*protocol.Error // by host
	hosts = byName(hosts)
	for _, h := range hosts {
		s, err := specOn(b, h)
		what := []*protocol.Error{protocol.AsError(err)}
		if err == nil {
			what = lacks(b, s, h, most)
		}
		if len(what) == 0 {
			return nil
		}
		all = append(all, what)
	}
	if e := mountNowhere(b, hosts); e != nil {
		return e
	}
	for _, e := range all[0] {
		if !slices.ContainsFunc(all, func(other []*protocol.Error) bool { return !hasField(other, e.Field) }) {
			return e
		}
	}
	return scattered(hosts, all)
}

func hasField(all []*protocol.Error, field string) bool {
	return slices.ContainsFunc(all, func(e *protocol.Error) bool { return e.Field == field })
}

// mountNowhere returns the error for the first mount that no host allows, nil where there is none.
func mountNowhere(b *protocol.Sandbox, hosts []*protocol.Host) *protocol.Error {
	for i, m := range asked(b).Mounts {
		refused := ""
		allows := func(h *protocol.Host) bool {
			field, why := mountRefusal(m, h)
			refused = max(refused, field) // a host that allows to read it says more than one that does not
			return why == ""
		}
		if !slices.ContainsFunc(hosts, allows) {
			why := " is not below any host's allow-list"
			if refused == "writable" {
				why = " may be mounted read-only at most, by every host's allow-list"
			}
			return lack(protocol.PermissionDenied, protocol.ReasonMountDenied, fmt.Sprintf("spec.mounts[%d].%s", i, refused), "%s%s", m.Source, why)
		}
	}
	return nil
}

// mostHosts is of how many hosts a message says why they do not take a sandbox.
const mostHosts = 5

// scattered is the error where each host lacks something, and none of it is lacking everywhere.
func scattered(hosts []*protocol.Host, all [][]*protocol.Error) *protocol.Error {
	why := "no host alone gives all of it"
	for i, h := range hosts {
		if i == mostHosts {
			why += fmt.Sprintf("; and %d more", len(hosts)-mostHosts)
			break
		}
		why += fmt.Sprintf("; %s: %s", h.Worker, explained(all[i][0]))
	}
	return lack(protocol.FailedPrecondition, protocol.ReasonNoHost, "spec", "%s", why)
}
