package files

import (
	"cmp"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// place is where a path of a request leads: a name in an open directory. The directories above may be links. They are
// resolved once, so a directory that is replaced afterwards does not lead the rest of the operation elsewhere.
type place struct {
	dir   int    // descriptor
	name  string // with the slashes at the end of the path, if any: then a link at the end is followed
	asked string // the path of the request
}

// place opens the directory above a path.
func (h *helper) place(field, asked string) (*place, error) {
	at, err := h.path(field, asked)
	if err != nil {
		return nil, err
	}
	trimmed := strings.TrimRight(at, "/")
	above, _ := path.Split(trimmed)
	fd, err := openAt(unix.AT_FDCWD, cmp.Or(above, "/"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, failure(asked, err)
	}
	return &place{dir: fd, name: at[len(above):], asked: asked}, nil
}

func (p *place) close() { unix.Close(p.dir) }

// lstat describes the file there.
func (p *place) lstat() (unix.Stat_t, error) { return lstatAt(p.dir, p.name) }

// lstatAt describes a file of a directory, without following a link.
func lstatAt(dir int, name string) (unix.Stat_t, error) {
	var stat unix.Stat_t
	err := unix.Fstatat(dir, name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	return stat, err
}

// below reports whether the place is a directory, or below it. It asks the kernel for the directories above, because a
// path may lead through links.
func (p *place) below(directory *unix.Stat_t) bool {
	fd, err := openAt(p.dir, p.name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil { // it does not exist yet
		fd, err = openAt(p.dir, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	var stat, last unix.Stat_t
	for err == nil {
		above := -1
		if err = unix.Fstat(fd, &stat); err == nil {
			above, err = openAt(fd, "..", unix.O_PATH|unix.O_DIRECTORY, 0)
		}
		unix.Close(fd)
		if sameFile(&stat, directory) || sameFile(&stat, &last) { // the root is above itself
			unix.Close(above)
			return sameFile(&stat, directory)
		}
		fd, last = above, stat
	}
	return false
}

func sameFile(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }
