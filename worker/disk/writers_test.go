package disk

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/diskuse"
)

var (
	one  = protocol.SandboxKey{Tenant: "default", ID: "one"}
	two  = protocol.SandboxKey{Tenant: "default", ID: "two"}
	none protocol.SandboxKey
)

const mib = 1 << 20

// sampleOf returns a sample of two sandboxes: how many bytes each uses on device 1, and how many bytes its processes
// have written.
func sampleOf(second int, free, oneHas, twoHas, oneWrote, twoWrote int64) *sample {
	use := func(n int64) diskuse.Usage {
		return diskuse.Usage{Device: 1, Bytes: n, Inodes: n / mib, Recent: n, Complete: true}
	}
	return &sample{
		at: time.Unix(int64(second), 0), free: map[uint64]int64{1: free},
		use:     map[source]diskuse.Usage{{one, "layer"}: use(oneHas), {two, "layer"}: use(twoHas)},
		written: map[source]int64{{one, "processes"}: oneWrote, {two, "processes"}: twoWrote},
	}
}

func TestTheFastestWriterIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, now *sample
		device      uint64
		key         protocol.SandboxKey
		by          string
	}{
		"the sandbox whose files grew the most": {
			sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 110*mib, 90*mib, 10*mib, 90*mib), 1, two, byUsage},
		"not the sandbox with the largest files": {
			sampleOf(0, 900*mib, 800*mib, 0, 0, 0), sampleOf(1, 890*mib, 800*mib, 10*mib, 0, 10*mib), 1, two, byUsage},
		"not a sandbox that overwrites the same bytes": {
			sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 890*mib, 100*mib, 10*mib, 500*mib, 10*mib), 1, two, byUsage},
		"a sandbox that writes to a deleted file": {
			sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 101*mib, 0, 1*mib, 99*mib), 1, two, byWritten},
		"no sandbox that wrote only a small part of the lost space": {
			sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 100*mib, 0, 20*mib, 0), 1, none, byUsage},
		"no sandbox if the disk loses no space": {
			sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 900*mib, 100*mib, 0, 500*mib, 0), 1, none, byUsage},
		"no sandbox that writes to another device": {
			sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 200*mib, 0, 0, 0), 2, none, byUsage},
	} {
		if got := fastestWriter(c.before, c.now, c.device, false); got.key != c.key || got.by != c.by {
			t.Errorf("%s: got %+v, want %v because %s", name, got, c.key, c.by)
		}
	}
}

func TestWrittenBytesCountForSandboxesWhoseFilesAreCountedPartially(t *testing.T) {
	t.Parallel()
	part := sampleOf(1, 0, 300*mib, 1*mib, 0, 0)
	part.use[source{one, "layer"}] = diskuse.Usage{Device: 1, Bytes: 300 * mib}
	if got := fastestWriter(sampleOf(0, mib, 0, 0, 0, 0), part, 1, false); got.key != two {
		t.Errorf("the files of the first sandbox were counted only partially: got %+v, want %v", got, two)
	}
	part = sampleOf(1, 800*mib, 100*mib, 0, 90*mib, 10*mib)
	part.use[source{two, "layer"}] = diskuse.Usage{Device: 1}
	got := fastestWriter(sampleOf(0, 900*mib, 100*mib, 0, 0, 0), part, 1, false)
	if got.key != two || got.by != byWritten {
		t.Errorf("got %+v, want %v, whose files were counted only partially, because %s", got, two, byWritten)
	}
}

func TestTheFastestWriterOfInodesIsFound(t *testing.T) {
	t.Parallel()
	got := fastestWriter(sampleOf(0, mib, 0, 0, 0, 0), sampleOf(1, mib, 9*mib, 2*mib, 0, 0), 1, true)
	if got.key != one || got.rate != 9 {
		t.Errorf("got %+v, want %v at 9 inodes a second", got, one)
	}
}
