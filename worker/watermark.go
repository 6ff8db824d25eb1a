package worker

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// Watermarks say how full, in percent, a host may be and still take sandboxes. 0 means the default.
type Watermarks struct {
	Disk   int // of the file systems of the engine and the worker; default 95
	Inodes int // of them; default 95
	Memory int // that is not available, by the kernel's estimate; default 97
	PIDs   int // of the processes and threads that the kernel allows; default 90
}

func (m *Watermarks) check() error {
	for _, f := range []struct {
		field string
		value *int
		def   int
	}{{"disk", &m.Disk, 95}, {"inodes", &m.Inodes, 95}, {"memory", &m.Memory, 97}, {"pids", &m.PIDs, 90}} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 1 || *f.value > 100 {
			return protocol.Invalid("watermarks."+f.field, "must be 1 to 100 percent, got %d", *f.value)
		}
	}
	return nil
}

// full says why the host takes no new sandboxes, "" while it does: it stops before it is full, so
// that what runs can go on.
func (w *worker) full() string {
	if why := w.firstLook.full(); why != "" {
		return why
	}
	if why := w.disk.Full(); why != "" {
		return why
	}
	m := &w.cfg.Watermarks
	for _, dir := range []string{w.cfg.StateDir, w.info.RootDir} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) != nil { // the engine's is not there on a host that only lends its socket
			continue
		}
		if why := over("disk", dir, fs.Blocks-fs.Bfree, fs.Bavail, m.Disk); why != "" {
			return why
		}
		if why := over("inodes", dir, fs.Files-fs.Ffree, fs.Ffree, m.Inodes); why != "" {
			return why
		}
	}
	if total, available := memory(); total > 0 {
		if why := over("memory", "the host", total-min(available, total), available, m.Memory); why != "" {
			return why
		}
	}
	if used, allowed := processes(); allowed > 0 {
		if why := over("processes", "the host", used, allowed-min(used, allowed), m.PIDs); why != "" {
			return why
		}
	}
	if w.subnets.Free() == 0 {
		return fmt.Sprintf("all networks of its pool %s are in use", w.subnets.Pool())
	}
	return ""
}

// offeredDisk is what the worker offers for sandboxes with a limit of disk: the file system of the
// engine's data up to the watermark, where there are quotas on it; 0 where that is not known.
func (w *worker) offeredDisk() protocol.Bytes {
	var fs unix.Statfs_t
	if !w.info.DiskQuota || unix.Statfs(w.info.RootDir, &fs) != nil {
		return 0
	}
	usable := fs.Blocks - fs.Bfree + fs.Bavail // the rest is root's
	return protocol.Bytes(usable / 100 * uint64(w.cfg.Watermarks.Disk) * uint64(fs.Bsize))
}

// over says by how much a watermark is passed, "" where it is not.
func over(what, where string, used, free uint64, percent int) string {
	if used+free == 0 {
		return ""
	}
	if is := used * 100 / (used + free); is >= uint64(percent) {
		return fmt.Sprintf("%d%% of the %s of %s are used, the watermark is %d%%", is, what, where, percent)
	}
	return ""
}

// memory reads the host's memory and what of it is available, in KiB.
func memory() (total, available uint64) {
	data, _ := os.ReadFile("/proc/meminfo") // without it nothing is known
	for line := range bytes.Lines(data) {
		_, _ = fmt.Sscanf(string(line), "MemTotal: %d kB", &total) // other lines do not match
		_, _ = fmt.Sscanf(string(line), "MemAvailable: %d kB", &available)
		if available > 0 {
			break
		}
	}
	return total, available
}

// processes reads how many processes and threads there are on the host, and may be.
func processes() (used, allowed uint64) {
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
