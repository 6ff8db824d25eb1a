package worker

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/kernel"
)

// posture reports how well the engine and the kernel separate sandboxes from the host and from each other, and what the
// operator should improve. No sandbox is refused because of the posture.
func posture(w *worker) *protocol.Posture {
	p := abilities.EnginePosture(w.info)
	p.Warnings = append(p.Warnings, kernel.LowLimits(w.cfg.Slots, w.cfg.Connections)...)
	if w.isolation.ConnectionsUnlimited() {
		p.Warnings = append(p.Warnings,
			"the kernel cannot count connections, because it lacks the module nft_connlimit: "+
				"one sandbox can fill the host's connection table")
	}
	if isInMemory(w.cfg.StateDir) {
		p.Warnings = append(p.Warnings, "the worker's directory "+w.cfg.StateDir+" is in memory (tmpfs), so what commands "+
			"print counts against the memory limit of their sandbox: put the directory on a disk")
	}
	return p
}

// isInMemory reports whether the files of a directory are kept in memory.
func isInMemory(dir string) bool {
	var system unix.Statfs_t
	return unix.Statfs(dir, &system) == nil && system.Type == unix.TMPFS_MAGIC
}

// logPosture logs the warnings of the host's posture when a worker starts.
func logPosture(w *worker) {
	if warnings := posture(w).Warnings; len(warnings) > 0 {
		w.log.Warn("the host isolates sandboxes less well than it could; boxfleet host list shows the same warnings",
			"why", strings.Join(warnings, "; "))
	}
}

// limitTerminals limits the number of terminals in a container, before any command of the sandbox runs. A failure is
// logged once, and does not keep the container from running.
func (w *worker) limitTerminals(pid int) {
	if err := kernel.LimitTerminals(pid, w.cfg.Slots); err != nil {
		w.unlimited.Do(func() {
			w.log.Warn("could not limit the terminals of a sandbox: one sandbox can use up all terminals of the machine",
				"error", err)
		})
	}
}
