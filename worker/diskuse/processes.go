package diskuse

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Group returns the control groups of a process, in the kernel's format. The processes of a container share them with
// nobody else. It returns "" if the process does not exist.
func Group(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	return string(data)
}

// Processes returns the processes in each of these groups; see [Group].
func Processes(groups map[string]bool) map[string][]int {
	found := map[string][]int{}
	proc, err := os.Open("/proc")
	if err != nil {
		return found
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // on an error, as many as could be read
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if group := Group(pid); group != "" && groups[group] {
			found[group] = append(found[group], pid)
		}
	}
	return found
}

// Written returns how many bytes processes have written to file systems on disks, including those of their ended
// children for which they waited.
func Written(pids []int) (written int64) {
	for _, pid := range pids {
		written += writtenBy(pid)
	}
	return written
}

// writtenBy returns the count of one process, 0 if it cannot be read.
func writtenBy(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte("write_bytes:")); ok {
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
			return n
		}
	}
	return 0
}

// Layer returns the directory of a container's writable layer, if its root is an overlay; pid is one of its processes.
// A relative path is below the engine's overlay2 directory. It returns "" if the directory is not known.
func Layer(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		if len(fields) < 10 || string(fields[4]) != "/" {
			continue
		}
		for _, option := range bytes.Split(fields[len(fields)-1], []byte(",")) {
			if upper, ok := bytes.CutPrefix(option, []byte("upperdir=")); ok {
				return string(upper)
			}
		}
	}
	return ""
}
