package engines

import (
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listen listens on a free port of 127.0.0.1 in the engine's network namespace until the test ends.
func (e *Engine) Listen() net.Listener {
	e.tb.Helper()
	var l net.Listener
	err := e.inNamespace(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		e.tb.Fatalf("listen in the namespace of engine %s: %v", e.Name, err)
	}
	e.tb.Cleanup(func() { _ = l.Close() }) // the test may have closed it already
	return l
}

// inNamespace calls f on a thread in the engine's network namespace. The thread then returns to its own namespace, and
// must not end: its end would kill the processes that it started with a parent-death signal.
func (e *Engine) inNamespace(f func() error) error {
	if e.namespace == "" {
		return f()
	}
	runtime.LockOSThread()
	own, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return err
	}
	defer own.Close()
	other, err := os.Open("/run/netns/" + e.namespace)
	if err != nil {
		return err
	}
	defer other.Close()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = f()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(back) // this thread may neither continue in the wrong namespace nor end
	}
	runtime.UnlockOSThread()
	return err
}
