package supervisor

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// chunk is the most that is read from a pipe at once, which is what a pipe holds.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// sink is a file that takes up to limit bytes. What comes after is counted as truncated and dropped: the
// writer is never stalled and never told.
type sink struct {
	fd    int // 0: none, what is written is only counted
	limit int64
	stays bool // it is not closed: another run writes behind this one

	window int64 // so many bytes at the end are kept on disk, a little more at times; 0: all
	freed  int64 // bytes at the beginning that were given back

	size      int64
	truncated bool
	diskFull  bool // the disk had no room for more
}

// execSink is a stream of an exec. keep is how much is kept in memory: all that is kept, where there is no file.
func execSink(fd int, limit, keep int64) *sink {
	if fd == 0 {
		limit = min(limit, keep)
	}
	return &sink{fd: fd, limit: limit}
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

// diskFull says whether the disk had no room for all that should have been kept.
func (s *stream) diskFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.diskFull
}

// output returns what the result carries: size and truncation, and the bytes where they were few
// enough. It releases them.
func (s *stream) output() (size int64, truncated bool, head []byte, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head, s.head = s.head, nil
	return s.sink.size, s.sink.truncated, head, !s.dropped
}
