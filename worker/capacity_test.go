package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestDiskIsOfferedOnlyWithQuotas(t *testing.T) {
	w := &worker{info: docker.Info{DiskQuota: true, RootDir: t.TempDir()}}
	w.cfg.Watermarks.Disk = 50
	if got := w.capacity().disk(); got == 0 {
		t.Error("the worker offers no disk, although the engine can enforce quotas")
	}
	w.info.DiskQuota = false
	if got := w.capacity().disk(); got != 0 {
		t.Errorf("the worker offers %s of disk, although the engine cannot enforce quotas", got)
	}
}
