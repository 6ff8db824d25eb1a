package firewall

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// namespace is the network namespace of an engine. It may differ from the worker's network namespace.
type namespace struct {
	file  *os.File // keeps the namespace open
	inode uint64
	own   bool   // the namespace is also the worker's, so no thread has to enter it
	root  string // the worker's path to the root of the engine's file system
	probe int    // a socket in the namespace, for reading the addresses of interfaces
}

// findNamespace finds the namespace of the process that listens on the engine's unix socket. That process need not be
// the engine. [namespace.has] shows whether the engine's bridges are in the namespace.
func findNamespace(address string) (*namespace, error) {
	path, local := strings.CutPrefix(address, "unix://")
	if !local {
		return nil, unprotected("firewall rules need an engine with a unix socket on the worker's machine, "+
			"and the engine's address is %s", address)
	}
	pid, err := Listener(path)
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonEngineUnavailable,
			"find the process of the engine at %s: %v", path, err)
	}
	if pid <= 0 {
		return nil, unprotected(
			"the process of the engine at %s is not visible to the worker (does it run in another container?)", path)
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	file, err := os.Open(filepath.Join(proc, "ns/net"))
	if err != nil {
		return nil, unprotected("open the network namespace of the engine's process %d: %v", pid, err)
	}
	n := &namespace{file: file, root: filepath.Join(proc, "root"), probe: -1}
	mine := uint64(0)
	if n.inode, err = inodeOf(file.Name()); err == nil {
		mine, err = inodeOf("/proc/self/ns/net")
	}
	n.own = n.inode == mine
	if err == nil {
		err = n.do(func() (err error) {
			n.probe, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		})
	}
	if err != nil {
		n.close()
		return nil, unprotected("enter the network namespace of the engine's process %d: %v", pid, err)
	}
	return n, nil
}

// Listener returns the PID of the process that listens on a unix socket. It returns 0 if that process is in a PID
// namespace that this process cannot see.
func Listener(path string) (int, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) { cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, optErr); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

func inodeOf(path string) (uint64, error) {
	var stat unix.Stat_t
	err := unix.Stat(path, &stat)
	return stat.Ino, err
}

func (n *namespace) close() {
	_ = n.file.Close() // the file was only open to keep the namespace; nothing was written to it
	if n.probe >= 0 {
		_ = unix.Close(n.probe) // a socket that never connected
	}
}

// fd returns the descriptor by which netlink connections enter the namespace, or 0 for the worker's own namespace.
func (n *namespace) fd() int {
	if n.own {
		return 0
	}
	return int(n.file.Fd())
}

// do runs f in the namespace.
func (n *namespace) do(f func() error) error {
	if n.own {
		return f()
	}
	done := make(chan error)
	go func() { done <- n.enter(f) }()
	return <-done
}

// enter moves the current thread into the namespace, runs f, and moves the thread back. If the thread cannot be moved
// back, it stays locked to the goroutine, and ends with the goroutine.
func (n *namespace) enter(f func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err == nil {
		err = f()
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) != nil {
			return err
		}
	}
	runtime.UnlockOSThread()
	return err
}

// has reports whether the namespace has an interface with this name, and with an address in this subnet.
func (n *namespace) has(name string, subnet netip.Prefix) bool {
	request, err := unix.NewIfreq(name)
	if err != nil || unix.IoctlIfreq(n.probe, unix.SIOCGIFADDR, request) != nil {
		return false
	}
	raw, err := request.Inet4Addr()
	if err != nil {
		return false
	}
	address, ok := netip.AddrFromSlice(raw)
	return ok && subnet.Contains(address)
}
