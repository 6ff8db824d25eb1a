package worker

import (
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/kernel"
)

// posture says how well the engine and the kernel separate sandboxes from the host and from each other, and what the
// operator should do about it. It is a report: no sandbox is refused because of it.
func posture(w *worker) *protocol.Posture {
	p := abilities.EnginePosture(w.info)
	p.Warnings = append(p.Warnings, kernel.LowLimits(w.cfg.Slots, w.cfg.Connections)...)
	if w.isolation.ConnectionsUnlimited() {
		p.Warnings = append(p.Warnings,
			"the kernel cannot count connections (module nft_connlimit): one sandbox can fill the host's connection table")
	}
	return p
}

// logPosture logs the warnings when a worker starts.
func logPosture(w *worker) {
	if warnings := posture(w).Warnings; len(warnings) > 0 {
		w.log.Warn("the host's isolation could be better; host list shows this too", "why", strings.Join(warnings, "; "))
	}
}

// limitTerminals limits the terminals of a container before any command of its sandbox runs. If that fails, it warns
// once; the container may run.
func (w *worker) limitTerminals(pid int) {
	if err := kernel.LimitTerminals(pid, w.cfg.Slots); err != nil {
		w.unlimited.Do(func() {
			w.log.Warn("cannot limit the terminals of sandboxes: one sandbox can use up all of the machine's", "error", err)
		})
	}
}
