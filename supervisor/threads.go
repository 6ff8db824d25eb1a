package supervisor

import (
	"runtime"
	"sync"
)

// Bounds of what blocks in the kernel at the same time, each on a thread of its own. Together with
// the reaper's wait and the runtime's own threads they stay below reservedThreads.
const (
	diskSlots       = 8 // writes, records, removals
	lookupSlots     = 8 // finding a working directory and a program
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
