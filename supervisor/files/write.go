package files

import (
	"crypto/rand"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	defaultFileMode      = 0o644
	defaultDirectoryMode = 0o755
	maxLinks             = 40 // links that are followed at the end of a path, as in the kernel
)

// write writes a file from a stream.
func (h *helper) write(in *input, r *protocol.FileWrite) (*control.FileReply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	at, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	if r.Parents {
		if err := makeParents(at); err != nil {
			return nil, err
		}
	}
	t, err := h.openTarget(at, r.Path)
	if err != nil {
		return nil, err
	}
	defer t.close()
	switch {
	case r.How == protocol.FileCreate && t.exists:
		return nil, failure(r.Path, unix.EEXIST)
	case r.How == protocol.FileAppend:
		err = t.appendTo(in, r)
	default:
		t.fresh = r.How == protocol.FileCreate
		err = t.replace(in, r.Mode, r.Owner)
	}
	if err != nil {
		return nil, failure(r.Path, err)
	}
	info, err := t.info(r.Path)
	if err != nil {
		return nil, err
	}
	return &control.FileReply{File: info}, nil
}

// target is where a file is to be written: a name in an open directory.
type target struct {
	dir    int // descriptor
	name   string
	asked  string // the path of the request
	exists bool
	stat   unix.Stat_t // status of the file that exists
	fresh  bool        // refuse to replace a file
	h      *helper
}

// openTarget finds where a path leads. A link at the end is followed, as a shell does, also if it leads nowhere yet.
func (h *helper) openTarget(at, asked string) (*target, error) {
	for range maxLinks {
		dir, name := path.Split(at)
		if name == "" || name == "." || name == ".." {
			return nil, failure(asked, unix.EISDIR)
		}
		fd, err := openAt(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, failure(asked, err)
		}
		t := &target{dir: fd, name: name, asked: asked, h: h}
		switch err := unix.Fstatat(fd, name, &t.stat, unix.AT_SYMLINK_NOFOLLOW); {
		case err == unix.ENOENT:
			return t, nil
		case err != nil:
			t.close()
			return nil, failure(asked, err)
		}
		kind := typeOf(t.stat.Mode)
		if kind == protocol.FileRegular {
			t.exists = true
			return t, nil
		}
		link := readLink(fd, name)
		t.close()
		if kind != protocol.FileLink || link == "" {
			return nil, notRegular(asked, kind)
		}
		if at = link; !strings.HasPrefix(link, "/") {
			at = dir + link
		}
	}
	return nil, failure(asked, unix.ELOOP)
}

func (t *target) close() { unix.Close(t.dir) }

func (t *target) info(asked string) (*protocol.FileInfo, error) {
	var stat unix.Stat_t
	if err := unix.Fstatat(t.dir, t.name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, failure(asked, err)
	}
	info := readNames().info(asked, &stat)
	return &info, nil
}

// replace writes a new file beside the target, and then gives it the target's name. After an error, the target is
// unchanged.
func (t *target) replace(content io.Reader, mode *uint32, owner string) (err error) {
	temporary := ".boxfleet-" + rand.Text()
	fd, err := openAt(t.dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), temporary)
	defer file.Close()
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(t.dir, temporary, 0) // the first error says more
		}
	}()
	if _, err := io.CopyBuffer(onlyWriter{file}, onlyReader{content}, t.h.buf); err != nil {
		return errnoOf(err)
	}
	ask, err := t.describe(fd, mode, owner)
	switch {
	case err != nil:
		return err
	case ask == nil:
		return t.install(temporary)
	case t.keepsOthersFiles(): // once it is given away, the user cannot rename it
		if err := t.install(temporary); err != nil {
			return err
		}
		return ask()
	}
	if err := ask(); err != nil {
		return err
	}
	return t.install(temporary)
}

// onlyWriter and onlyReader hide the other methods of a file, so that a copy uses its own buffer.
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

// describe sets the owner and the mode of a new file. By default, the file takes them from the file that it replaces.
// It keeps that owner only if the user may give files to this owner. If the worker must set the owner, describe returns
// a function that asks it.
func (t *target) describe(fd int, mode *uint32, owner string) (ask func() error, err error) {
	if owner == "" && t.exists && (int(t.stat.Uid) != unix.Geteuid() || int(t.stat.Gid) != unix.Getegid()) {
		// Only root may give files away. A file that another user replaces belongs to that user.
		_ = unix.Fchown(fd, int(t.stat.Uid), int(t.stat.Gid))
	}
	bits := uint32(defaultFileMode)
	switch {
	case mode != nil:
		bits = *mode
	case t.exists && owner != "" && !mayChown():
		bits = t.stat.Mode & 0o7777 &^ special
	case t.exists:
		bits = t.stat.Mode & 0o7777
	}
	return t.h.owners.describe(fd, owner, &bits)
}

