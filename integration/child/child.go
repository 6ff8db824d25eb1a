// Package child starts processes that are killed when this process ends.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// starts passes functions to the thread that starts all processes.
var starts = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread() // never unlocked; Start says why
		for start := range starts {
			start()
		}
	}()
}

// Start starts a process that is killed when this process ends. The kernel sends the parent-death signal when the
// thread that started the process ends, and the Go runtime ends threads at any time. Therefore one thread that never
// ends starts all processes.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starts <- func() { started <- cmd.Start() }
	return <-started
}
