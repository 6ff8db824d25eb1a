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
	// maxAccountFile limits how many bytes are read of /etc/passwd or /etc/group. The sandbox may change these files.
	maxAccountFile = 1 << 20
	// keptAccountFile is the maximum size of a cached file. A larger file is read each time.
	keptAccountFile = 64 << 10
	// settledAfter is how long a file must have been unchanged before its text may be cached. If a file changes twice
	// within a shorter time, both versions may have the same modification time.
	settledAfter = time.Second
)

// accountFile is /etc/passwd or /etc/group. Its text is cached, and read again only after the file has changed: every
// exec needs both files, and reading them takes ten system calls.
type accountFile struct {
	path string

	mu   sync.Mutex
	kept *fileVersion // the version of the cached text; nil if nothing is cached
	text string
}

// fileVersion identifies one version of a file's content.
type fileVersion struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func versionOf(stat *unix.Stat_t) fileVersion {
	return fileVersion{dev: stat.Dev, ino: stat.Ino, size: stat.Size, mtime: stat.Mtim, ctime: stat.Ctim}
}

// read returns the text of the file. It returns "" if the file is missing or not a regular file, and only the beginning
// of a file that is too large.
func (f *accountFile) read() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var stat unix.Stat_t
	if f.kept != nil && unix.Stat(f.path, &stat) == nil && versionOf(&stat) == *f.kept {
		return f.text
	}
	f.kept, f.text = nil, ""
	began := time.Now()
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // opening a FIFO must not block
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

// eachLine calls visit with the fields of each line, until visit returns false.
func (f *accountFile) eachLine(visit func(fields []string) bool) {
	for line := range strings.Lines(f.read()) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && !visit(strings.Split(line, ":")) {
			return
		}
	}
}
