package diskuse

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Group returns the control groups of a process, in the kernel's format. Only the processes of one container have the
// same control groups. Group returns "" if the process does not exist.
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
	names, _ := proc.Readdirnames(-1) // after an error, names has the entries that could be read
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

// Written returns how many bytes the processes have written to file systems on disks. It includes the bytes of children
// that have ended, if their parents have waited for them.
func Written(pids []int) (written int64) {
	for _, pid := range pids {
		written += writtenBy(pid)
	}
	return written
}

// writtenBy returns the count of one process, or 0 if the count cannot be read.
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

// Layer returns the directory of a container's writable layer, if the container's root is an overlay. pid is one of the
// container's processes. A relative path is below the engine's overlay2 directory. Layer returns "" if the directory is
// unknown.
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
