package coordinator

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

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
	best, most := math.Inf(-1), abilitiesOf(hosts)
	for _, h := range byName(hosts) {
		reason := refuse(b, h, images, most)
		refusals = append(refusals, protocol.HostRefusal{Worker: h.Worker, Reason: reason})
		if reason == "" {
			if fit := room(h) + imageWorth*imagesThere(&b.Spec, h, images); fit > best {
				best, chosen = fit, h
			}
		}
	}
	return chosen, refusals
}

func byName(hosts []*protocol.Host) []*protocol.Host {
	return slices.SortedFunc(slices.Values(hosts), func(a, b *protocol.Host) int { return cmp.Compare(a.Worker, b.Worker) })
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

// refuse says why a host does not take a sandbox, "" when it does.
// Memory, disk and GPUs are reserved; cpu and pids are limits that hosts may promise several times over.
func refuse(b *protocol.Sandbox, h *protocol.Host, images imageTable, most abilities) string {
	if why := closed(b, h); why != "" {
		return why
	}
	s, err := specOn(b, h)
	if err != nil {
		return explained(protocol.AsError(err))
	}
	if why := crowded(s, h); why != "" {
		return why
	}
	if all := lacks(b, s, h, most); len(all) > 0 {
		return explained(all[0])
	}
	if b.Resuming { // its containers are there, and keep their images
		return ""
	}
	return imageRefusal(s, h, images)
}

func explained(e *protocol.Error) string { return e.Field + ": " + e.Message }

// crowded says of what a host has too little left, "" where it has enough.
func crowded(s *protocol.SandboxSpec, h *protocol.Host) string {
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
	case h.Cordoned || h.Drain != nil:
		return draining(h)
	case h.State != protocol.HostReady && unregistered(h):
		return fmt.Sprintf("the host is %s, and what it offers is not known until its worker is back", h.State)
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
	return refusedBy(b, h)
}

// refusedBy says of what a host's worker had too little for a sandbox when it was assigned to it, "" where it was
// not. Two coordinators that both believe to schedule may give a host more than it has.
func refusedBy(b *protocol.Sandbox, h *protocol.Host) string {
	for _, r := range b.Refusals {
		if r.HostID == h.HostID {
			return fmt.Sprintf("it gave the sandbox back, and is passed over until %s: %s", r.Until.UTC().Format(time.RFC3339), r.Reason)
		}
	}
	return ""
}

// standing is a sandbox with those refusals of hosts that still count.
func standing(b *protocol.Sandbox, now time.Time) *protocol.Sandbox {
	over := func(r protocol.Refusal) bool { return !now.Before(r.Until) }
	if !slices.ContainsFunc(b.Refusals, over) {
		return b
	}
	fresh := *b
	fresh.Refusals = slices.DeleteFunc(slices.Clone(b.Refusals), over)
	return &fresh
}

// room says how empty a host is: the scarcest of slots, memory, disk and cores counts. 1: it is empty;
// 0: all is promised; less: its cores or pids are promised several times over. Of pids everybody is
// promised far more than they need: they count only where all are promised. What a host does not say is
// not scarce.
func room(h *protocol.Host) float64 {
	left := func(used, all float64) float64 { return 1 - used/max(all, 1) }
	least := min(left(float64(h.Sandboxes), float64(h.Slots)), left(float64(h.UsedMem), float64(h.Memory)), left(h.UsedCPU, h.CPU))
	if h.Disk > 0 {
		least = min(least, left(float64(h.UsedDisk), float64(h.Disk)))
	}
	if h.PIDs > 0 && h.UsedPIDs > h.PIDs {
		least = min(least, left(float64(h.UsedPIDs), float64(h.PIDs)))
	}
	return least
}
