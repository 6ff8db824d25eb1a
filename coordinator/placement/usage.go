package placement

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// everyGPU is the GPU count of a sandbox that takes all of its host's GPUs: more than any host has.
const everyGPU = 1 << 10

// Usage is the resources that sandboxes take on a host.
type Usage struct {
	protocol.Totals
	Sandboxes, GPUs int
}

// UsageOf returns the resources that one sandbox takes.
func UsageOf(s *protocol.SandboxSpec) Usage {
	u := Usage{Totals: s.Totals(), Sandboxes: 1, GPUs: s.GPUCount()}
	if u.GPUs < 0 {
		u.GPUs = everyGPU
	}
	return u
}

// Plus returns the sum of two usages.
func (u Usage) Plus(v Usage) Usage {
	return Usage{u.Totals.Plus(v.Totals), u.Sandboxes + v.Sandboxes, u.GPUs + v.GPUs}
}

// AddTo adds the usage to what a host reports as used.
func (u Usage) AddTo(h *protocol.Host) {
	h.Sandboxes += u.Sandboxes
	h.UsedCPU += u.CPU
	h.UsedMem += u.Memory
	h.UsedDisk += u.Disk
	h.UsedPIDs += u.PIDs
	h.UsedGPUs = min(h.UsedGPUs+u.GPUs, h.GPUs)
}
