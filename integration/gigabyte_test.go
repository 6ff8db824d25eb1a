package integration

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// line is repeated until the output has one gigabyte.
const line = "0123456789abcdef\n"

// checked is a writer for output that repeats the line. It counts the bytes and fails at the first wrong byte.
type checked struct {
	bytes, heap int64
}

func (c *checked) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		want := line[c.bytes%int64(len(line)):]
		n := min(len(want), len(rest))
		if string(rest[:n]) != want[:n] {
			return 0, fmt.Errorf("byte %d is wrong", c.bytes)
		}
		c.bytes += int64(n)
		rest = rest[n:]
	}
	if c.bytes%(64<<20) < int64(len(p)) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		c.heap = max(c.heap, int64(m.HeapInuse))
	}
	return len(p), nil
}

func TestX1_AGigabyteStreamsInBoundedMemory(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{OutputRate: 64 * mebibyte}) // three quarters of the gigabyte exceed the burst
	ctx := f.Context(2 * time.Minute)
	s := f.Create("gigabyte")
	const size = 1 << 30
	out := &checked{}
	began := time.Now()
	r, err := s.Exec(ctx, protocol.ExecSpec{
		Command: []string{"sh", "-c", fmt.Sprintf("yes %s | head -c %d", strings.TrimSpace(line),
			size)}, OutputLimit: 2 << 30,
	}, sdk.WithStdout(out))
	if err != nil || code(r) != "0" || out.bytes != size || r.Truncated || r.StdoutSHA256 == "" {
		t.Fatalf("received %d of %d bytes, exit code %s, hash %q, %v", out.bytes, size, code(r), r.StdoutSHA256, err)
	}
	took := time.Since(began)
	worker := f.Processes("worker")[0].PeakMemory()
	supervisor := mustPrint(t, f, s, "awk '/VmHWM/ {print $2}' /proc/1/status")
	t.Logf("%.0f MiB/s; peak memory: worker %d MiB, supervisor %s KiB, this process's heap (client and NATS) %d MiB",
		size/took.Seconds()/(1<<20), worker>>20, supervisor, out.heap>>20)
	var kib int64
	if _, err := fmt.Sscan(supervisor, &kib); err != nil || kib > 64<<10 {
		t.Errorf("the supervisor had %s KiB, %v", supervisor, err)
	}
	if worker > 256<<20 || out.heap > 512<<20 {
		t.Errorf("too much memory")
	}
	f.Judge()
}
