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
