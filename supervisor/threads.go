package supervisor

import (
	"runtime"
	"sync"
)

// The slots limit how many goroutines are in system calls at the same time. Even a system call that does not block may
// occupy a thread for some time. On a busy machine, the Go runtime then continues with another thread. So all work that
// is done for each exec is done in a slot. The number of slots is chosen so that the slots, the reaper, the connection,
// the scan of the process table and the runtime together need fewer threads than reservedThreads.
const (
	fileSlots       = 8 // slots for moving output, and for writing and truncating records
	startSlots      = 4 // slots for finding programs and forking; only one fork runs at a time anyway
	reservedThreads = 28
)

// reserveThreads creates all threads that this process will ever need. The Go runtime keeps idle threads. So PID 1
// needs no new thread when the sandbox has reached its limit of processes.
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

// slots limits how many goroutines are in a section of code.
type slots chan struct{}

func (s slots) acquire() { s <- struct{}{} }
func (s slots) release() { <-s }
