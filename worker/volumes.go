package worker

import (
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// An image may declare volumes. The engine would make each a directory of the host, which is writable whatever
// read_only says, and which no limit bounds. It is given a file system in memory for each instead, and that is
// taken away again once the container has started and before anything of it runs: what the image has there is then
// seen, and what is written there belongs to the container's own layer, as everything else does. It is bounded by
// disk, and stays until the container goes.
//
// A volume stays covered, by an empty file system in memory, where something else is mounted below it, and on a
// worker that is not root, which cannot look into containers.

// engineDirs are where the engine mounts something itself.
var engineDirs = []string{"/proc", "/sys", "/dev", control.ContainerAt}

// volumesOf lists where an image declares volumes and nothing else is mounted: outer ones first. field names the
// image in an error.
func volumesOf(image docker.Image, mounted []string, field string) ([]string, error) {
	var volumes []string
	for _, declared := range image.Volumes {
		at := path.Clean(declared)
		reserved := at == "/" || at == "/etc" || slices.ContainsFunc(engineDirs, func(dir string) bool { return below(at, dir) })
		if !path.IsAbs(at) || reserved {
			return nil, &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonUnsupported, Field: field,
				Message: fmt.Sprintf("the image declares a volume at %.200s, which cannot be one", declared)}
		}
		if !slices.Contains(mounted, at) {
			volumes = append(volumes, at)
		}
	}
	slices.Sort(volumes)
	return slices.Compact(volumes), nil
}

// coverVolumes keeps the engine from making volumes. memory is the container's.
func coverVolumes(spec *docker.ContainerSpec, volumes []string, memory protocol.Bytes) {
	for _, at := range volumes {
		if spec.Covers == nil {
			spec.Covers = map[string]int64{}
		}
		spec.Covers[at] = max(int64(memory/2), 1<<20)
	}
}

// coveredVolumes are the volumes that stay covered in a container with these mounts.
func coveredVolumes(volumes, mounted []string) []string {
	if !canVerify() {
		return volumes
	}
	var covered []string
	for _, at := range volumes {
		if slices.ContainsFunc(mounted, func(other string) bool { return other != at && below(other, at) }) {
			covered = append(covered, at)
		}
	}
	return covered
}

// checkCopies refuses to place a tree where an empty file system would hide it.
func checkCopies(spec *protocol.SandboxSpec, service string, covered []string) error {
	for i, c := range spec.Copies {
		hides := func(at string) bool { return below(path.Clean(c.Target), at) }
		if at := slices.IndexFunc(covered, hides); c.Service == service && at >= 0 {
			return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonCopyFailed, Field: fmt.Sprintf("spec.copies[%d]", i),
				Message: fmt.Sprintf("%s is in the image's volume %s, which is empty in memory here: something is mounted below it, or the worker is not root", c.Target, covered[at])}
		}
	}
	return nil
}

// uncoverVolumes takes away what covers the volumes of a container whose process pid is. Nothing of it runs before
// that was done once. Where that was done already, nothing is.
func uncoverVolumes(pid int, volumes []string) error {
	if len(volumes) == 0 || !canVerify() {
		return nil
	}
	seen, err := mountsOf(pid)
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "", "read the mounts of a container: %v", err)
	}
	mounts := mountTable{}
	for _, m := range seen {
		mounts[m.ID] = m
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine, in the container's namespace
		done <- inMountNamespace(pid, func() error { return uncover(mounts, volumes) })
	}()
	if err = <-done; err != nil {
		return protocol.Errorf(protocol.Unavailable, "", "show what an image has in its volumes: %v", err)
	}
	return nil
}

// mountsOf reads what a process has mounted.
func mountsOf(pid int) ([]*mountinfo.Info, error) {
	table, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer table.Close()
	return mountinfo.GetMountsFromReader(table, nil)
}

// uncoverVolumes takes away what covers the volumes of the container with this directory.
func (d directory) uncoverVolumes(pid int) error {
	defaults, err := d.defaults()
	if err != nil {
		return err
	}
	return uncoverVolumes(pid, defaults.Volumes)
}

// inMountNamespace runs f on this thread, which stays in the namespace of the process.
func inMountNamespace(pid int, f func() error) error {
	target, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer target.Close()
	own, err := os.Stat("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	if other, err := target.Stat(); err != nil || os.SameFile(own, other) {
		return fmt.Errorf("process %d has no mounts of its own, %w", pid, err)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	return f()
}

// uncover unmounts the file systems in memory at these paths, the inner ones first. mounts is what the container's
// first process sees, as the worker read it: in the container it is not to be had.
func uncover(mounts mountTable, volumes []string) error {
	for _, at := range slices.Backward(volumes) {
		var seen unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, at, 0, unix.STATX_MNT_ID, &seen); err != nil || seen.Mask&unix.STATX_MNT_ID == 0 {
			continue // an image may declare a volume where it has a file, or the kernel is older than 5.8
		}
		m := mounts[int(seen.Mnt_id)]
		if m == nil || !isCover(m) || seen.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 || mounts.holds(m) {
			continue // it is uncovered, or stays covered
		}
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		delete(mounts, m.ID)
	}
	return nil
}

// isCover says whether a mount is one of those that cover volumes. When a worker comes back, a volume's path may
// lead to another file system, such as one by which the engine hides a part of /proc.
func isCover(m *mountinfo.Info) bool {
	return m.FSType == "tmpfs" && m.Root == "/" && slices.Contains(strings.Split(m.VFSOptions, ","), docker.CoverInodes)
}

// holds says whether something is mounted in a mount.
func (t mountTable) holds(m *mountinfo.Info) bool {
	for _, other := range t {
		if other.Parent == m.ID && other.ID != m.ID {
			return true
		}
	}
	return false
}
