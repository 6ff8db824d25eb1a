package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// mountPolicy says which paths of the host may be mounted into sandboxes.
type mountPolicy struct {
	allowed   []allowedMount
	forbidden []string // what no sandbox may see: sockets of engines, the worker's state
}

// allowedMount is an entry of the operator's allow-list.
type allowedMount struct {
	named    string // as the operator wrote it
	path     string // absolute, links resolved
	writable bool
}

// engineSockets give whoever reaches one of them the whole host.
var engineSockets = []string{
	"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
}

// kernelFileSystems lead to other processes, to devices and to the kernel itself.
var kernelFileSystems = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
	unix.SECURITYFS_MAGIC, unix.NSFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC,
}

// newMountPolicy resolves an allow-list of PATH, PATH:ro and PATH:rw. An entry that is the root, or
// does not exist, is refused.
func newMountPolicy(allow, forbid []string) (*mountPolicy, error) {
	p := &mountPolicy{forbidden: slices.Concat(engineSockets, []string{"/proc", "/sys", "/dev"}, forbid)}
	for i, entry := range allow {
		field := fmt.Sprintf("mounts.allow[%d]", i)
		dir, writable := strings.CutSuffix(entry, ":rw")
		if !writable {
			dir = strings.TrimSuffix(entry, ":ro")
		}
		if !filepath.IsAbs(dir) {
			return nil, protocol.Invalid(field, "must be an absolute path, got %.80q", dir)
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return nil, protocol.Invalid(field, "%v", err)
		}
		if real == "/" {
			return nil, protocol.Invalid(field, "must not be the root of the host")
		}
		if writable && !canVerify() {
			return nil, protocol.Invalid(field, "rw needs a worker that runs as root: another one cannot see what was mounted in the end")
		}
		p.allowed = append(p.allowed, allowedMount{named: filepath.Clean(dir), path: real, writable: writable})
	}
	return p, nil
}

// advertised lists the allow-list for the table of hosts, and what of it may be written.
func (p *mountPolicy) advertised() (all, writable []string) {
	for _, a := range p.allowed {
		all = append(all, a.named)
		if a.writable {
			writable = append(writable, a.named)
		}
	}
	return all, writable
}

// open resolves the source of a mount and opens it, so that what was judged is what is meant from
// then on. Every link is followed first; from the entry of the allow-list on, the path is then
// walked by descriptor through no link at all: one that was put there meanwhile is refused. field
// is that of the mount. Errors: permission_denied with reason mount_denied, or invalid_argument.
func (p *mountPolicy) open(field, source string, writable bool) (*os.File, string, error) {
	real, err := filepath.EvalSymlinks(source)
	if errors.Is(err, unix.EINVAL) { // what was a link is none
		return nil, "", mountDenied(field+".source", "%s: a link of its path was exchanged while it was looked at", source)
	}
	if err != nil {
		invalid := &protocol.Error{Code: protocol.InvalidArgument, Field: field + ".source", Message: fmt.Sprintf("%s: %v", source, err)}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil, "", missingSource{invalid}
		}
		return nil, "", invalid
	}
	entry, ok := p.entry(real)
	if !ok {
		return nil, "", mountDenied(field+".source", "%s is not below the host's allow-list", source)
	}
	if writable {
		if err := p.mayWrite(field+".writable", source, real, entry); err != nil {
			return nil, "", err
		}
	}
	f, err := openBelow(entry.path, real)
	if err != nil {
		return nil, "", mountDenied(field+".source", "%s: %v", source, err)
	}
	if err := p.judge(f, real); err != nil {
		f.Close()
		return nil, "", mountDenied(field+".source", "%s %v", source, err)
	}
	return f, real, nil
}

// entry is the narrowest entry of the allow-list that holds a path.
func (p *mountPolicy) entry(real string) (narrowest allowedMount, ok bool) {
	for _, a := range p.allowed {
		if below(real, a.path) && len(a.path) > len(narrowest.path) {
			narrowest, ok = a, true
		}
	}
	return narrowest, ok
}

// mayWrite refuses to write where the narrowest entry says ro, and to what holds an entry that does.
func (p *mountPolicy) mayWrite(field, source, real string, entry allowedMount) error {
	if !entry.writable {
		return mountDenied(field, "%s may be mounted read-only", source)
	}
	for _, a := range p.allowed {
		if !a.writable && below(a.path, real) {
			return mountDenied(field, "%s holds %s, which may be mounted read-only", source, a.named)
		}
	}
	return nil
}

