package supervisor

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that PID 1 needs: to start processes as any user and to signal them.
const kept = 1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// confine makes sure that no process started from here, not even root's, ever has a capability. execve gives uid 0 what
// is in the bounding set, so that set is emptied. Otherwise an exec that runs as root could leave its group, and a
// cancel would not reach it.
//
// Emptying the set needs CAP_SETPCAP, which is dropped right afterwards. (Dropping capabilities on a thread per exec
// would not need it, but the runtime dies if it cannot make a thread.)
//
// This also protects this process's memory, with the sealing key, from execs that run as root: they have the same uid,
// but the kernel lets a process trace only processes without any capability that it lacks itself.
//
// With privileged, execs that run as root keep the container's capabilities, except control.OwnCapability. Only this
// process has that one, so they cannot trace it either.
func confine(privileged bool) error {
	if err := onAllThreads(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("supervisor: set no_new_privs: %w", err)
	}
	if privileged {
		if err := onAllThreads(unix.PR_CAPBSET_DROP, unix.CAP_WAKE_ALARM); err != nil {
			return fmt.Errorf("supervisor: keep a capability to itself (it needs CAP_SETPCAP): %w", err)
		}
		return inheritNothing()
	}
	for capability := uintptr(0); ; capability++ {
		held, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // beyond the last capability of this kernel
		}
		if held == 0 {
			continue
		}
		if err := onAllThreads(unix.PR_CAPBSET_DROP, capability); err != nil {
			return fmt.Errorf("supervisor: empty the capability bounding set (it needs CAP_SETPCAP): %w", err)
		}
	}
	return keepOnly(kept)
}

// inheritNothing empties the inheritable set of every thread and makes its whole permitted set effective: an exec gets
// what is in both the bounding set and the permitted set.
func inheritNothing() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("supervisor: read its capabilities: %w", err)
	}
	if data[unix.CAP_WAKE_ALARM/32].Permitted&(1<<(unix.CAP_WAKE_ALARM%32)) == 0 {
		return errors.New("supervisor: CAP_WAKE_ALARM is missing: execs could trace it")
	}
	for i := range data {
		data[i].Effective, data[i].Inheritable = data[i].Permitted, 0
	}
	return setCapabilities(data)
}

func onAllThreads(option int, arg uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, uintptr(option), arg, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// keepOnly reduces the permitted and effective sets of every thread to mask, and empties the inheritable set, which an
// exec by uid 0 would otherwise get.
func keepOnly(mask uint32) error {
	return setCapabilities([2]unix.CapUserData{{Effective: mask, Permitted: mask}})
}

func setCapabilities(data [2]unix.CapUserData) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("supervisor: set its capabilities: %w", errno)
	}
	return nil
}
