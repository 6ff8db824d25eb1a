package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/doctor"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

// A worker with no version of the wire in common with the coordinators gets no sandboxes: explain, host list and doctor
// say why. A sandbox that is there already stays, and the host gets sandboxes again once its worker is replaced.
func TestAWorkerOfAnUnsupportedVersionGetsNoSandboxes(t *testing.T) {
	clean(t)
	conn := startForWorker(t)
	register := func(oldest, speaks int) {
		t.Helper()
		h := &protocol.Host{Worker: "w1", HostID: "h1", Instance: "i1", Build: version, Slots: 9, CPU: 9, Memory: 9 << 30,
			Healthy: true, Firewall: protocol.FirewallNFTables, SeenAt: time.Now(), Oldest: oldest, Speaks: speaks,
			Profiles: []string{protocol.ProfileHardened}}
		if err := conn.RegisterHost(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	beating(t, conn, &protocol.Heartbeat{Worker: "w1", HostID: "h1", Instance: "i1", Healthy: true})
	shows := func(what, line, text string) {
		t.Helper()
		var got string
		eventually.Holds(t, patience, what, func() bool {
			_, got, _ = call(t.Context(), "", strings.Fields(line)...)
			return strings.Contains(got, text)
		})
	}
	unsupported := func() bool {
		return slices.Contains(codesOf(examine(t), doctor.Error), string(doctor.VersionUnsupported))
	}
	register(0, 0) // an earlier worker
	must(t, "sandbox", "create", "--id", "before", "--image", "busybox", "--wait=false")
	shows("an earlier worker gets a sandbox", "sandbox explain before", "worker w1 prepares it")
	if unsupported() {
		t.Error("doctor finds an earlier worker unsupported")
	}

	register(protocol.Version+1, protocol.Version+1)
	const why = "its worker speaks version 2 of the wire, and the coordinator version 1: upgrade the coordinators"
	shows("the list of hosts says why", "host list", why)
	must(t, "sandbox", "create", "--id", "after", "--image", "busybox", "--wait=false")
	shows("the explanation says why", "sandbox explain after", why)
	eventually.Holds(t, patience, "doctor finds the version", unsupported)
	shows("the earlier sandbox stays", "sandbox explain before", "worker w1 prepares it")

	register(protocol.OldestVersion, protocol.Version+1)
	shows("a worker that shares a version gets the sandbox", "sandbox explain after", "worker w1 prepares it")
	if unsupported() {
		t.Error("doctor still finds the version unsupported")
	}
}
