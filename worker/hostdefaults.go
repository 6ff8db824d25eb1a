package worker

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// checkDefaults refuses defaults that this host cannot give, or that its operator does not allow
// elsewhere: every sandbox that says nothing would be refused or fail.
func (w *worker) checkDefaults() error {
	s := w.cfg.Defaults
	if s == nil {
		return nil
	}
	if err := protocol.ValidateWorkerDefaults(s); err != nil {
		return err
	}
	err := w.abilities.CheckChoices(s)
	if err == nil {
		err = w.isolation.Check(s)
	}
	if err == nil {
		_, err = w.files.Check(s)
	}
	if err == nil && s.Disk > 0 && !w.info.DiskQuota {
		err = protocol.Invalid("spec.disk", "the engine's storage has no quotas to enforce it")
	}
	if err == nil && s.Memory > w.offeredMemory() {
		err = protocol.Invalid("spec.memory", "is more than the %s that the worker offers", w.offeredMemory())
	}
	return protocol.AsWorkerDefault(err)
}

// offeredMemory is what the worker offers for sandboxes.
func (w *worker) offeredMemory() protocol.Bytes {
	if w.cfg.Memory > 0 {
		return w.cfg.Memory
	}
	return protocol.Bytes(w.info.Memory) / 10 * 9
}
