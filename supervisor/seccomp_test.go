package supervisor

import (
	"fmt"
	"os"
	osexec "os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// judge runs a filter like the kernel, and returns its answer to a system call.
func judge(t *testing.T, program []unix.SockFilter, arch, number uint32) uint32 {
	t.Helper()
	var a uint32
	for at := 0; at < len(program); at++ {
		i := program[at]
		is := false
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = map[uint32]uint32{0: number, 4: arch}[i.K]
			continue
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ:
			is = a == i.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JGE:
			is = a >= i.K
		default:
			t.Fatalf("instruction %d of the filter is unknown: %+v", at, i)
		}
		if is {
			at += int(i.Jt)
		} else {
			at += int(i.Jf)
		}
	}
	t.Fatal("the filter ended without an answer")
	return 0
}

func TestFilter_DeniesCallsThatCreateAsynchronousIOContexts(t *testing.T) {
	t.Parallel()
	const amd64, i386, arm64 = unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64
	amd, arm := filter(amd64, i386), filter(arm64, unix.AUDIT_ARCH_ARM)
	for _, c := range []struct {
		what         string
		program      []unix.SockFilter
		arch, number uint32
		allowed      bool
	}{
		{"io_setup", amd, amd64, 206, false}, {"io_uring_setup", amd, amd64, 425, false},
		{"io_setup of i386", amd, i386, 245, false}, {"io_uring_setup of i386", amd, i386, 425, false},
		{"io_setup of x32", amd, amd64, x32 + 543, false}, {"read of x32", amd, amd64, x32, false},
		{"read", amd, amd64, 0, true}, {"inotify_init1", amd, amd64, 294, true},
		{"futex of i386", amd, i386, 240, true}, {"lookup_dcookie of i386", amd, i386, 206, true},
		{"io_setup of arm64", arm, arm64, 0, false}, {"io_uring_setup of arm64", arm, arm64, 425, false},
		{"io_setup of arm", arm, unix.AUDIT_ARCH_ARM, 243, false}, {"read of arm64", arm, arm64, 63, true},
		{"a call of another architecture", amd, arm64, 63, false},
	} {
		want := filterENOSYS
		if c.allowed {
			want = filterAllow
		}
		if got := judge(t, c.program, c.arch, c.number); got != want {
			t.Errorf("%s: the filter's answer is %#x, want %#x", c.what, got, want)
		}
	}
}

const filterVariable = "BOXFLEET_TEST_FILTER"

// filtered installs the filter and the limits, starts a child, and prints the results of some system calls. The child
// only prints its results.
func filtered(step string) {
	if step == "parent" {
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			fmt.Println(err)
		}
		if err := takeAway(); err != nil {
			fmt.Println(err)
		}
		if err := limit(); err != nil {
			fmt.Println(err)
		}
		child := osexec.Command("/proc/self/exe", "-test.run=^TestFilter_AppliesToChildren$")
		child.Env = append(os.Environ(), filterVariable+"=child")
		out, err := child.CombinedOutput()
		fmt.Printf("child %s%v ", out, err)
	}
	var context uintptr
	_, _, setup := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&context)), 0)
	_, _, ring := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	watch, inotify := unix.InotifyInit1(0)
	if inotify == nil {
		unix.Close(watch)
	}
	var files, core syscall.Rlimit
	fmt.Print(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files), syscall.Getrlimit(syscall.RLIMIT_CORE, &core))
	fmt.Printf(" %d %d %v %t %t ", setup, ring, inotify, files.Max <= mostFiles && files.Cur == files.Max, core.Max <= 1)
}

func TestFilter_AppliesToChildren(t *testing.T) {
	t.Parallel()
	if step := os.Getenv(filterVariable); step != "" {
		filtered(step)
		os.Exit(0)
	}
	cmd := osexec.Command("/proc/self/exe", "-test.run=^TestFilter_AppliesToChildren$")
	cmd.Env = append(os.Environ(), filterVariable+"=parent")
	out, err := cmd.CombinedOutput()
	gone := int(syscall.ENOSYS)
	each := fmt.Sprintf("<nil> <nil> %d %d <nil> true true ", gone, gone)
	want := "child " + each + "<nil> " + each
	if err != nil || strings.TrimSpace(string(out)) != strings.TrimSpace(want) {
		t.Errorf("the process and its child printed %q, want %q; error %v", out, want, err)
	}
}
