package eventually

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// descriptorsWithin is how long descriptors may stay open after the last test, because a server or a goroutine may
// still be ending.
const descriptorsWithin = 5 * time.Second

// memoryLimit is the memory of the process, in bytes, at which the garbage collector runs although it is turned off.
const memoryLimit = 1 << 30

// DescriptorsClosed records which descriptors are open, and returns a function for goleak.Cleanup. After the tests,
// that function waits until all descriptors that were opened since then are closed. If some stay open, it prints their
// files and sets the exit code 1. In any case it ends the process.
//
// DescriptorsClosed turns the garbage collector off, because the collector closes files that are no longer referenced.
// The collector would hide that a test, or the tested code, has forgotten to close a file.
//
//	func TestMain(m *testing.M) {
//		goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed()))
//	}
func DescriptorsClosed() (check func(exitCode int)) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	before := openDescriptors()
	return func(exitCode int) {
		if exitCode == 0 {
			if left := leftOpen(before, descriptorsWithin); len(left) > 0 {
				fmt.Fprintf(os.Stderr, "the tests left %d descriptors open:\n%s\n", len(left), strings.Join(left, "\n"))
				exitCode = 1
			}
		}
		os.Exit(exitCode)
	}
}

// ClosesDescriptors returns a function that waits until all descriptors that were opened after this call are closed.
// The function fails the test if some stay open. It does not count descriptors of files below the excepted directories.
// The test must not run in parallel.
func ClosesDescriptors(t testing.TB, except ...string) (check func()) {
	before := openDescriptors()
	return func() {
		t.Helper()
		if left := leftOpen(before, descriptorsWithin, except...); len(left) > 0 {
			t.Errorf("the test left %d descriptors open:\n%s", len(left), strings.Join(left, "\n"))
		}
	}
}

// leftOpen waits until no unexpected descriptor is open. It expects the descriptors from before, and descriptors of
// files below the excepted directories. leftOpen returns the unexpected descriptors that are still open after the given
// time.
func leftOpen(before map[string]bool, within time.Duration, except ...string) []string {
	for deadline := time.Now().Add(within); ; time.Sleep(period) {
		now := openDescriptors()
		maps.DeleteFunc(now, func(descriptor string, _ bool) bool {
			_, file, _ := strings.Cut(descriptor, " ")
			inside := func(dir string) bool { return dir != "" && strings.HasPrefix(file, dir) }
			return before[descriptor] || slices.ContainsFunc(except, inside)
		})
		if len(now) == 0 || time.Now().After(deadline) {
			return slices.Sorted(maps.Keys(now))
		}
	}
}

// openDescriptors returns the open descriptors of this process, each as its number and the name of its file. It leaves
// out the descriptors of Go's network poller, which stay open. It returns no descriptors on a system without /proc.
func openDescriptors() map[string]bool {
	const dir = "/proc/self/fd"
	open := map[string]bool{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return open
	}
	for _, e := range entries {
		file, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || file == "anon_inode:[eventpoll]" || file == "anon_inode:[eventfd]" {
			continue // closed since ReadDir listed it, like the descriptor that ReadDir itself used
		}
		open[e.Name()+" "+file] = true
	}
	return open
}
