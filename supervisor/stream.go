package supervisor

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// chunk is the most that is read from a pipe at once, which is what a pipe holds.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// sink is a file that is made on its first byte and takes up to limit bytes. What comes after is
// counted as truncated and dropped: the writer is never stalled and never told.
type sink struct {
	dir   int    // the directory's descriptor
	path  string // below it
	limit int64
	again bool // the file may be there already: it is continued

	window int64 // so many bytes at the end are kept on disk, a little more at times; 0: all
	freed  int64 // bytes at the beginning that were given back

	prepare func() error // called before the file is made; may be nil

	fd        int // 0: not made yet, or closed
	size      int64
	truncated bool
}

// write keeps what fits. A disk that refuses counts as a limit: what is kept is a prefix of what
// was written, whatever happens.
func (k *sink) write(p []byte) {
	if room := k.limit - k.size; int64(len(p)) > room {
		p, k.truncated = p[:room], true
	}
	if len(p) == 0 {
		return
	}
	if k.fd == 0 {
		flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if k.again {
			flags = flags&^unix.O_EXCL | unix.O_APPEND | unix.O_NONBLOCK // it may be a FIFO by now
		}
		fd, err := k.open(flags)
		if err != nil {
			k.limit, k.truncated = k.size, true
			return
		}
		k.fd = fd
	}
	for len(p) > 0 {
		n, err := unix.Write(k.fd, p)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			k.limit, k.truncated = k.size, true
			return
		}
		k.size += int64(n)
		p = p[n:]
	}
	k.free()
}

// free gives back to the disk what is before the window. The offsets of what is in it stay.
func (k *sink) free() {
	const page = 4096
	until := (k.size - k.window) &^ (page - 1)
	if k.window == 0 || until-k.freed < k.window/4 {
		return
	}
	if err := unix.Fallocate(k.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, k.freed, until-k.freed); err != nil {
		k.limit = k.size // a file system that cannot do it: no more is kept
		return
	}
	k.freed = until
}

// resume takes the size of a file that an earlier boot left.
func (k *sink) resume() {
	var stat unix.Stat_t
	if err := unix.Fstatat(k.dir, k.path, &stat, unix.AT_SYMLINK_NOFOLLOW); err == nil && stat.Mode&unix.S_IFMT == unix.S_IFREG {
		k.size = stat.Size
	}
}

func (k *sink) open(flags int) (int, error) {
	if k.prepare != nil {
		if err := k.prepare(); err != nil {
			return 0, err
		}
	}
	return unix.Openat(k.dir, k.path, flags, 0o600)
}

func (k *sink) close() {
	closeFD(k.fd)
	k.fd = 0
}

// stream moves one pipe of a process into a sink for as long as the main process lives, and then
// goes on reading and dropping for as long as anybody holds the other end.
type stream struct {
	pipe *os.File
	raw  syscall.RawConn
	slot slots  // in which system calls are made
	grew func() // more is in the sink; called with mu held

	kept atomic.Int64 // how much is in the sink, for those who must not wait for the disk

	mu      sync.Mutex
	sink    *sink
	settled bool

	head    []byte // all that is in the sink, while that is at most keep bytes
	keep    int64
	dropped bool // it was more
}

// newStream takes the pipe. keep is how much is also kept in memory, to be sent with the result.
func newStream(pipe *os.File, sink *sink, keep int64, slot slots, grew func()) *stream {
	raw, err := pipe.SyscallConn()
	if err != nil {
		panic("supervisor: " + err.Error()) // an open pipe has one
	}
	return &stream{pipe: pipe, raw: raw, sink: sink, keep: keep, slot: slot, grew: grew}
}

// pump reads until every holder of the pipe is gone. It waits without a thread and without a
// buffer.
func (s *stream) pump() {
	s.raw.Read(func(fd uintptr) (done bool) {
		for {
			n := s.take(int(fd), chunk)
			if n < 0 {
				return false
			}
			if n == 0 {
				return true
			}
		}
	})
	s.slot.acquire()
	defer s.slot.release()
	s.pipe.Close()
}

// take moves at most max bytes. It returns 0 at the end of the pipe and -1 when nothing is there.
func (s *stream) take(fd, max int) int {
	s.slot.acquire()
	defer s.slot.release()
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(fd, buf[:max])
}

func (s *stream) takeLocked(fd int, buf []byte) int {
	n, err := unix.Read(fd, buf)
	for err == unix.EINTR {
		n, err = unix.Read(fd, buf)
	}
	switch {
	case err == unix.EAGAIN:
		return -1
	case err != nil || n == 0:
		return 0
	}
	if !s.settled {
		s.store(buf[:n])
	}
	return n
}

func (s *stream) store(p []byte) {
	before := s.sink.size
	s.sink.write(p)
	kept := p[:s.sink.size-before]
	s.kept.Store(s.sink.size)
	if s.sink.size > s.keep {
		s.head, s.dropped = nil, true
	} else {
		s.head = append(s.head, kept...)
	}
	if len(kept) > 0 {
		s.grew()
	}
}

// settle ends the keeping: it takes what is in the pipe at this moment, and not a byte more, since
// a process that was left behind may write for ever.
func (s *stream) settle() {
	s.slot.acquire()
	defer s.slot.release()
	s.raw.Control(func(fd uintptr) {
		buf := chunks.Get().(*[chunk]byte)
		defer chunks.Put(buf)
		s.mu.Lock()
		defer s.mu.Unlock()
		there, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && there > 0 {
			n := s.takeLocked(int(fd), buf[:min(there, chunk)])
			if n <= 0 {
				break
			}
			there -= n
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = true
	s.sink.close()
}

// output returns what the result carries: size and truncation, and the bytes where they were few
// enough. It releases them.
func (s *stream) output() (size int64, truncated bool, head []byte, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head, s.head = s.head, nil
	return s.sink.size, s.sink.truncated, head, !s.dropped
}
