package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// imageBonus is added to the headroom of a host that has all images of a sandbox. The bonus is small: a host without
// the images still gets the sandbox if its headroom is greater by more than a tenth. Otherwise the first host that
// pulled an image would get every sandbox that uses the image.
const imageBonus = 0.1

// Place chooses the host for a sandbox: the accepting host with the most headroom, with a bonus for images that the
// host already has. It is pure. If every host refuses, chosen is nil. refusals has the reason of each host, ordered by
// worker name; the reason of an accepting host is empty.
func Place(b *protocol.Sandbox, hosts []*protocol.Host, images Images) (
	chosen *protocol.Host, refusals []protocol.HostRefusal,
) {
	best, limits := math.Inf(-1), LimitsOf(hosts)
	for _, h := range byName(hosts) {
		reason := refusal(b, h, images, limits)
		refusals = append(refusals, protocol.HostRefusal{Worker: h.Worker, Reason: reason})
		if reason == "" {
			if fit := headroom(h) + imageBonus*imagesPresent(&b.Spec, h, images); fit > best {
				best, chosen = fit, h
			}
		}
	}
	return chosen, refusals
}

// maxListedHosts limits how many hosts a message lists.
const maxListedHosts = 5

// Reasons lists why hosts refuse a sandbox, for the end of an error message: "; w1: reason; w2: reason".
func Reasons(b *protocol.Sandbox, hosts []*protocol.Host, images Images) string {
	text, limits := "", LimitsOf(hosts)
	for i, h := range hosts {
		if i == maxListedHosts {
			return fmt.Sprintf("%s; and %d more hosts", text, len(hosts)-maxListedHosts)
		}
		if reason := refusal(b, h, images, limits); reason != "" {
			text += fmt.Sprintf("; %s: %s", h.Worker, reason)
		}
	}
	return text
}

func byName(hosts []*protocol.Host) []*protocol.Host {
	return slices.SortedFunc(slices.Values(hosts),
		func(a, b *protocol.Host) int { return cmp.Compare(a.Worker, b.Worker) })
}

// SpecOn returns a sandbox's spec as it would be on a host, with the defaults of the host's worker. A sandbox that
// resumes keeps the spec that its containers were created with.
func SpecOn(b *protocol.Sandbox, h *protocol.Host) (*protocol.SandboxSpec, error) {
	switch {
	case b.Resuming:
		return &b.Spec, nil
	case h.Defaults == nil:
		return b.AcceptedSpec(), nil
	}
	resolved := spec.OnWorker(*b.AcceptedSpec(), b.Defaulted, h.Defaults)
	err := resolved.Validate()
	if err != nil {
		e := *protocol.AsError(err)
		e.Message = "with the defaults of worker " + h.Worker + ": " + e.Message
		err = &e
	}
	return &resolved, err
}

// refusal returns why a host refuses a sandbox, or "" if it accepts. Memory, disk and GPUs are reserved. Cores and pids
// are limits, of which a host may promise more than it has.
func refusal(b *protocol.Sandbox, h *protocol.Host, images Images, limits Limits) string {
	if reason := unavailable(b, h); reason != "" {
		return reason
	}
	s, err := SpecOn(b, h)
	if err != nil {
		return fieldMessage(protocol.AsError(err))
	}
	if reason := shortage(s, h); reason != "" {
		return reason
	}
	if all := unmet(b, s, h, limits); len(all) > 0 {
		return fieldMessage(all[0])
	}
	if b.Resuming { // the sandbox's containers exist and keep their images
		return ""
	}
	return imageRefusal(s, h, images)
}

func fieldMessage(e *protocol.Error) string { return e.Field + ": " + e.Message }

// shortage returns which resource a host has too little of, or "" if it has enough of all.
func shortage(s *protocol.SandboxSpec, h *protocol.Host) string {
	t := s.Totals()
	switch {
	case h.UsedMem+t.Memory > h.Memory:
		return fmt.Sprintf("%s of memory are wanted, %s of %s are free", t.Memory, max(h.Memory-h.UsedMem, 0), h.Memory)
	case h.Disk > 0 && t.Disk > 0 && h.UsedDisk+t.Disk > h.Disk:
		return fmt.Sprintf("%s of disk are wanted, %s of %s are free", t.Disk, max(h.Disk-h.UsedDisk, 0), h.Disk)
	case s.GPUs != "" && h.GPUs-h.UsedGPUs < max(s.GPUCount(), 1), s.GPUs == "all" && h.UsedGPUs > 0:
		return fmt.Sprintf("spec.gpus: %s wanted, %d of %d are free", s.GPUs, max(h.GPUs-h.UsedGPUs, 0), h.GPUs)
	}
	return ""
}

