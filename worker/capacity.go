package worker

import (
	"fmt"

	"github.com/boxfleet/boxfleet/protocol"
)

// capacity computes what the host offers to sandboxes, and whether the host is full.
type capacity struct{ w *worker }

func (w *worker) capacity() capacity { return capacity{w} }

// full returns the reason why the host takes no new sandboxes, or "" if it takes them. The host stops taking sandboxes
// before its disks and process IDs are used up, so that running sandboxes can continue.
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
		return fmt.Sprintf("all subnets of its network pool %s are in use", w.subnets.Pool())
	}
	return ""
}

// disk returns how much disk the worker offers to sandboxes with a disk limit: the size of the engine's file system up
// to the watermark. It returns 0 if the engine cannot enforce quotas, or if the size is unknown.
func (c capacity) disk() protocol.Bytes {
	w := c.w
	if !w.info.DiskQuota {
		return 0
	}
	return w.cfg.Watermarks.UsableDisk(w.info.RootDir)
}

// memory returns how much memory the worker offers to sandboxes.
func (c capacity) memory() protocol.Bytes {
	w := c.w
	if w.cfg.Memory > 0 {
		return w.cfg.Memory
	}
	return protocol.Bytes(w.info.Memory) / 10 * 9
}
