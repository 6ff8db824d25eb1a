package supervisor

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// chunk is the maximum number of bytes that are read from a pipe at once. It is the capacity of a pipe.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// sink is a file that takes up to limit bytes. Further bytes are dropped, and truncated is set. The process that writes
// them is not stalled, and gets no error.
type sink struct {
	fd    int // 0: there is no file, and the sink only counts bytes
	limit int64
	stays bool // close does not close the file, because a later run appends to it

	window int64 // approximate number of bytes at the end of the file that stay on disk; 0: all bytes
	freed  int64 // number of bytes at the beginning of the file that were freed

	size      int64
	truncated bool
	diskFull  bool // a write failed because the disk was full
}

// execSink returns the sink for a stream of an exec. If there is no file, the output has only its first keep bytes,
// which the stream keeps in memory.
func execSink(fd int, limit, keep int64) *sink {
	if fd == 0 {
		limit = min(limit, keep)
	}
	return &sink{fd: fd, limit: limit}
}

// write stores the bytes that fit. After a write error, the sink takes no more bytes, so the file always has a prefix
// of the output.
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

// free frees the disk space of the bytes before the window. Offsets in the file do not change.
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
		k.limit = k.size // the file system cannot free parts of a file, so the sink must not grow
		return
	}
	k.freed = until
}

// resume sets the size from the file, to which an earlier boot may have written.
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

// stream moves the bytes of one pipe into a sink while the main process runs. Afterwards it reads and drops all bytes,
// until no process has the pipe's other end open.
type stream struct {
	pipe *os.File
	raw  syscall.RawConn
	slot slots  // limits concurrent system calls
	grew func() // called, with mu held, when the sink has grown

	kept atomic.Int64 // the size of the sink; readable without mu, which is held during writes to the disk

	mu      sync.Mutex
	sink    *sink
	settled bool

	mask    *masker // nil: nothing is masked
	head    []byte  // the content of the sink, while that is at most keep bytes
	keep    int64
	dropped bool // the sink has more than keep bytes, so head was dropped
}

// newStream returns a stream, which takes over the pipe. Output of up to keep bytes is also kept in memory, and can be
// sent with the result.
func newStream(pipe *os.File, sink *sink, keep int64, mask *masker, slot slots, grew func()) *stream {
	raw, err := pipe.SyscallConn()
	if err != nil {
		panic("supervisor: " + err.Error()) // cannot happen: an open pipe has a raw connection
	}
	return &stream{pipe: pipe, raw: raw, sink: sink, keep: keep, mask: mask, slot: slot, grew: grew}
}

// pump reads until no process has the pipe's other end open. While it waits for bytes, it needs no thread and no
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

// take moves at most max bytes. It returns 0 at the end of the pipe, and -1 if the pipe is empty.
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
	case err != nil:
		return 0
	}
	if !s.settled {
		s.store(buf[:n], n == 0)
	}
	return n
}

// store masks and stores the next bytes of the output. If end is true, no more bytes follow.
func (s *stream) store(p []byte, end bool) {
	p = s.mask.next(p, end)
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

// settle stores the bytes that are in the pipe at this moment. The stream stores no later bytes. settle does not wait
// for the end of the pipe, because a process that the command left behind may write forever.
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
	s.store(nil, true)
	s.settled = true
	s.sink.close()
}

// diskFull reports whether output is missing because the disk was full.
func (s *stream) diskFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.diskFull
}

// output returns the size of the stored output, whether output was dropped, and the output itself. After the call, the
// stream no longer keeps the output in memory. The result whole is false if the output was too large to be kept in
// memory.
func (s *stream) output() (size int64, truncated bool, head []byte, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head, s.head = s.head, nil
	return s.sink.size, s.sink.truncated, head, !s.dropped
}
