package worker

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestQ13_AMarkIsPassedAtItsPercent(t *testing.T) {
	for _, c := range []struct {
		used, free uint64
		percent    int
		over       bool
	}{{0, 0, 1, false}, {0, 100, 1, false}, {89, 11, 90, false}, {90, 10, 90, true}, {100, 0, 100, true}, {99, 1, 100, false}} {
		if why := over("disk", "/x", c.used, c.free, c.percent); (why != "") != c.over {
			t.Errorf("%+v: %q", c, why)
		}
	}
	if used, allowed := processes(); used == 0 || allowed < used {
		t.Errorf("%d processes of %d", used, allowed)
	}
	if total, available := memory(); total == 0 || available == 0 || available > total {
		t.Errorf("%d KiB of memory, %d available", total, available)
	}
	for _, bad := range []Watermarks{{Disk: -1}, {Inodes: 101}, {Memory: 200}, {PIDs: -5}} {
		if bad.check() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestDiskIsOfferedUpToItsWatermarkWhereThereAreQuotas(t *testing.T) {
	w := &worker{info: docker.Info{DiskQuota: true, RootDir: t.TempDir()}}
	w.cfg.Watermarks.Disk = 50
	var fs unix.Statfs_t
	if err := unix.Statfs(w.info.RootDir, &fs); err != nil {
		t.Fatal(err)
	}
	if got, half := w.offeredDisk(), protocol.Bytes(fs.Blocks*uint64(fs.Bsize)/2); got == 0 || got > half {
		t.Errorf("offered are %s, half is %s", got, half)
	}
	w.info.RootDir = "/not/on/this/machine"
	if got := w.offeredDisk(); got != 0 {
		t.Errorf("of another machine's disk %s are offered", got)
	}
	w.info = docker.Info{RootDir: t.TempDir()}
	if got := w.offeredDisk(); got != 0 {
		t.Errorf("without quotas %s are offered", got)
	}
}
