package supervisor

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// oomCounter reads how many processes of the sandbox the kernel has killed for lack of memory.
type oomCounter struct{ file *os.File }

// openOOMCounter opens the counter in the sandbox's own cgroup, version 2 or 1, where the container runtime mounts it.
// If neither exists, the count stays 0.
func openOOMCounter() *oomCounter {
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if f, err := os.Open(path); err == nil {
			return &oomCounter{f}
		}
	}
	return &oomCounter{}
}

// killedFirst is the highest value of oom_score_adj: of the processes in the sandbox, the kernel kills those with this
// value first.
const killedFirst = "1000"

// oomScore makes the kernel kill a command, and not this process, when the sandbox lacks memory. If the kernel killed
// this process, all commands would end with it, and nobody would know why: an engine that hears of the end first does
// not say that memory was the reason.
type oomScore struct{ file *os.File }

// openOOMScore opens this process's score. If the kernel has no such score, commands get none either.
func openOOMScore() *oomScore {
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return &oomScore{}
	}
	return &oomScore{f}
}

// raised calls start, so that the process which start forks inherits the highest score. It then restores the score of
// this process. Calls must not overlap.
func (o *oomScore) raised(start func()) {
	if o.file == nil {
		start()
		return
	}
	var own [16]byte
	n, err := o.file.ReadAt(own[:], 0)
	if n == 0 && err != nil {
		start()
		return
	}
	_, _ = o.file.WriteAt([]byte(killedFirst), 0) // if the kernel refuses, the command runs with this process's score
	start()
	_, _ = o.file.WriteAt(own[:n], 0) // if the kernel refuses, this process and its commands have the same score
}

func (c *oomCounter) kills() int {
	if c.file == nil {
		return 0
	}
	var buf [512]byte
	n, _ := unix.Pread(int(c.file.Fd()), buf[:], 0)
	for line := range bytes.Lines(buf[:max(n, 0)]) {
		if value, found := bytes.CutPrefix(line, []byte("oom_kill ")); found {
			kills, _ := strconv.Atoi(string(bytes.TrimSpace(value)))
			return kills
		}
	}
	return 0
}
