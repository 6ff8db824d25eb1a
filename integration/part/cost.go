package part

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Resident returns the resident memory (RSS) of a process and its proportional share (PSS), both in MiB.
func Resident(pid int) (rss, pss float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "Rss:" && fields[0] != "Pss:" {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return 0, 0, err
		}
		if fields[0] == "Rss:" {
			rss = kib / 1024
		} else {
			pss = kib / 1024
		}
	}
	if rss == 0 {
		return 0, 0, fmt.Errorf("process %d has no resident memory: it ended", pid)
	}
	return rss, pss, nil
}

// Busy returns the processor time that the current threads of processes have used so far.
func Busy(pids ...int) (time.Duration, error) {
	var total time.Duration
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return 0, err
		}
		if len(files) == 0 {
			return 0, fmt.Errorf("process %d has ended, or the kernel does not report its processor time", pid)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			nanoseconds, _, _ := strings.Cut(string(data), " ")
			n, err := strconv.ParseInt(nanoseconds, 10, 64)
			if err != nil {
				return 0, err
			}
			total += time.Duration(n)
		}
	}
	return total, nil
}
