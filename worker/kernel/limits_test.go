package kernel

import (
	"strings"
	"testing"
)

const connections = 2048

func TestAWarningAboutALowLimitNamesTheValueToSet(t *testing.T) {
	machine := map[string]uint64{
		"fs.inotify.max_user_instances": 128, "kernel.pid_max": 1 << 22, "net.netfilter.nf_conntrack_max": 262144,
	}
	get := func(name string) (uint64, bool) { n, ok := machine[name]; return n, ok }
	low := lowLimits(100, connections, get)
	if len(low) != 1 || !strings.Contains(low[0], "sysctl -w fs.inotify.max_user_instances=3328") {
		t.Errorf("for 100 sandboxes, the warnings are %q", low)
	}
	low = lowLimits(200, connections, get)
	if len(low) != 2 || !strings.Contains(low[1], "sysctl -w net.netfilter.nf_conntrack_max=425984") {
		t.Errorf("for 200 sandboxes, the warnings are %q", low)
	}
	machine["fs.inotify.max_user_instances"] = 3328
	if low := lowLimits(100, connections, get); len(low) != 0 {
		t.Errorf("all limits suffice, but there are the warnings %q", low)
	}
}

func TestKernelParametersAreRead(t *testing.T) {
	if n, ok := sysctl("kernel.pid_max"); !ok || n == 0 {
		t.Errorf("kernel.pid_max of this machine: got %d, found: %t", n, ok)
	}
	if _, ok := sysctl("kernel.no_such"); ok {
		t.Error("a kernel parameter that does not exist was found")
	}
}
