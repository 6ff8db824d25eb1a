package supervisor

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// chunk is the most that is read from a pipe at once: as much as a pipe holds.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// sink is a file that takes up to limit bytes. Further bytes are dropped and counted as truncated; the writer is
// neither stalled nor told.
type sink struct {
	fd    int // 0: no file, bytes are only counted
	limit int64
	stays bool // it is not closed: a later run appends to it

	window int64 // this many bytes at the end stay on disk, sometimes a few more; 0: all
	freed  int64 // bytes at the beginning that were freed

	size      int64
	truncated bool
	diskFull  bool // the disk was full
}

// execSink is the sink for a stream of an exec. keep is how much is kept in memory; without a file, that is all.
func execSink(fd int, limit, keep int64) *sink {
	if fd == 0 {
		limit = min(limit, keep)
	}
	return &sink{fd: fd, limit: limit}
}

// write stores what fits. A write error counts as the limit, so the file always has a prefix of what was written.
func (k *sink) write(p []byte) {
	if room := k.limit - k.size; int64(len(p)) > room {
		p, k.truncated = p[:room], true
	}
	if len(p) == 0 {
		return
	}
	if k.fd == 0 {
		k.size += int64(len(p))
		return
	}
	n, err := writeAll(k.fd, p, k.size)
	k.size += int64(n)
	if err != nil {
		k.limit, k.truncated = k.size, true
		k.diskFull = errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
		return
	}
	k.free()
}

// free frees, on disk, the bytes before the window. Offsets do not change.
func (k *sink) free() {
	const page = 4096
	until := (k.size - k.window) &^ (page - 1)
	if k.window == 0 || until-k.freed < k.window/4 {
		return
	}
	if err := unix.Fallocate(
		k.fd,
		unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
		k.freed,
		until-k.freed,
	); err != nil {
		k.limit = k.size // the file system cannot free parts of a file: store no more
		return
	}
	k.freed = until
}

// resume takes the size of a file that an earlier boot left.
func (k *sink) resume() {
	var stat unix.Stat_t
	if err := unix.Fstat(k.fd, &stat); err == nil {
		k.size = stat.Size
	}
}

func (k *sink) close() {
	if !k.stays {
		closeFD(k.fd)
		k.fd = 0
	}
}

// stream moves the bytes of one pipe into a sink while the main process lives. Afterwards it reads and drops them until
// nobody holds the other end.
type stream struct {
	pipe *os.File
	raw  syscall.RawConn
	slot slots  // limits concurrent system calls
	grew func() // called, with mu held, when the sink has grown

	kept atomic.Int64 // size of the sink, for readers that must not wait for the disk

	mu      sync.Mutex
	sink    *sink
	settled bool

	head    []byte // everything in the sink, while that is at most keep bytes
	keep    int64
	dropped bool // it was more than keep bytes
}

// newStream takes over the pipe. keep is how much is also kept in memory, to be sent with the result.
func newStream(pipe *os.File, sink *sink, keep int64, slot slots, grew func()) *stream {
	raw, err := pipe.SyscallConn()
	if err != nil {
		panic("supervisor: " + err.Error()) // an open pipe has a raw connection
	}
	return &stream{pipe: pipe, raw: raw, sink: sink, keep: keep, slot: slot, grew: grew}
}

// pump reads until nobody holds the other end of the pipe. It waits without a thread and without a buffer.
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

// take moves at most max bytes. It returns 0 at the end of the pipe and -1 if it is empty.
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

// settle ends storing: it takes what is in the pipe at this moment and no more, because a process that was left behind
// may write for ever.
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

// diskFull reports whether the disk was full before everything was stored.
func (s *stream) diskFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.diskFull
}

// output returns what the result carries: size and truncation, and the bytes if they were few enough. It releases them.
func (s *stream) output() (size int64, truncated bool, head []byte, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head, s.head = s.head, nil
	return s.sink.size, s.sink.truncated, head, !s.dropped
}
