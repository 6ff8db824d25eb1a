package cgroup

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ioOfProcesses returns what the processes of the container have read from disks and written to them, as the kernel
// counts it for each process. A process that has ended counts for the parent that has waited for it, up to the
// container's first process. known is false if the kernel does not tell.
func (g *Group) ioOfProcesses() (read, written int64, known bool) {
	dir := g.path
	if dir == "" {
		dir = g.of["cpuacct"]
	}
	pids, err := readFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return 0, 0, false
	}
	for pid := range bytes.FieldsSeq(pids) {
		io, err := readFile(filepath.Join(g.proc, string(pid), "io"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) { // it has ended meanwhile
			continue
		}
		if err != nil {
			return 0, 0, false
		}
		read += field(io, "read_bytes:")
		written += field(io, "write_bytes:")
		known = true
	}
	return read, written, known
}

// countsIO reports whether the kernel counts the input and output of control groups of version 1. Newer kernels count
// it only where a rate is limited. The root group has the sum of all groups.
func (g *Group) countsIO() bool {
	data, err := readFile(filepath.Join(g.blkioRoot, ioCounters))
	return err == nil && field(data, "Total") > 0
}

// ioCounters has the input and output of a group of version 1 and of the groups below it.
const ioCounters = "blkio.throttle.io_service_bytes_recursive"
