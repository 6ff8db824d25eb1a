package diskuse

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Deleted counts the deleted files that the processes still have open or mapped, until ctx ends. It counts only files
// on two devices: the device of the processes' root, and the given device. If the root is an overlay, the given device
// must be that of the overlay's layer: the kernel reports the overlay's device for some files, and the layer's device
// for others.
func Deleted(ctx context.Context, pids []int, device uint64, since time.Time) Usage {
	u := &unnamed{since: since.Unix(), seen: map[file]bool{}, use: Usage{Device: device, Complete: true}}
	for _, pid := range pids {
		var root unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/root", pid), &root) != nil {
			continue // the process has ended
		}
		for _, of := range []string{"fd", "map_files"} {
			u.read(ctx, fmt.Sprintf("/proc/%d/%s", pid, of), root.Dev, device)
		}
	}
	u.use.Complete = ctx.Err() == nil
	return u.use
}

// file identifies a file, so that it is counted once even if many processes have it open.
type file struct{ device, inode uint64 }

type unnamed struct {
	since int64
	seen  map[file]bool
	use   Usage
}

// read counts the deleted files to which the links in a directory point, if the files are on one of the two devices.
func (u *unnamed) read(ctx context.Context, path string, one, other uint64) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	for ctx.Err() == nil {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			var stat unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), name, &stat, 0) != nil || stat.Nlink != 0 ||
				(stat.Dev != one && stat.Dev != other) {
				continue
			}
			if f := (file{stat.Dev, stat.Ino}); !u.seen[f] {
				u.seen[f] = true
				u.use.add(&stat, u.since)
			}
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}
