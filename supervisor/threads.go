package supervisor

import (
	"runtime"
	"sync"
)

// Bounds of how many goroutines are in system calls at the same time. A call need not block to
// take a thread: on a busy machine the runtime gives the processor of every call that lasts to
// another thread. So whatever is done once per exec is done in a slot. Together with the reaper's
// wait, the connection, the scan of the process table and the runtime's own threads, the slots
// stay below reservedThreads.
const (
	fileSlots       = 8 // moving output; writing and removing in the run directory
	startSlots      = 4 // finding a program and forking, which is one at a time anyway
	reservedThreads = 28
)

// reserveThreads makes the threads that this process will ever need, so that a sandbox at its pids
// limit cannot bring down PID 1. The runtime keeps idle threads.
func reserveThreads(n int) {
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for range n {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread() // a locked goroutine has its thread for itself, also while it waits
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// slots bounds how many goroutines are in a section.
type slots chan struct{}

func (s slots) acquire() { s <- struct{}{} }
func (s slots) release() { <-s }
