package worker

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestAWeakEngineIsSaid(t *testing.T) {
	good := docker.Info{Version: "26.1.4", Seccomp: "builtin", Runc: "1.3.3", Kernel: "6.1.0-13-amd64", CgroupVersion: "2", MAC: "apparmor"}
	for what, c := range map[string]struct {
		change func(*docker.Info)
		says   string // "": nothing
	}{
		"a good one":            {func(*docker.Info) {}, ""},
		"no profile":            {func(i *docker.Info) { i.Seccomp = "unconfined" }, "unconfined"},
		"no seccomp":            {func(i *docker.Info) { i.Seccomp = "" }, "filters no system calls"},
		"a profile of its own":  {func(i *docker.Info) { i.Seccomp = "/etc/docker/seccomp.json" }, ""},
		"an old runc":           {func(i *docker.Info) { i.Runc = "1.1.5+ds1" }, "CVE-2024-21626"},
		"a runc of 2024":        {func(i *docker.Info) { i.Runc = "1.1.12" }, "CVE-2025-31133"},
		"a newer, bad runc":     {func(i *docker.Info) { i.Runc = "1.3.0-rc.1" }, "CVE-2025-31133"},
		"the next series":       {func(i *docker.Info) { i.Runc = "1.4.0" }, ""},
		"one that was mended":   {func(i *docker.Info) { i.Runc = "1.2.8" }, ""},
		"another runtime":       {func(i *docker.Info) { i.Runc = "" }, ""},
		"an old engine":         {func(i *docker.Info) { i.Version = "20.10.5+dfsg1" }, "CVE-2022-36109"},
		"the engine of a tests": {func(i *docker.Info) { i.Version = "20.10.24+dfsg1" }, ""},
		"a kernel":              {func(i *docker.Info) { i.Kernel = "5.15.0-25-generic" }, "CVE-2022-0847"},
		"a mended kernel":       {func(i *docker.Info) { i.Kernel = "5.15.25" }, ""},
	} {
		i := good
		c.change(&i)
		said := strings.Join(enginePosture(i).Warnings, "; ")
		if (said == "") != (c.says == "") || !strings.Contains(said, c.says) {
			t.Errorf("%s: %q, want %q", what, said, c.says)
		}
	}
}

func TestLimitsThatAreTooLowAreSaidWithWhatToRaise(t *testing.T) {
	machine := map[string]uint64{"fs.inotify.max_user_instances": 128, "kernel.pid_max": 1 << 22, "net.netfilter.nf_conntrack_max": 262144}
	get := func(name string) (uint64, bool) { n, ok := machine[name]; return n, ok }
	if low := lowLimits(100, DefaultConnections, get); len(low) != 1 || !strings.Contains(low[0], "sysctl -w fs.inotify.max_user_instances=3328") {
		t.Errorf("of 100 sandboxes: %q", low)
	}
	if low := lowLimits(200, DefaultConnections, get); len(low) != 2 || !strings.Contains(low[1], "sysctl -w net.netfilter.nf_conntrack_max=425984") {
		t.Errorf("of 200 sandboxes: %q", low)
	}
	machine["fs.inotify.max_user_instances"] = 3328
	if low := lowLimits(100, DefaultConnections, get); len(low) != 0 {
		t.Errorf("enough, and: %q", low)
	}
	if n, ok := sysctl("kernel.pid_max"); !ok || n == 0 {
		t.Errorf("this machine's pid_max is %d, %t", n, ok)
	}
	if _, ok := sysctl("kernel.no_such"); ok {
		t.Error("one that is not there is read")
	}
}

func TestTerminalsAreShared(t *testing.T) {
	machine := map[string]uint64{"kernel.pty.max": 4096, "kernel.pty.reserve": 1024}
	get := func(name string) (uint64, bool) { n, ok := machine[name]; return n, ok }
	for slots, want := range map[int]int{1: mostPTYs, 12: mostPTYs, 100: 30, 1000: leastPTYs} {
		if got := terminals(slots, get); got != want {
			t.Errorf("%d sandboxes: %d each, want %d", slots, got, want)
		}
	}
	if err := setTerminals(1, 10); err == nil {
		t.Error("the host's terminals were bounded")
	}
}
