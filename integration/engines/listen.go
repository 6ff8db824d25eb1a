package engines

import (
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listen listens on a free port of 127.0.0.1 as the engine sees it, in its network namespace, until
// the test ends.
func (e *Engine) Listen() net.Listener {
	e.tb.Helper()
	type result struct {
		l   net.Listener
		err error
	}
	results := make(chan result, 1)
	go func() {
		if e.namespace != "" {
			runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
			ns, err := os.Open("/run/netns/" + e.namespace)
			if err == nil {
				err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
				ns.Close()
			}
			if err != nil {
				results <- result{err: err}
				return
			}
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		results <- result{l, err}
	}()
	r := <-results
	if r.err != nil {
		e.tb.Fatalf("listen in the namespace of engine %s: %v", e.Name, r.err)
	}
	e.tb.Cleanup(func() { _ = r.l.Close() }) // also closed by who serves on it
	return r.l
}
