package diskuse

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Group is the control groups of a process, as the kernel writes them: those of a container's processes are
// the same, and nobody else's are. It is "" where there is no such process.
func Group(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	return string(data)
}

// Processes are the processes of each [Group]. Whose group is not asked for is left out.
func Processes(groups map[string]bool) map[string][]int {
	found := map[string][]int{}
	proc, err := os.Open("/proc")
	if err != nil {
		return found
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // in part, where it fails
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

// Written is how many bytes processes had written to file systems on disks, with those of their children that have
// ended and that they waited for.
func Written(pids []int) (written int64) {
	for _, pid := range pids {
		written += writtenBy(pid)
	}
	return written
}

// writtenBy is the count of one process, 0 where it cannot be read.
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

// Layer is where the writable layer of a container lies on the host, whose process pid is: what its root file
// system says, if that is an overlay. A relative path is below the Engine's overlay2. "" where it is not known.
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
