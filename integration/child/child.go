// Package child starts processes that are killed when this process ends.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// starts passes commands to the thread that starts them.
var starts = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread() // never unlocked: see Start
		for start := range starts {
			start()
		}
	}()
}

// Start starts a process that is killed when this one ends. The kernel sends the parent-death signal as soon as the
// starting thread ends, and the Go runtime creates and ends threads at will. One thread that never ends therefore
// starts all processes.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starts <- func() { started <- cmd.Start() }
	return <-started
}
