package supervisor

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls that are denied to everything in a container create kernel objects that are counted for the whole
// machine, and against no memory or process limit: contexts of asynchronous I/O, of which there are 65,536. The calls
// return ENOSYS, as on a kernel without them, and programs fall back to other ways.
//
// This process installs the filter itself, on top of the engine's. A profile of ours in place of the engine's would
// have to follow each of its versions, and would override one that the operator configured.
var takenAway = map[uint32][]uint32{ // by architecture of the call: amd64 also takes calls of i386, and arm64 those of arm
	unix.AUDIT_ARCH_X86_64:  {206, ioURingSetup},
	unix.AUDIT_ARCH_I386:    {245, ioURingSetup},
	unix.AUDIT_ARCH_AARCH64: {0, ioURingSetup},
	unix.AUDIT_ARCH_ARM:     {243, ioURingSetup},
}

const (
	ioURingSetup = 425        // the same on all architectures
	x32          = 0x40000000 // numbers from here on are amd64 calls with short pointers, which nobody uses

	filterAllow  = 0x7fff0000                          // SECCOMP_RET_ALLOW
	filterENOSYS = 0x00050000 | uint32(syscall.ENOSYS) // SECCOMP_RET_ERRNO
	dataNumber   = 0                                   // offset of the call's number in what a filter sees
	dataArch     = 4                                   // offset of its architecture
)

// filter returns the program that the kernel runs for each call.
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
	return append(program, answer(filterENOSYS)) // an architecture that this machine cannot run
}

// architectures returns those whose calls this machine's kernel takes.
func architectures() []uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386}
	case "arm64":
		return []uint32{unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_ARM}
	}
	return nil
}

// takeAway installs the filter on every thread, for good, and so on everything that is started from here. It needs
// no_new_privs, but no capability.
func takeAway() error {
	known := architectures()
	if known == nil {
		return fmt.Errorf("supervisor: no system call filter for %s", runtime.GOARCH)
	}
	program := filter(known...)
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// The kernel also installs it on the other threads. If one of them refuses it, the kernel returns its id.
	thread, _, errno := unix.Syscall(
		unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&p)),
	)
	if errno != 0 || thread != 0 {
		return fmt.Errorf("supervisor: filter system calls (thread %d): %w", thread, errno)
	}
	return nil
}
