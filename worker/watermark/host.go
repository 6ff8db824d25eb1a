package watermark

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// memory returns the size of the host's memory, and how much memory is available, in KiB. Unknown values are 0.
func memory() (total, available uint64) {
	data, _ := os.ReadFile("/proc/meminfo")
	for line := range bytes.Lines(data) {
		// The errors are ignored, because most lines match neither format.
		_, _ = fmt.Sscanf(string(line), "MemTotal: %d kB", &total)
		_, _ = fmt.Sscanf(string(line), "MemAvailable: %d kB", &available)
		if available > 0 {
			break
		}
	}
	return total, available
}

// Processes returns how many processes and threads the host has, and how many the kernel allows. Unknown values are 0.
func Processes() (used, allowed uint64) {
	load, _ := os.ReadFile("/proc/loadavg")
	fields := bytes.Fields(load)
	if len(fields) < 4 {
		return 0, 0
	}
	_, total, _ := bytes.Cut(fields[3], []byte("/"))
	used, _ = strconv.ParseUint(string(total), 10, 64)
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		data, _ := os.ReadFile(file)
		if n, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64); err == nil && (allowed == 0 || n < allowed) {
			allowed = n
		}
	}
	return used, allowed
}
