package hostfiles

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// openBelow opens a resolved path below a resolved directory. It fails if a part of either path has become a link since
// the path was resolved.
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

// maxOpenTries is how many times openPath tries to open a path while the kernel returns EAGAIN.
const maxOpenTries = 200

// openPath opens a path with O_PATH, so that the open has no effect on a socket, pipe or device. For a path with ".."
// that must stay below a directory, the kernel returns EAGAIN if any process on the machine renames a file meanwhile.
func openPath(at int, name string, resolve uint64) (*os.File, error) {
	fd, err := -1, error(unix.EAGAIN)
	for try := 0; try < maxOpenTries && errors.Is(err, unix.EAGAIN); try++ {
		fd, err = unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	}
	switch {
	case errors.Is(err, unix.ENOSYS):
		return nil, errors.New("mounts need Linux 5.6 or newer")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EAGAIN):
		return nil, errors.New("a part of its path was replaced with a link while it was being opened")
	case err != nil:
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// isBelow reports whether a clean path is dir or inside it.
func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
