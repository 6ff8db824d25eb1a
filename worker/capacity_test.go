package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestDiskIsOfferedOnlyWithQuotas(t *testing.T) {
	w := &worker{info: docker.Info{DiskQuota: true, RootDir: t.TempDir()}}
	w.cfg.Watermarks.Disk = 50
	if got := w.capacity().disk(); got == 0 {
		t.Error("no disk is offered, although quotas can be enforced")
	}
	w.info.DiskQuota = false
	if got := w.capacity().disk(); got != 0 {
		t.Errorf("%s are offered without quotas", got)
	}
}
