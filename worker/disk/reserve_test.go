package disk

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/worker/diskuse"
)

func TestReserveIsHeldAndReleased(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newReserve(dir, func(room) int64 { return mib })
	for range 2 { // it can be held again after a release
		if err := r.hold(room{}); err != nil || !r.held {
			t.Fatalf("hold: %v", err)
		}
		use, err := diskuse.Tree(context.Background(), dir, time.Now())
		if err != nil || use.Bytes < mib || use.Inodes < reserveInodes {
			t.Errorf("the reserve has %+v, %v", use, err)
		}
		if next := newReserve(dir, nil); !next.held {
			t.Error("the next worker does not find the reserve")
		}
		if err := r.release(); err != nil || r.held {
			t.Fatalf("release: %v", err)
		}
		if left, _ := os.ReadDir(r.dir); len(left) > 0 {
			t.Errorf("release left %v", left)
		}
	}
}
