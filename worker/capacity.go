package worker

import (
	"fmt"

	"github.com/boxfleet/boxfleet/protocol"
)

// capacity is what a host offers to sandboxes, and whether it is full.
type capacity struct{ w *worker }

func (w *worker) capacity() capacity { return capacity{w} }

// full says why the host takes no new sandboxes, "" if it does. It stops before it is full, so that running sandboxes
// have room to continue.
func (c capacity) full() string {
	w := c.w
	if why := w.initial.full(); why != "" {
		return why
	}
	if why := w.disk.Full(); why != "" {
		return why
	}
	if why := w.cfg.Watermarks.Reached(w.cfg.StateDir, w.info.RootDir); why != "" {
		return why
	}
	if w.subnets.Free() == 0 {
		return fmt.Sprintf("all networks of its pool %s are in use", w.subnets.Pool())
	}
	return ""
}

// disk returns how much disk the worker offers to sandboxes with a disk limit: the file system of the engine's
// data up to the watermark, if quotas can be enforced there; 0 if that is not known.
func (c capacity) disk() protocol.Bytes {
	w := c.w
	if !w.info.DiskQuota {
		return 0
	}
	return w.cfg.Watermarks.UsableDisk(w.info.RootDir)
}

// memory is what the worker offers to sandboxes.
func (c capacity) memory() protocol.Bytes {
	w := c.w
	if w.cfg.Memory > 0 {
		return w.cfg.Memory
	}
	return protocol.Bytes(w.info.Memory) / 10 * 9
}
