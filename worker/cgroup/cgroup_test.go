package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var want = Counters{CPU: 1500 * time.Millisecond, Memory: 3000, MemoryLimit: 8192, PIDs: 4, PIDsLimit: 100, Read: 4106,
	Written: 8212}

func TestVersion2(t *testing.T) {
	dir := tree(t, map[string]string{
		"proc/7/cgroup":             "0::/docker/abc\n",
		"sys/docker/abc/cpu.stat":   "usage_usec 1500000\nuser_usec 1\n",
		"sys/docker/abc/memory.max": "8192\n", "sys/docker/abc/memory.current": "4000\n",
		"sys/docker/abc/memory.stat":  "anon 5\ninactive_file 1000\n",
		"sys/docker/abc/pids.current": "4\n", "sys/docker/abc/pids.max": "100\n",
		"sys/docker/abc/io.stat": "8:0 rbytes=4096 wbytes=8192 rios=1\n8:16 rbytes=10 wbytes=20\n",
	})
	check(t, dir, want)
}

func TestVersion1(t *testing.T) {
	for name, mounted := range map[string]string{"together": "cpu,cpuacct", "alone": "cpuacct"} {
		t.Run(name, func(t *testing.T) {
			check(t, tree(t, map[string]string{
				"proc/7/cgroup": "5:pids:/d/abc\n4:blkio:/d/abc\n3:memory:/d/abc\n" +
					"2:cpu,cpuacct:/d/abc\n1:name=systemd:/x\n0::/d/abc\n",
				"sys/" + mounted + "/d/abc/cpuacct.usage": "1500000000\n",
				"sys/memory/d/abc/memory.usage_in_bytes":  "4000\n", "sys/memory/d/abc/memory.limit_in_bytes": "8192\n",
				"sys/memory/d/abc/memory.stat": "inactive_file 1\ntotal_inactive_file 1000\n",
				"sys/pids/d/abc/pids.current":  "4\n",
				"sys/pids/d/abc/pids.max":      "100\n",
				"sys/blkio/d/abc/blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 8192\n" +
					"8:0 Sync 1\n8:1 Read 10\n8:1 Write 20\nTotal 12318\n",
			}), want)
		})
	}
}

func check(t *testing.T, dir string, want Counters) {
	t.Helper()
	g, err := of(filepath.Join(dir, "proc"), filepath.Join(dir, "sys"), 7)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := g.Read(); got != want || err != nil {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
}

func TestNoLimitIsZero(t *testing.T) {
	check(t, tree(t, map[string]string{"proc/7/cgroup": "0::/a\n", "sys/a/cpu.stat": "usage_usec 1\n",
		"sys/a/pids.max":   "max\n",
		"sys/a/memory.max": "max\n"}), Counters{CPU: time.Microsecond})
	check(t, tree(t, map[string]string{"proc/7/cgroup": "1:cpuacct:/a\n2:memory:/a\n", "sys/cpuacct/a/cpuacct.usage": "1",
		"sys/memory/a/memory.limit_in_bytes": "9223372036854771712\n"}), Counters{CPU: 1})
}

func TestAContainerThatHasEndedIsNotFound(t *testing.T) {
	dir := tree(t, map[string]string{"proc/7/cgroup": "0::/../../gone\n", "sys/x": ""})
	if _, err := of(filepath.Join(dir, "proc"), dir, 8); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("no such process: %v", err)
	}
	g, err := of(filepath.Join(dir, "proc"), filepath.Join(dir, "sys"), 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Read(); protocol.CodeOf(err) != protocol.NotFound || !strings.HasPrefix(g.path, dir) {
		t.Errorf("no such group at %s: %v", g.path, err)
	}
}

func TestNetworkSumsInterfacesWithoutLoopback(t *testing.T) {
	var many strings.Builder
	many.WriteString("Inter-| Receive\n face |bytes\n    lo: 99 0 0 0 0 0 0 0 99 0 0 0 0 0 0 0\n")
	many.WriteString("  eth0: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  eth1:5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n odd: 7\n")
	dir := tree(t, map[string]string{"7/net/dev": many.String(),
		"8/net/dev": many.String() + strings.Repeat("x", 2*mostRead)})
	for _, pid := range []int{7, 8} {
		if received, sent, err := networkOf(dir, pid); received != 15 || sent != 26 || err != nil {
			t.Errorf("received %d, sent %d, %v, want 15 and 26", received, sent, err)
		}
	}
}

func TestThisProcessCanBeRead(t *testing.T) {
	g, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if c, err := g.Read(); err != nil || c.CPU <= 0 {
		t.Errorf("read %+v, %v", c, err)
	}
	if _, _, err := Network(os.Getpid()); err != nil {
		t.Error(err)
	}
}
