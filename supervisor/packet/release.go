package packet

import (
	"io"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a close may take before it is interrupted.
const patience = 5 * time.Millisecond

// MostDescriptors is the maximum number of descriptors in one message: the kernel's limit. A receiver needs room for
// all of them. The kernel closes those without room itself, and such a close may block forever.
const MostDescriptors = 253

// Discard closes a descriptor that a hostile peer may have sent. Negative descriptors are ignored.
//
// A hostile descriptor may be a socket whose close waits until its peer has read everything, for as long as the socket
// says. It may also be a unix socket in which such a socket lies unread. Discard does not wait for them.
func Discard(fd int) {
	if fd < 0 {
		return
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // fails if it is not a socket
	closeSoon(fd)
}

// DiscardAll closes the descriptors in control messages.
func DiscardAll(oob []byte) {
	first, others := descriptors(oob)
	Discard(first)
	for _, fd := range others {
		Discard(fd)
	}
}

// Release closes a connection to a hostile peer. Like [Discard], it does not wait for what the peer has sent.
func Release(conn interface {
	io.Closer
	syscall.Conn
}) error {
	own := -1
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // fails if the connection is closed
			if dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				own = dup
			}
		})
	}
	err := conn.Close() // with a second descriptor, this is not the last close, so it does not wait
	if own >= 0 {
		closeSoon(own)
	}
	return err
}

// closeSoon closes a descriptor. The kernel stops waiting in a close when its thread gets a signal. The runtime uses
// SIGURG for its own purposes and expects it at any time.
func closeSoon(fd int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	var mu sync.Mutex
	closed := false
	var late *time.Timer
	mu.Lock()
	late = time.AfterFunc(patience, func() {
		mu.Lock()
		defer mu.Unlock()
		if !closed {
			_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // tried again
			late.Reset(patience)
		}
	})
	mu.Unlock()
	unix.Close(fd)
	mu.Lock()
	closed = true
	late.Stop()
	mu.Unlock()
}
