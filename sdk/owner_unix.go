//go:build unix

package sdk

import (
	"io/fs"
	"syscall"
)

// owner returns the numeric ids of the file's owner and group.
func owner(info fs.FileInfo) (uid, gid int) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid), int(stat.Gid)
	}
	return 0, 0
}
