package disk

import (
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// room is the free space of a file system, without the part that only root may use.
type room struct {
	dir       string // a directory on the file system
	device    uint64
	free      int64 // bytes
	size      int64 // bytes
	inodes    int64 // number of free inodes
	allInodes int64 // 0 if the file system does not limit inodes
}

// readRoom reads the free space of dir's file system, and returns false if dir cannot be read. For example, a worker in
// a container that has only the engine's socket cannot read the engine's directory.
func readRoom(dir string) (_ room, ok bool) {
	var fs unix.Statfs_t
	var stat unix.Stat_t
	if unix.Statfs(dir, &fs) != nil || unix.Stat(dir, &stat) != nil {
		return room{}, false
	}
	return room{dir: dir, device: stat.Dev, free: int64(fs.Bavail) * fs.Bsize, size: int64(fs.Blocks) * fs.Bsize,
		inodes: int64(fs.Ffree), allInodes: int64(fs.Files)}, true
}

func deviceOf(dir string) uint64 {
	r, _ := readRoom(dir)
	return r.device
}

// Defaults for the free space that counts as low: a tenth of the disk's bytes, but at most lowMost, and a tenth of its
// inodes, but at most lowInodes.
const (
	lowPart   = 10
	lowMost   = 2 << 30 // bytes
	lowInodes = 50_000
)

// Defaults for the size of the reserve: a fiftieth of the disk, but at most reserveMost.
const (
	reservePart = 50
	reserveMost = 32 << 20 // bytes
)

// limits are the operator's settings.
type limits struct {
	low     protocol.Bytes // 0: derived from the disk's size
	reserve protocol.Bytes // 0: derived from the disk's size
}

// lowOf returns the number of free bytes below which the watch stops sandboxes.
func (l limits) lowOf(r room) int64 {
	if l.low > 0 {
		return min(int64(l.low), r.size/2)
	}
	return min(r.size/lowPart, lowMost)
}

func (l limits) lowInodesOf(r room) int64 { return min(r.allInodes/lowPart, lowInodes) }

// reserveOf returns how many bytes the worker reserves for itself.
func (l limits) reserveOf(r room) int64 {
	if l.reserve > 0 {
		return min(int64(l.reserve), r.size/lowPart)
	}
	return min(r.size/reservePart, reserveMost)
}

// level says how urgent it is to stop a writer.
type level int

const (
	enough   level = iota
	near           // measure the sandboxes, so that their rates are known when the disk becomes low
	low            // stop the fastest writer if it would soon fill the disk
	critical       // stop the fastest writer, even a slow one
)

// A disk is near its low limit if its free space is less than nearFactor times the limit.
const nearFactor = 2

// level classifies a disk. In the last second, the free space shrank by the number of bytes in lost. The result inodes
// is true if the shortage of inodes is more urgent than the shortage of bytes.
func (l limits) level(r room, lost int64) (_ level, inodes bool) {
	byBytes, limit := enough, l.lowOf(r)
	switch in2s := r.free - 2*max(lost, 0); {
	case r.free < limit/2:
		byBytes = critical
	case r.free < limit, r.free-lost < limit/2: // at this rate, the disk is critical within a second
		byBytes = low
	case r.free < nearFactor*limit || in2s < limit:
		byBytes = near
	}
	if r.allInodes == 0 {
		return byBytes, false
	}
	byInodes, limit := enough, l.lowInodesOf(r)
	switch {
	case r.inodes < limit/2:
		byInodes = critical
	case r.inodes < limit:
		byInodes = low
	case r.inodes < nearFactor*limit:
		byInodes = near
	}
	if byInodes > byBytes {
		return byInodes, true
	}
	return byBytes, false
}
