package watermark

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// Limits are percentages. A host that has reached one of them takes no new sandboxes. 0 means the default.
type Limits struct {
	Disk   int // used bytes of the file systems of the engine and the worker; default 95
	Inodes int // used inodes of the same file systems; default 95
	Memory int // used memory, by the kernel's estimate of what is available; default 97
	PIDs   int // existing processes and threads, of those that the kernel allows; default 90
}

// Check validates the limits and fills in the defaults. Error: invalid_argument.
func (l *Limits) Check() error {
	for _, f := range []struct {
		field string
		value *int
		def   int
	}{{"disk", &l.Disk, 95}, {"inodes", &l.Inodes, 95}, {"memory", &l.Memory, 97}, {"pids", &l.PIDs, 90}} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 1 || *f.value > 100 {
			return protocol.Invalid("watermarks."+f.field, "must be 1 to 100 percent, got %d", *f.value)
		}
	}
	return nil
}

// Reached describes the first limit that the host has reached, or returns "" if it has reached none. It checks the file
// systems of the given directories. It skips directories that do not exist on this machine: the worker may have the
// engine's socket, but not its directory.
func (l *Limits) Reached(dirs ...string) string {
	for _, dir := range dirs {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) != nil {
			continue
		}
		if why := reached("disk", dir, fs.Blocks-fs.Bfree, fs.Bavail, l.Disk); why != "" {
			return why
		}
		if why := reached("inodes", dir, fs.Files-fs.Ffree, fs.Ffree, l.Inodes); why != "" {
			return why
		}
	}
	if total, available := memory(); total > 0 {
		if why := reached("memory", "the host", total-min(available, total), available, l.Memory); why != "" {
			return why
		}
	}
	if used, allowed := Processes(); allowed > 0 {
		if why := reached("processes", "the host", used, allowed-min(used, allowed), l.PIDs); why != "" {
			return why
		}
	}
	return ""
}

// UsableDisk returns how many bytes of a directory's file system may be used up to the limit, or 0 if that is unknown.
func (l *Limits) UsableDisk(dir string) protocol.Bytes {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return 0
	}
	usable := fs.Blocks - fs.Bfree + fs.Bavail // the rest is reserved for root
	return protocol.Bytes(usable / 100 * uint64(l.Disk) * uint64(fs.Bsize))
}

func reached(what, where string, used, free uint64, percent int) string {
	if used+free == 0 {
		return ""
	}
	if is := used * 100 / (used + free); is >= uint64(percent) {
		return fmt.Sprintf("%d%% of the %s of %s are used; the watermark is %d%%", is, what, where, percent)
	}
	return ""
}
