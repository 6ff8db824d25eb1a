package watermark

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestQ13_ALimitIsReachedAtItsPercentage(t *testing.T) {
	for _, c := range []struct {
		used, free uint64
		percent    int
		reached    bool
	}{{0, 0, 1, false}, {0, 100, 1, false}, {89, 11, 90, false}, {90, 10, 90, true}, {100, 0, 100, true},
		{99, 1, 100, false}} {
		if why := reached("disk", "/x", c.used, c.free, c.percent); (why != "") != c.reached {
			t.Errorf("%+v: the reason is %q, want one: %t", c, why, c.reached)
		}
	}
	if used, allowed := Processes(); used == 0 || allowed < used {
		t.Errorf("the host has %d processes, and allows %d", used, allowed)
	}
	if total, available := memory(); total == 0 || available == 0 || available > total {
		t.Errorf("the host has %d KiB of memory, of which %d KiB are available", total, available)
	}
	for _, bad := range []Limits{{Disk: -1}, {Inodes: 101}, {Memory: 200}, {PIDs: -5}} {
		if bad.Check() == nil {
			t.Errorf("the invalid limits %+v were accepted", bad)
		}
	}
}

func TestDiskIsUsableUpToItsLimit(t *testing.T) {
	dir, l := t.TempDir(), Limits{Disk: 50}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if got, half := l.UsableDisk(dir), protocol.Bytes(fs.Blocks*uint64(fs.Bsize)/2); got == 0 || got > half {
		t.Errorf("%s of the disk are usable, want at most half of the disk, %s", got, half)
	}
	if got := l.UsableDisk("/not/on/this/machine"); got != 0 {
		t.Errorf("%s of a disk on another machine are usable, want 0", got)
	}
}
