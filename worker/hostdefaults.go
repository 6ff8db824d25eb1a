package worker

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// checkDefaults refuses defaults that this host cannot meet, or that its operator does not allow in specs. With such
// defaults, every sandbox would be refused or would fail, unless its spec overrides them.
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
		err = protocol.Invalid("spec.disk", "the engine's storage has no quotas that could enforce a disk limit")
	}
	if err == nil && s.Memory > w.capacity().memory() {
		err = protocol.Invalid("spec.memory", "is more than the %s that the worker offers", w.capacity().memory())
	}
	return protocol.AsWorkerDefault(err)
}