// unavailable returns why a host takes no sandbox now, or refuses this sandbox for a reason outside the sandbox's spec.
// It returns "" if the host may take the sandbox.
func unavailable(b *protocol.Sandbox, h *protocol.Host) string {
	switch {
	case b.Resuming && b.HostID != h.HostID:
		return "the stopped sandbox is on another host, " + b.Worker
	case h.Cordoned || h.Drain != nil:
		return closedByOperator(h)
	case h.Unsupported != "":
		return h.Unsupported
	case h.State != protocol.HostReady && unregistered(h):
		return fmt.Sprintf("the host is %s, and its offer is unknown until its worker is back", h.State)
	case h.State != protocol.HostReady:
		if h.Problem != "" {
			return fmt.Sprintf("the host is %s: %s", h.State, h.Problem)
		}
		return fmt.Sprintf("the host is %s", h.State)
	case h.Firewall == "":
		return "the host does not keep the networks of sandboxes apart: " +
			cmp.Or(h.Problem, "its worker does not report a firewall")
	case h.Full != "" && !b.Resuming: // a stopped sandbox already has its disk space
		return h.Full
	case h.Sandboxes >= h.Slots:
		return fmt.Sprintf("all of its %d slots are taken", h.Slots)
	}
	return returnedBy(b, h)
}

// closedByOperator returns how the operator closed a host to new sandboxes, or "" if the host is open.
func closedByOperator(h *protocol.Host) string {
	switch {
	case h.Drain != nil && !h.Drain.Deadline.IsZero():
		return fmt.Sprintf("the host is drained until %s", h.Drain.Deadline.UTC().Format(time.RFC3339))
	case h.Drain != nil:
		return "the host is drained"
	case h.Cordoned:
		return "the host is cordoned"
	}
	return ""
}

// returnedBy returns why a host's worker gave this sandbox back, or "" if it did not. Two coordinators that both
// believe that they lead may assign more to a host than it has room for; the worker then returns the excess.
func returnedBy(b *protocol.Sandbox, h *protocol.Host) string {
	for _, r := range b.Refusals {
		if r.HostID == h.HostID {
			return fmt.Sprintf("the host gave the sandbox back, and gets it again at the earliest at %s: %s",
				r.Until.UTC().Format(time.RFC3339), r.Reason)
		}
	}
	return ""
}

// WithoutExpiredRefusals returns the sandbox without the hosts' refusals that have expired at now.
func WithoutExpiredRefusals(b *protocol.Sandbox, now time.Time) *protocol.Sandbox {
	expired := func(r protocol.Refusal) bool { return !now.Before(r.Until) }
	if !slices.ContainsFunc(b.Refusals, expired) {
		return b
	}
	current := *b
	current.Refusals = slices.DeleteFunc(slices.Clone(b.Refusals), expired)
	return &current
}

// headroom returns the free share of a host's scarcest resource among slots, memory, disk and cores. It is 1 for an
// empty host and 0 for a host without free room; it is negative if more cores or pids are promised than the host has.
// Sandboxes are promised far more pids than they use, so pids count only if more are promised than the host has. A
// resource that a host does not report counts as not scarce.
func headroom(h *protocol.Host) float64 {
	free := func(used, all float64) float64 { return 1 - used/max(all, 1) }
	least := min(
		free(float64(h.Sandboxes), float64(h.Slots)),
		free(float64(h.UsedMem), float64(h.Memory)),
		free(h.UsedCPU, h.CPU))
	if h.Disk > 0 {
		least = min(least, free(float64(h.UsedDisk), float64(h.Disk)))
	}
	if h.PIDs > 0 && h.UsedPIDs > h.PIDs {
		least = min(least, free(float64(h.UsedPIDs), float64(h.PIDs)))
	}
	return least
}
