package supervisor

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// notPassed are the signals that are not sent to the primary command, because they concern this process: its own end,
// its children, the Go runtime's preemption, and faults.
var notPassed = []syscall.Signal{
	unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE, unix.SIGPROF,
	unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGSYS,
	32, 33, // used by threading libraries
}

// handleSignals sends the signals that this process gets to the primary command. It returns after TERM, INT, or the end
// of ctx.
func (s *supervisor) handleSignals(ctx context.Context) {
	signals := make(chan os.Signal, 64)
	for number := syscall.Signal(1); number <= 64; number++ {
		if !slices.Contains(notPassed, number) {
			signal.Notify(signals, number)
		}
	}
	// A broken pipe for the log must not end PID 1. The signal is caught rather than ignored, because execs would inherit
	// an ignored signal.
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