// keepsOthersFiles reports whether the directory lets nobody rename the files of another user there, not even the user
// of this process.
func (t *target) keepsOthersFiles() bool {
	var stat unix.Stat_t
	err := unix.Fstat(t.dir, &stat)
	return err != nil || stat.Mode&unix.S_ISVTX != 0 && int(stat.Uid) != unix.Geteuid()
}

// install gives the new file the target's name.
func (t *target) install(temporary string) error {
	if !t.fresh {
		return unix.Renameat(t.dir, temporary, t.dir, t.name)
	}
	return renameFresh(t.dir, temporary, t.dir, t.name)
}

// renameFresh renames a file, and fails with EEXIST if the new name exists.
func renameFresh(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	// The file system or the kernel lacks this kind of rename. A link does not replace a name either.
	var stat unix.Stat_t
	if err := unix.Fstatat(toDir, to, &stat, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return unix.EEXIST
	}
	if err := unix.Linkat(fromDir, from, toDir, to, 0); err != nil {
		return unix.Renameat(fromDir, from, toDir, to) // a directory, or a file system without links
	}
	return unix.Unlinkat(fromDir, from, 0)
}

// appendTo writes at the end of the target, as the bytes arrive.
func (t *target) appendTo(in io.Reader, r *protocol.FileWrite) error {
	flags := unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW
	if !t.exists {
		flags |= unix.O_CREAT
	}
	fd, err := openAt(t.dir, t.name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, defaultFileMode)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), t.name)
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if kind := typeOf(stat.Mode); kind != protocol.FileRegular {
		return notRegular(t.asked, kind)
	}
	ask, err := t.h.owners.describe(fd, r.Owner, r.Mode)
	if err != nil {
		return err
	}
	if _, err = io.CopyBuffer(onlyWriter{file}, onlyReader{in}, t.h.buf); err != nil || ask == nil {
		return errnoOf(err)
	}
	return ask() // after the stream: during it, no answer could be received
}

// makeParents creates the missing directories above a path.
func makeParents(at string) error {
	dir, _ := path.Split(strings.TrimRight(at, "/"))
	if dir = strings.TrimRight(dir, "/"); dir == "" {
		return nil
	}
	return makeAll(dir)
}

// makeAll creates a directory and the missing directories above it. It accepts directories that exist.
func makeAll(dir string) error {
	var stat unix.Stat_t
	if unix.Stat(dir, &stat) == nil && typeOf(stat.Mode) == protocol.FileDirectory {
		return nil
	}
	for end := 1; end <= len(dir); end++ {
		if end < len(dir) && dir[end] != '/' || dir[end-1] == '/' {
			continue
		}
		err := unix.Mkdir(dir[:end], defaultDirectoryMode)
		if err == nil || err == unix.EEXIST {
			continue
		}
		if unix.Stat(dir[:end], &stat) == nil { // a directory whose parent the user may not write to
			continue
		}
		return failure(dir[:end], err)
	}
	if err := unix.Stat(dir, &stat); err != nil {
		return failure(dir, err)
	}
	if typeOf(stat.Mode) != protocol.FileDirectory {
		return failure(dir, unix.ENOTDIR)
	}
	return nil
}

// mkdir creates a directory.
func (h *helper) mkdir(r *protocol.FileMkdir) (*control.FileReply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	at, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	if r.Parents {
		if err := makeAll(at); err != nil {
			return nil, err
		}
	}
	p, err := h.place("path", r.Path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if !r.Parents {
		if err := unix.Mkdirat(p.dir, p.name, defaultDirectoryMode); err != nil {
			return nil, failure(r.Path, err)
		}
	}
	if err := p.describeDirectory(&h.owners, r); err != nil {
		return nil, failure(r.Path, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(p.dir, p.name, &stat, 0); err != nil {
		return nil, failure(r.Path, err)
	}
	info := readNames().info(r.Path, &stat)
	return &control.FileReply{File: &info}, nil
}

// describeDirectory sets the owner and the mode of a directory, if the request has them. Only a directory that may have
// existed before may be a link.
func (p *place) describeDirectory(owners *giver, r *protocol.FileMkdir) error {
	if r.Owner == "" && r.Mode == nil {
		return nil
	}
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	if !r.Parents {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := openAt(p.dir, p.name, flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ask, err := owners.describe(fd, r.Owner, r.Mode)
	if err != nil || ask == nil {
		return err
	}
	return ask()
}
