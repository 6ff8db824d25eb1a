package files

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// maxAccountFile limits how many bytes are read of /etc/passwd or /etc/group.
const maxAccountFile = 1 << 20

// names are the names of users and groups, as the container's files have them. They are read once for each call.
type names struct{ users, groups map[uint32]string }

func readNames() *names {
	return &names{users: readAccounts("/etc/passwd"), groups: readAccounts("/etc/group")}
}

// readAccounts reads the names and ids of a file of users or groups: the first and the third field of each line.
func readAccounts(path string) map[uint32]string {
	found := map[uint32]string{}
	file, _, err := openRegular(path)
	if err != nil {
		return found
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxAccountFile))
	if err != nil {
		return found
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) < 3 {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if _, known := found[uint32(id)]; err == nil && !known {
			found[uint32(id)] = fields[0]
		}
	}
	return found
}

// typeOf returns the type of a file with this mode.
func typeOf(mode uint32) protocol.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return protocol.FileRegular
	case unix.S_IFDIR:
		return protocol.FileDirectory
	case unix.S_IFLNK:
		return protocol.FileLink
	case unix.S_IFIFO:
		return protocol.FileFIFO
	case unix.S_IFSOCK:
		return protocol.FileSocket
	case unix.S_IFCHR, unix.S_IFBLK:
		return protocol.FileDevice
	}
	return protocol.FileUnknown
}

// info describes a file.
func (n *names) info(path string, stat *unix.Stat_t) protocol.FileInfo {
	return protocol.FileInfo{
		Path:     path,
		Type:     typeOf(stat.Mode),
		Size:     stat.Size,
		Mode:     stat.Mode & 0o7777,
		UID:      stat.Uid,
		GID:      stat.Gid,
		Owner:    n.users[stat.Uid],
		Group:    n.groups[stat.Gid],
		Modified: timeOf(stat.Mtim),
		Changed:  timeOf(stat.Ctim),
		Accessed: timeOf(stat.Atim),
		Links:    uint64(stat.Nlink),
		Inode:    stat.Ino,
	}
}

func timeOf(t unix.Timespec) time.Time { return time.Unix(t.Unix()).UTC() }

// readLink returns where a link leads.
func readLink(dir int, name string) string {
	buf := make([]byte, protocol.MaxFilePath)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// lstat describes a path without following a link at its end.
func lstat(path string) (unix.Stat_t, error) {
	var stat unix.Stat_t
	err := unix.Lstat(path, &stat)
	return stat, err
}

// openRegular opens a regular file for reading. It follows links. It checks the type before it opens the file, because
// opening a device may have an effect. It opens the file without blocking, because a fifo may have replaced the file
// after the check.
func openRegular(path string) (*os.File, unix.Stat_t, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, stat, failure(path, err)
	}
	if kind := typeOf(stat.Mode); kind != protocol.FileRegular {
		return nil, stat, notRegular(path, kind)
	}
	return openChecked(unix.AT_FDCWD, path, path, unix.O_RDONLY)
}

// openChecked opens a file, and checks that it is a regular one.
func openChecked(dir int, name, path string, flags int) (*os.File, unix.Stat_t, error) {
	var stat unix.Stat_t
	fd, err := openAt(dir, name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, stat, failure(path, err)
	}
	if err := unix.Fstat(fd, &stat); err != nil {
		unix.Close(fd)
		return nil, stat, failure(path, err)
	}
	if kind := typeOf(stat.Mode); kind != protocol.FileRegular {
		unix.Close(fd)
		return nil, stat, notRegular(path, kind)
	}
	return os.NewFile(uintptr(fd), path), stat, nil
}

// openAt opens a file in a directory.
func openAt(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
