package supervisor

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that PID 1 needs in order to start processes as any user, and to send them signals.
const kept = 1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// confine ensures that no process that this process starts ever has a capability, not even a process of root. It
// empties the bounding set, because execve gives uid 0 the capabilities in the bounding set. With capabilities, an exec
// that runs as root could leave its group, and a cancel of the exec would not find all of its processes.
//
// Emptying the bounding set needs CAP_SETPCAP. confine drops CAP_SETPCAP right afterwards.
//
// The lack of capabilities also protects this process's memory, which contains the sealing key, from execs that run as
// root. Such execs have the same uid as this process, but the kernel does not let a process trace another process that
// has more capabilities.
//
// If privileged is set, execs that run as root keep the container's capabilities, except control.OwnCapability. Only
// this process has OwnCapability, so these execs cannot trace this process either.
func confine(privileged bool) error {
	if err := onAllThreads(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("supervisor: set no_new_privs: %w", err)
	}
	if privileged {
		if err := onAllThreads(unix.PR_CAPBSET_DROP, unix.CAP_WAKE_ALARM); err != nil {
			return fmt.Errorf("supervisor: drop CAP_WAKE_ALARM from the bounding set, which needs CAP_SETPCAP: %w", err)
		}
		return inheritNothing()
	}
	for capability := uintptr(0); ; capability++ {
		held, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // this number is beyond the last capability of the kernel
		}
		if held == 0 {
			continue
		}
		if err := onAllThreads(unix.PR_CAPBSET_DROP, capability); err != nil {
			return fmt.Errorf("supervisor: empty the capability bounding set, which needs CAP_SETPCAP: %w", err)
		}
	}
	return keepOnly(kept)
}

// inheritNothing empties the inheritable set of every thread, and makes the complete permitted set effective. Execs
// then get their capabilities only from the bounding set.
func inheritNothing() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("supervisor: read the supervisor's own capabilities: %w", err)
	}
	if data[unix.CAP_WAKE_ALARM/32].Permitted&(1<<(unix.CAP_WAKE_ALARM%32)) == 0 {
		return errors.New("supervisor: a privileged supervisor needs CAP_WAKE_ALARM, or execs could trace it")
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

// keepOnly reduces the permitted and effective sets of every thread to the capabilities in mask. It empties the
// inheritable set, because execve gives uid 0 the capabilities in that set too.
func keepOnly(mask uint32) error {
	return setCapabilities([2]unix.CapUserData{{Effective: mask, Permitted: mask}})
}

func setCapabilities(data [2]unix.CapUserData) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("supervisor: set the supervisor's own capabilities: %w", errno)
	}
	return nil
}
