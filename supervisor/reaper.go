package supervisor

import (
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// child is a process that this process started. code is valid after exited is closed.
type child struct {
	pid    int
	group  uint32 // the supplementary group by which the child's tree is found
	exited chan struct{}
	code   int // the exit code; 128+n if the process was killed by signal n
}

// reaper waits for every child of this process: the children that this process started, and orphans of other processes.
type reaper struct {
	// forking is held from before a fork until its child is registered, and while an unregistered process is reaped. So a
	// child that ends at once is not mistaken for an orphan, and the child's pid is not reused before the child is
	// registered.
	forking sync.Mutex

	score *oomScore // used only while the lock forking is held

	mu       sync.Mutex
	children map[int]*child

	wake chan struct{} // wakes run after a child was started
}

// idleReap is the pause between two checks for orphans while the reaper has no children. No event announces an orphan
// that came from outside, for example from a `docker exec`. A handler for SIGCHLD would notice the orphan's end at
// once, but would also run for each exec.
const idleReap = 5 * time.Second

func newReaper() *reaper {
	return &reaper{score: &oomScore{}, children: map[int]*child{}, wake: make(chan struct{}, 1)}
}

// start forks a child and registers it. group is the supplementary group by which the child's tree is found.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr, group uint32) (*child, error) {
	r.forking.Lock()
	defer r.forking.Unlock()
	var pid int
	var err error
	r.score.raised(func() { pid, err = syscall.ForkExec(path, argv, attr) })
	if err != nil {
		return nil, err
	}
	c := &child{pid: pid, group: group, exited: make(chan struct{})}
	r.mu.Lock()
	r.children[pid] = c
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return c, nil
}

// groups returns the groups of the living children that this process started, by pid.
func (r *reaper) groups() map[int]uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	groups := make(map[int]uint32, len(r.children))
	for pid, c := range r.children {
		groups[pid] = c.group
	}
	return groups
}

// run reaps children until the process ends. It waits in the kernel or, while there are no children, for wake.
func (r *reaper) run() {
	for {
		pid, err := peekZombie()
		switch err {
		case nil:
			r.reap(pid)
		case unix.ECHILD:
			select {
			case <-r.wake:
			case <-time.After(idleReap):
			}
		}
	}
}

func (r *reaper) reap(pid int) {
	c := r.take(pid)
	if c == nil {
		r.forking.Lock()
		defer r.forking.Unlock()
		c = r.take(pid)
	}
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || c == nil {
			return
		}
		break
	}
	c.code = status.ExitStatus()
	if status.Signaled() {
		c.code = 128 + int(status.Signal())
	}
	close(c.exited)
}

func (r *reaper) take(pid int) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.children[pid]
	delete(r.children, pid)
	return c
}

// peekZombie waits until a child has ended, and returns its pid without reaping the child. So the pid is not reused
// before reap has found the registered child.
func peekZombie() (int, error) {
	var info [128]byte // a siginfo_t; package unix does not define its union
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0,
			uintptr(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOWAIT, 0, 0)
		switch errno {
		case 0:
			return int(*(*int32)(unsafe.Pointer(&info[siginfoPid]))), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// siginfoPid is the offset of si_pid on 64-bit Linux, after three ints padded to 16 bytes.
const siginfoPid = 16
