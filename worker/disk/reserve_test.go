package disk

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/worker/diskuse"
)

func TestTheReserveIsHeldAndReleased(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newReserve(dir, func(room) int64 { return mib })
	for range 2 { // the second round holds the reserve again
		if err := r.hold(room{}); err != nil || !r.held {
			t.Fatalf("holding the reserve: %v; held: %t", err, r.held)
		}
		use, err := diskuse.Tree(context.Background(), dir, time.Now())
		if err != nil || use.Bytes < mib || use.Inodes < reserveInodes {
			t.Errorf("the reserve takes %+v, want 1 MiB and %d inodes; error %v", use, reserveInodes, err)
		}
		if next := newReserve(dir, nil); !next.held {
			t.Error("a later worker does not notice that the reserve is held")
		}
		if err := r.release(); err != nil || r.held {
			t.Fatalf("releasing the reserve: %v; held: %t", err, r.held)
		}
		if left, _ := os.ReadDir(r.dir); len(left) > 0 {
			t.Errorf("the released reserve left the files %v", left)
		}
	}
}
