package supervisor

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// takenAway are the system calls that are denied to all processes of a sandbox, by the architecture of the call. An
// amd64 kernel also accepts calls of i386, and an arm64 kernel also accepts calls of arm. The denied calls create
// contexts of asynchronous I/O. The kernel has 65,536 of these contexts for the whole machine, and neither the memory
// limit nor the process limit of a container counts them. A denied call returns ENOSYS, as on a kernel without the
// call, and programs then use other calls.
//
// This process installs the filter itself, in addition to the engine's filter. Replacing the engine's profile would
// need a new profile for each version of the engine, and would override a profile that the operator configured.
var takenAway = map[uint32][]uint32{
	unix.AUDIT_ARCH_X86_64:  {206, ioURingSetup},
	unix.AUDIT_ARCH_I386:    {245, ioURingSetup},
	unix.AUDIT_ARCH_AARCH64: {0, ioURingSetup},
	unix.AUDIT_ARCH_ARM:     {243, ioURingSetup},
}

const (
	ioURingSetup = 425        // the same number on all architectures
	x32          = 0x40000000 // the first number of the x32 calls: calls on amd64 with short pointers, rarely used

	filterAllow  = 0x7fff0000                          // SECCOMP_RET_ALLOW
	filterENOSYS = 0x00050000 | uint32(syscall.ENOSYS) // SECCOMP_RET_ERRNO
	dataNumber   = 0                                   // offset of the call's number in the filter's input
	dataArch     = 4                                   // offset of the call's architecture in the filter's input
)

// filter returns the program that the kernel runs for each system call.
func filter(architectures ...uint32) (program []unix.SockFilter) {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	answer := func(with uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: with} }
	jump := func(how uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | how, K: k, Jt: yes, Jf: no}
	}
	program = append(program, load(dataArch))
	for _, a := range architectures {
		var part []unix.SockFilter
		part = append(part, load(dataNumber))
		if a == unix.AUDIT_ARCH_X86_64 {
			part = append(part, jump(unix.BPF_JGE, x32, 0, 1), answer(filterENOSYS))
		}
		for _, number := range takenAway[a] {
			part = append(part, jump(unix.BPF_JEQ, number, 0, 1), answer(filterENOSYS))
		}
		part = append(part, answer(filterAllow))
		program = append(program, jump(unix.BPF_JEQ, a, 0, uint8(len(part))))
		program = append(program, part...)
	}
	return append(program, answer(filterENOSYS)) // answer for an architecture whose calls this machine does not accept
}

// architectures returns the architectures whose calls this machine's kernel accepts.
func architectures() []uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386}
	case "arm64":
		return []uint32{unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_ARM}
	}
	return nil
}

// takeAway installs the filter on every thread. The filter cannot be removed. All processes that this process starts
// inherit the filter. takeAway needs no_new_privs, but no capability.
func takeAway() error {
	known := architectures()
	if known == nil {
		return fmt.Errorf("supervisor: there is no system call filter for the architecture %s", runtime.GOARCH)
	}
	program := filter(known...)
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// The kernel also installs the filter on the other threads. If one of these threads cannot get the filter, the kernel
	// returns the id of that thread.
	thread, _, errno := unix.Syscall(
		unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&p)),
	)
	if errno != 0 || thread != 0 {
		return fmt.Errorf("supervisor: install the filter of system calls on thread %d: %w", thread, errno)
	}
	return nil
}
