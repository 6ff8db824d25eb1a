package supervisor

import (
	"runtime"
	"sync"
)

// These limit how many goroutines are in system calls at the same time. Even a call that does not block may take a
// thread: on a busy machine, the runtime moves the processor of a call that lasts to another thread. So work that is
// done once per exec is done in a slot. Together with the reaper's wait, the connection, the scan of the process table
// and the runtime's own threads, the slots stay below reservedThreads.
const (
	fileSlots       = 8 // moving output; writing and truncating records
	startSlots      = 4 // finding a program and forking; only one fork runs at a time anyway
	reservedThreads = 28
)

// reserveThreads makes all threads that this process will ever need, so that a sandbox at its pids limit cannot bring
// down PID 1. The runtime keeps idle threads.
func reserveThreads(n int) {
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for range n {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread() // a locked goroutine keeps its thread while it waits
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// slots limits how many goroutines are in a section.
type slots chan struct{}

func (s slots) acquire() { s <- struct{}{} }
func (s slots) release() { <-s }
