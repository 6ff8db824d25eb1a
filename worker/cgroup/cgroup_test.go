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

var want = Counters{CPU: 1500 * time.Millisecond, Memory: 3000, MemoryLimit: 8192, PIDs: 4, PIDsLimit: 100,
	DiskKnown: true, Read: 4106, Written: 8212}

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
				"sys/blkio/blkio.throttle.io_service_bytes_recursive": "8:0 Read 1\nTotal 1\n",
			}), want)
		})
	}
}

// Where the kernel does not count for control groups, it counts for processes.
func TestDiskIsCountedByProcessOrUnknown(t *testing.T) {
	with := func(files map[string]string, more ...string) string {
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return tree(t, files)
	}
	v1 := func(more ...string) string {
		return with(map[string]string{"proc/7/cgroup": "2:cpuacct:/a\n1:blkio:/a\n", "sys/cpuacct/a/cpuacct.usage": "1",
			"sys/blkio/a/" + ioCounters: "Total 0\n", "sys/blkio/" + ioCounters: "Total 0\n"}, more...)
	}
	v2 := func(more ...string) string {
		return with(map[string]string{"proc/7/cgroup": "0::/a\n", "sys/a/cpu.stat": "usage_usec 0\n"}, more...)
	}
	procs := "7\n8\n9\n" // the second one has ended
	first, second := "rchar: 9\nread_bytes: 4000\nwrite_bytes: 8000\n", "read_bytes: 96\nwrite_bytes: 192\n"
	unknown, counted := Counters{}, Counters{DiskKnown: true, Read: 4096, Written: 8192}
	for name, c := range map[string]struct {
		dir  string
		want Counters
	}{
		"version 1": {v1("sys/cpuacct/a/cgroup.procs", procs,
			"proc/7/io", first, "proc/9/io", second), counted},
		"version 2": {v2("sys/a/cgroup.procs", procs,
			"proc/7/io", first, "proc/9/io", second), counted},
		"version 1, and no count of processes":  {v1("sys/cpuacct/a/cgroup.procs", "7\n"), unknown},
		"version 2, and no count of processes":  {v2("sys/a/cgroup.procs", "7\n"), unknown},
		"version 2, and a count that is unread": {v2("sys/a/cgroup.procs", "7\n", "proc/7/io/directory", ""), unknown},
	} {
		if strings.HasPrefix(name, "version 1") {
			c.want.CPU = 1
		}
		t.Run(name, func(t *testing.T) { check(t, c.dir, c.want) })
	}
	check(t, v2("sys/a/io.stat", ""), Counters{DiskKnown: true}) // it has read and written nothing
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
