package hostfiles

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// UncoverVolumes unmounts the covers of a container's volumes. pid is the container's first process. UncoverVolumes
// must succeed once before another process runs in the container; later calls change nothing. The error has the code
// unavailable.
func UncoverVolumes(pid int, volumes []string) error {
	if len(volumes) == 0 || !CanVerify() {
		return nil
	}
	mounts, err := readMountsOf(pid)
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "", "read the mounts of a container: %v", err)
	}
	done := make(chan error)
	go func() {
		// The thread stays in the container's namespace, so it is never unlocked, and ends with the goroutine.
		runtime.LockOSThread()
		done <- inMountNamespace(pid, func() error { return uncover(mounts, volumes) })
	}()
	if err = <-done; err != nil {
		return protocol.Errorf(protocol.Unavailable, "", "uncover the image's volumes: %v", err)
	}
	return nil
}

// inMountNamespace moves this thread into the mount namespace of a process and calls f. The thread stays in this
// namespace.
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
	other, err := target.Stat()
	if err != nil {
		return err
	}
	if os.SameFile(own, other) {
		return fmt.Errorf("process %d has no mount namespace of its own", pid)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	return f()
}

// uncover unmounts the covers at these paths, inner covers first. mounts are the container's mounts. The worker read
// them from the host's /proc, because the container's own /proc may have been replaced.
func uncover(mounts mountTable, volumes []string) error {
	for _, at := range slices.Backward(volumes) {
		var found unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, at, 0, unix.STATX_MNT_ID, &found)
		if err != nil || found.Mask&unix.STATX_MNT_ID == 0 {
			continue // the image has a file at the volume's path, or the kernel is older than 5.8
		}
		m := mounts[int(found.Mnt_id)]
		if m == nil || !isCover(m) || found.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 || mounts.hasMountIn(m) {
			continue // the volume is uncovered already, or must stay covered
		}
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		delete(mounts, m.ID)
	}
	return nil
}

// isCover reports whether a mount is the cover of a volume. The mount at a volume's path need not be the cover: if the
// worker restarts while the container runs, processes in the container may have replaced the path with a link to
// another mount, for example one that hides a part of /proc.
func isCover(m *mountinfo.Info) bool {
	return m.FSType == "tmpfs" && m.Root == "/" && slices.Contains(strings.Split(m.VFSOptions, ","), docker.CoverInodes)
}
