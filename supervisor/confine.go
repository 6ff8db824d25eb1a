package supervisor

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that PID 1 works with: to start processes as any user and to signal
// them.
const kept = 1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// confine makes it impossible that a process started from here ever has a capability, root ones
// included: execve gives uid 0 what is in the bounding set, so that set is emptied. Without this a
// root exec could leave its group and with it the reach of a cancel.
//
// Emptying the set needs CAP_SETPCAP, which is given up again at once. (Giving up capabilities per
// exec on a thread that then ends would do without it, but makes a thread per exec, and the
// runtime dies when it cannot make one.)
//
// It also keeps this process's memory, and the sealing key in it, from root execs: they have the
// same uid, and the kernel lets a process trace only what has no capability that it lacks.
//
// With privileged, root execs keep the container's capabilities. They have all but control.OwnCapability,
// which stays with this process, so that they cannot trace it either.
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
			break // past the last capability of this kernel
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

// inheritNothing empties the inheritable set of every thread and makes all of the permitted one
// effective: an exec is given what is in both the bounding set and the permitted one.
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

// keepOnly reduces the permitted and effective sets of every thread to mask, and empties the
// inheritable set, from which an exec by uid 0 would otherwise be given.
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