func mountDenied(field, format string, args ...any) error {
	return &protocol.Error{Code: protocol.PermissionDenied, Reason: protocol.ReasonMountDenied, Field: field, Message: fmt.Sprintf(format, args...)}
}

// openBelow opens a path below a directory, neither of which may lead through a link any more.
func openBelow(dir, real string) (*os.File, error) {
	rel, err := filepath.Rel(dir, real)
	if err != nil {
		return nil, err
	}
	root, err := openPath(unix.AT_FDCWD, dir, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openPath(int(root.Fd()), rel, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
}

// maxOpenTries is how often a path is opened that the kernel could not follow because of a rename.
const maxOpenTries = 200

// openPath opens a path as such: nothing is done to a socket, a pipe or a device. The kernel gives up
// with EAGAIN at "..", where a path must stay below a directory and anything on the machine, of whomever,
// is renamed at that moment.
func openPath(at int, name string, resolve uint64) (*os.File, error) {
	fd, err := -1, error(unix.EAGAIN)
	for try := 0; try < maxOpenTries && errors.Is(err, unix.EAGAIN); try++ {
		fd, err = unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	}
	switch {
	case errors.Is(err, unix.ENOSYS):
		return nil, errors.New("mounts need Linux 5.6 or newer")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EAGAIN):
		return nil, errors.New("a link was put into its path while it was looked at")
	case err != nil:
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// judge says why an opened source must not be mounted. What it says follows the source's name.
func (p *mountPolicy) judge(f *os.File, real string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return errors.New("is neither a directory nor a regular file")
	}
	return p.forbids(f, info, real)
}

// forbids says whether a source is what no sandbox may see, lies in it, or holds it: by name, by the
// place in the file system, whatever other mount shows it, and by inode.
func (p *mountPolicy) forbids(f *os.File, info fs.FileInfo, real string) error {
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
	for _, name := range p.forbidden {
		if resolved, err := filepath.EvalSymlinks(name); err == nil {
			name = resolved
		}
		holds := fmt.Errorf("is, or holds, or lies in %s, which no sandbox may see", name)
		if below(real, name) || below(name, real) {
			return holds
		}
		other, err := openPath(unix.AT_FDCWD, name, 0)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return err
		}
		err = collides(f, info, place, other, mounts)
		other.Close()
		if errors.Is(err, errCollides) {
			return holds
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errCollides = errors.New("one holds the other")

// collides compares a source with something forbidden that is open too.
func collides(f *os.File, info fs.FileInfo, place place, other *os.File, mounts mountTable) error {
	otherInfo, err := other.Stat()
	if err != nil {
		return err
	}
	if os.SameFile(info, otherInfo) {
		return errCollides
	}
	otherPlace, err := mounts.place(other)
	if err != nil {
		return err
	}
	if place.device == otherPlace.device && (below(place.path, otherPlace.path) || below(otherPlace.path, place.path)) {
		return errCollides
	}
	stat, ok := otherInfo.Sys().(*syscall.Stat_t)
	if !ok || otherInfo.IsDir() || stat.Nlink < 2 || !info.IsDir() || !sameDevice(info, otherInfo) {
		return nil
	}
	return findLink(f, otherInfo)
}

func sameDevice(a, b fs.FileInfo) bool {
	x, xOK := a.Sys().(*syscall.Stat_t)
	y, yOK := b.Sys().(*syscall.Stat_t)
	return xOK && yOK && x.Dev == y.Dev
}

// maxLinkSearch bounds the search of a directory for another name of a socket.
const maxLinkSearch = 200_000

// findLink looks in a directory for a hard link to a file. It is needed only where the file has more
// than one name.
func findLink(dir *os.File, file fs.FileInfo) error {
	seen := 0
	return filepath.WalkDir(fmt.Sprintf("/proc/self/fd/%d/", dir.Fd()), func(_ string, entry fs.DirEntry, err error) error {
		if seen++; seen > maxLinkSearch {
			return fmt.Errorf("has more than %d entries, too many to look for a hard link to a socket that has one", maxLinkSearch)
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

// below says whether a clean path is dir or in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
