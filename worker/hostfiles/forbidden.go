package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// engineSockets are the sockets of engines. A process that can connect to such a socket controls the whole host.
var engineSockets = []string{
	"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
	"/run/docker/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
}

// kernelFileSystems are the types of file systems that give access to other processes, to devices or to the kernel
// itself.
var kernelFileSystems = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
	unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.NSFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC,
}

// forbids returns an error if a source is a forbidden path, is inside a forbidden path, or contains a forbidden path.
// forbids compares the names of paths, their inodes and their places in the file system. It compares places because
// several mounts may show the same place under different names.
func (p *Policy) forbids(f *os.File, info fs.FileInfo, real string) error {
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &system); err != nil {
		return err
	}
	if slices.Contains(kernelFileSystems, int64(system.Type)) {
		return errors.New("is in a file system of the kernel")
	}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	place, err := mounts.place(f)
	if err != nil {
		return err
	}
	source := source{f, info, real, place}
	for _, name := range p.forbidden {
		if resolved, err := filepath.EvalSymlinks(name); err == nil {
			name = resolved
		}
		err := source.collides(name, mounts)
		if errors.Is(err, errCollides) {
			return fmt.Errorf("is, contains, or is inside %s, which no sandbox may see", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// source is an open source of a mount.
type source struct {
	f     *os.File
	info  fs.FileInfo
	real  string
	place place
}

var errCollides = errors.New("the source and a forbidden path overlap")

// collides returns errCollides if the source and the forbidden path are the same, or if one is inside the other.
func (s *source) collides(forbidden string, mounts mountTable) error {
	if isBelow(s.real, forbidden) || isBelow(forbidden, s.real) {
		return errCollides
	}
	other, err := openPath(unix.AT_FDCWD, forbidden, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer other.Close()
	info, err := other.Stat()
	if err != nil {
		return err
	}
	if os.SameFile(s.info, info) {
		return errCollides
	}
	at, err := mounts.place(other)
	if err != nil {
		return err
	}
	if s.place.device == at.device && (isBelow(s.place.path, at.path) || isBelow(at.path, s.place.path)) {
		return errCollides
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.IsDir() || stat.Nlink < 2 || !s.info.IsDir() || !sameDevice(s.info, info) {
		return nil
	}
	return findLink(s.f, info)
}

func sameDevice(a, b fs.FileInfo) bool {
	x, xOK := a.Sys().(*syscall.Stat_t)
	y, yOK := b.Sys().(*syscall.Stat_t)
	return xOK && yOK && x.Dev == y.Dev
}

// maxLinkSearch limits how many entries of a directory are searched for a hard link to a socket.
const maxLinkSearch = 200_000

// findLink returns errCollides if a directory contains a hard link to a file. Call findLink only for a file with more
// than one name.
func findLink(dir *os.File, file fs.FileInfo) error {
	n, top := 0, fmt.Sprintf("/proc/self/fd/%d/", dir.Fd())
	return filepath.WalkDir(top, func(_ string, entry fs.DirEntry, err error) error {
		if n++; n > maxLinkSearch {
			return fmt.Errorf("has more than %d entries, too many to search for a hard link to a socket", maxLinkSearch)
		}
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && os.SameFile(info, file) {
			return errCollides
		}
		return err
	})
}
