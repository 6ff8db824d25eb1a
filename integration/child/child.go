// Package child starts processes that end with this one.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// starts carries commands to the thread that starts them.
var starts = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread() // for ever: see Start
		for start := range starts {
			start()
		}
	}()
}

// Start starts a process that is killed when this one ends. The kernel kills it already when the
// thread ends that started it, and threads of the Go runtime come and go: a thread that never ends
// starts them all.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starts <- func() { started <- cmd.Start() }
	return <-started
}
