package worker

import (
	"fmt"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/watermark"
)

// Watermarks say how full a host may be and still take sandboxes.
type Watermarks = watermark.Limits

// full says why the host takes no new sandboxes, "" if it does. It stops before it is full, so that running sandboxes
// have room to continue.
func (w *worker) full() string {
	if why := w.firstLook.full(); why != "" {
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

// offeredDisk returns how much disk the worker offers to sandboxes with a disk limit: the file system of the engine's
// data up to the watermark, if quotas can be enforced there; 0 if that is not known.
func (w *worker) offeredDisk() protocol.Bytes {
	if !w.info.DiskQuota {
		return 0
	}
	return w.cfg.Watermarks.UsableDisk(w.info.RootDir)
}
