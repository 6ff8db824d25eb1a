package worker

import (
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// diskRoom is what a file system of the host has left for those who are not root.
type diskRoom struct {
	dir       string // in it
	device    uint64
	free      int64 // bytes
	size      int64
	inodes    int64 // free; as many as allInodes where the file system has no bound
	allInodes int64
}

// readRoom reads what the file system of a directory has left, and reports whether that can be read: the
// engine's is not there on a host that only lends its socket.
func readRoom(dir string) (diskRoom, bool) {
	var fs unix.Statfs_t
	var stat unix.Stat_t
	if unix.Statfs(dir, &fs) != nil || unix.Stat(dir, &stat) != nil {
		return diskRoom{}, false
	}
	return diskRoom{dir: dir, device: stat.Dev, free: int64(fs.Bavail) * fs.Bsize, size: int64(fs.Blocks) * fs.Bsize,
		inodes: int64(fs.Ffree), allInodes: int64(fs.Files)}, true
}

// Bounds of what counts as little room, where the operator did not say.
const (
	lowPart   = 10      // of a disk
	lowMost   = 2 << 30 // bytes
	lowInodes = 50_000
)

// disklimits say how little room is too little.
type diskLimits struct {
	low     protocol.Bytes // 0: by the disk's size
	reserve protocol.Bytes // 0: by the disk's size
}

// lowOf is how much must be free, that nobody is stopped.
func (l diskLimits) lowOf(r diskRoom) int64 {
	if l.low > 0 {
		return min(int64(l.low), r.size/2)
	}
	return min(r.size/lowPart, lowMost)
}

func (l diskLimits) lowInodesOf(r diskRoom) int64 { return min(r.allInodes/lowPart, lowInodes) }

// Bounds of the reserve, where the operator did not say.
const (
	reservePart = 50 // of a disk
	reserveMost = 32 << 20
)

func (l diskLimits) reserveOf(r diskRoom) int64 {
	if l.reserve > 0 {
		return min(int64(l.reserve), r.size/lowPart)
	}
	return min(r.size/reservePart, reserveMost)
}

// diskLevel is how urgent it is that somebody stops writing.
type diskLevel int

const (
	diskCalm diskLevel = iota
	diskNear           // what sandboxes have on it is measured, so that it is known who writes
	diskLow            // who would fill it soon is stopped
	diskDire           // the fastest writer is stopped, however slow
)

// near is how many times what is low is near.
const near = 2

// level judges a disk that lost so many bytes in the last second, and says whether it is about inodes.
func (l diskLimits) level(r diskRoom, lost int64) (level diskLevel, inodes bool) {
	low := l.lowOf(r)
	switch soon := r.free - 2*max(lost, 0); {
	case r.free < low/2:
		level = diskDire
	case r.free < low, r.free-lost < low/2: // within a second
		level = diskLow
	case r.free < near*low || soon < low:
		level = diskNear
	}
	if r.allInodes == 0 {
		return level, false
	}
	low, byInodes := l.lowInodesOf(r), diskCalm
	switch {
	case r.inodes < low/2:
		byInodes = diskDire
	case r.inodes < low:
		byInodes = diskLow
	case r.inodes < near*low:
		byInodes = diskNear
	}
	if byInodes > level {
		return byInodes, true
	}
	return level, false
}
