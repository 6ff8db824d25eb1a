package supervisor

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// notPassed are the signals that have a meaning for this process: its own end, its children, the runtime's preemption,
// and faults.
var notPassed = []syscall.Signal{
	unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE, unix.SIGPROF,
	unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGSYS,
	32, 33, // used by threading libraries
}

// handleSignals passes signals to the primary command until TERM, INT, or the end of ctx.
func (s *supervisor) handleSignals(ctx context.Context) {
	signals := make(chan os.Signal, 64)
	for number := syscall.Signal(1); number <= 64; number++ {
		if !slices.Contains(notPassed, number) {
			signal.Notify(signals, number)
		}
	}
	// A broken log pipe must not end PID 1. (If the signal were ignored, execs would inherit that.)
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if sig == unix.SIGTERM || sig == unix.SIGINT {
				return
			}
			s.primary.signal(sig)
		}
	}
}
