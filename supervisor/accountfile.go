package supervisor

import (
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxAccountFile is how much is read of /etc/passwd and /etc/group, which belong to the sandbox.
	maxAccountFile = 1 << 20
	// keptAccountFile is the largest such file that is cached. A larger one is read each time.
	keptAccountFile = 64 << 10
	// settledAfter is how long a file must be unchanged before a read may be cached. Two changes within a shorter time
	// may leave the same modification time.
	settledAfter = time.Second
)

// accountFile is /etc/passwd or /etc/group. It is read again only after it has changed: every exec needs it, and
// reading both files cost each exec ten system calls.
type accountFile struct {
	path string

	mu   sync.Mutex
	kept *fileVersion // the version that text was read from; nil: nothing is cached
	text string
}

// fileVersion identifies one content of a file.
type fileVersion struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func versionOf(stat *unix.Stat_t) fileVersion {
	return fileVersion{dev: stat.Dev, ino: stat.Ino, size: stat.Size, mtime: stat.Mtim, ctime: stat.Ctim}
}

// read returns the text of the file. A file that is missing or not regular is empty; one that is too large is cut off.
func (f *accountFile) read() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var stat unix.Stat_t
	if f.kept != nil && unix.Stat(f.path, &stat) == nil && versionOf(&stat) == *f.kept {
		return f.text
	}
	f.kept, f.text = nil, ""
	began := time.Now()
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // not blocking: it may be a FIFO
	if err != nil {
		return ""
	}
	if unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return ""
	}
	file := os.NewFile(uintptr(fd), f.path)
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxAccountFile))
	if err != nil {
		return ""
	}
	changed := time.Unix(stat.Ctim.Unix())
	if len(data) <= keptAccountFile && began.Sub(changed) > settledAfter {
		version := versionOf(&stat)
		f.kept, f.text = &version, string(data)
	}
	return string(data)
}

// eachLine calls visit with the fields of each line, until it returns false.
func (f *accountFile) eachLine(visit func(fields []string) bool) {
	for line := range strings.Lines(f.read()) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && !visit(strings.Split(line, ":")) {
			return
		}
	}
}
