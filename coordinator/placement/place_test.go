package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// host returns a host with ten slots and 10 GiB, of which n slots are taken by sandboxes of 1 GiB.
func host(worker string, n int) *protocol.Host {
	return &protocol.Host{
		Worker: worker, HostID: "h-" + worker, Instance: "i-" + worker, State: protocol.HostReady,
		Slots: 10, Memory: 10 << 30, CPU: 4,
		Sandboxes: n, UsedMem: protocol.Bytes(n) << 30, Firewall: protocol.FirewallNFTables, Mounts: []string{"/srv/cache"},
	}
}

func wants(memory protocol.Bytes) *protocol.Sandbox {
	return &protocol.Sandbox{State: protocol.StatePending, Spec: protocol.SandboxSpec{Memory: memory, CPU: 1}}
}

func TestPlaceChoosesTheHostWithTheMostRoom(t *testing.T) {
	chosen, _ := Place(wants(1<<30), []*protocol.Host{host("w1", 3), host("w2", 1), host("w3", 2)}, nil)
	if chosen == nil || chosen.Worker != "w2" {
		t.Errorf("placed on %+v, want w2", chosen)
	}
	fewSlots := host("w1", 0)
	fewSlots.Sandboxes = 9
	if chosen, _ := Place(wants(1<<30), []*protocol.Host{fewSlots, host("w2", 5)}, nil); chosen.Worker != "w2" {
		t.Errorf("placed on %s, which has only one slot left", chosen.Worker)
	}
}

// Cores are counted, but not reserved. The host that has promised fewer cores is chosen, even if all hosts have
// promised more cores than they have.
func TestPlaceCountsCores(t *testing.T) {
	busy, idle := host("busy", 1), host("idle", 1)
	for busy.UsedCPU, idle.UsedCPU = 2, 1; busy.UsedCPU < 20; busy.UsedCPU, idle.UsedCPU = busy.UsedCPU+4, idle.UsedCPU+4 {
		if chosen, refusals := Place(wants(1<<30), []*protocol.Host{busy, idle}, nil); chosen != idle {
			t.Errorf("with %v and %v of %v cores promised, the idle host is not chosen: %+v", busy.UsedCPU, idle.UsedCPU,
				idle.CPU, refusals)
		}
	}
}

func TestASandboxGoesToAHostThatAllowsItsProfile(t *testing.T) {
	older, strict, loose := host("older", 0), host("strict", 1), host("loose", 2)
	strict.Profiles, loose.Profiles = []string{protocol.ProfileHardened}, []string{protocol.ProfileStandard}
	for _, c := range []struct {
		profile string
		hosts   []*protocol.Host
		want    *protocol.Host
	}{
		{protocol.ProfileHardened, []*protocol.Host{loose, strict}, strict}, {protocol.ProfileStandard,
			[]*protocol.Host{strict, loose}, loose},
		{protocol.ProfileHardened, []*protocol.Host{older, loose}, older}, {protocol.ProfileStandard,
			[]*protocol.Host{older, loose}, loose},
	} {
		b := wants(1 << 30)
		b.Spec.Profile = c.profile
		if chosen, refusals := Place(b, c.hosts, nil); chosen != c.want {
			t.Errorf("a sandbox with profile %s is not placed on %s: %+v", c.profile, c.want.Worker, refusals)
		}
	}
	b := wants(1 << 30)
	b.Spec.Profile = protocol.ProfileHardened
	if e := Impossible(b, []*protocol.Host{loose}); e == nil || e.Field != "spec.profile" ||
		e.Code != protocol.PermissionDenied {
		t.Errorf("if no host allows the profile, the error is %v", e)
	}
}

// A host whose worker speaks no version of the coordinator gets neither new sandboxes nor those that resume.
func TestAHostOfAnUnsupportedVersionIsRefused(t *testing.T) {
	later, same := host("w1", 0), host("w2", 5)
	later.Unsupported = later.VersionRefusal(2, 2)
	b := wants(1 << 30)
	chosen, refusals := Place(b, []*protocol.Host{later, same}, nil)
	if chosen != same || !strings.Contains(refusals[0].Reason, "version 1 of the wire") {
		t.Errorf("placed on %+v: %+v", chosen, refusals)
	}
	x := NewIndex()
	x.SetHosts([]Row{{Host: later, Version: 1}, {Host: same, Version: 1}})
	if chosen := x.Place(b, KindOf(b)); chosen != same {
		t.Errorf("the index chose %+v", chosen)
	}
	stopped := wants(1 << 30)
	stopped.Resuming, stopped.HostID, stopped.Worker = true, later.HostID, "w1"
	if chosen, refusals := Place(stopped, []*protocol.Host{later, same}, nil); chosen != nil {
		t.Errorf("a stopped sandbox resumes on %s: %+v", chosen.Worker, refusals)
	}
	if e := Impossible(b, []*protocol.Host{later}); e != nil {
		t.Errorf("a sandbox is refused for good because of a worker that can be upgraded: %v", e)
	}
}

func TestQ12_WaitingSaysWhyPerHost(t *testing.T) {
	change := func(worker string, f func(*protocol.Host)) *protocol.Host {
		h := host(worker, 0)
		f(h)
		return h
	}
	b := wants(4 << 30)
	b.Spec.Mounts = []protocol.Mount{{Source: "/srv/cache/../secret", Target: "/t"}}
	hosts := []*protocol.Host{
		change("a-full", func(h *protocol.Host) { h.Sandboxes = 10 }),
		change("b-memory", func(h *protocol.Host) { h.UsedMem = 7 << 30 }),
		change("c-suspect", func(h *protocol.Host) { h.State = protocol.HostSuspect }),
		change("d-sick", func(h *protocol.Host) { h.State, h.Problem = protocol.HostUnhealthy, "no answer" }),
		change("e-mount", func(*protocol.Host) {}),
		change("f-open", func(h *protocol.Host) { h.Firewall, h.Problem = "", "no right" }),
	}
	chosen, refusals := Place(b, hosts, nil)
	if chosen != nil {
		t.Fatalf("placed on %s", chosen.Worker)
	}
	for i, want := range []string{"slots", "memory", "suspect", "no answer", "spec.mounts[0].source",
		"networks of sandboxes apart: no right"} {
		if r := refusals[i]; r.Worker != hosts[i].Worker || !strings.Contains(r.Reason, want) {
			t.Errorf("refusal %d is %+v, want a refusal of %s about %q", i, r, hosts[i].Worker, want)
		}
	}
	if why := Impossible(b, hosts); why == nil || why.Code != protocol.PermissionDenied ||
		why.Field != "spec.mounts[0].source" {
		t.Errorf("a mount that no host allows leads to the error %v", why)
	}
	b.Spec.Mounts[0].Source = "/srv/cache/go"
	if why := Impossible(b, hosts); why != nil {
		t.Errorf("a mount that a busy host allows leads to the error %v", why)
	}
}

func TestAWritableMountGoesToAHostThatLetsItBeWritten(t *testing.T) {
	reader, writer := host("reader", 0), host("writer", 5)
	writer.Mounts, writer.Writable = []string{"/srv/cache", "/srv/cache/fixed"}, []string{"/srv/cache"}
	hosts := []*protocol.Host{reader, writer}
	b := wants(1 << 30)
	for source, want := range map[string]string{"/srv/cache/go": "writer", "/srv/cache/fixed": "", "/srv/cache": "",
		"/srv": "", "/srv/cachet": ""} {
		b.Spec.Mounts = []protocol.Mount{{Source: source, Target: "/t", Writable: true}}
		chosen, refusals := Place(b, hosts, nil)
		got := ""
		if chosen != nil {
			got = chosen.Worker
		}
		if got != want {
			t.Errorf("a sandbox with mount %s is placed on %q, want %q: %v", source, got, want, refusals)
		}
		field := "writable"
		if !strings.HasPrefix(source, "/srv/cache/") && source != "/srv/cache" {
			field = "source"
		}
		if why := Impossible(b, hosts); (why == nil) != (want != "") || why != nil &&
			(why.Code != protocol.PermissionDenied || why.Field != "spec.mounts[0]."+field) {
			t.Errorf("mount %s leads to the error %v", source, why)
		}
	}
	b.Spec.Mounts = []protocol.Mount{{Source: "/srv/cache/go", Target: "/t"}}
	if chosen, _ := Place(b, hosts, nil); chosen != reader {
		t.Errorf("a sandbox with a read-only mount is placed on %s", chosen.Worker)
	}
}

func TestAServiceGoesToAHostThatAllowsItsProfile(t *testing.T) {
	older, strict, loose := host("older", 0), host("strict", 3), host("loose", 5)
	strict.ServiceProfiles = []string{protocol.ProfileHardened}
	loose.ServiceProfiles = []string{protocol.ProfileHardened, protocol.ProfileStandard}
	for profile, want := range map[string]string{
		protocol.ProfileHardened: "strict", // the older worker would not harden the service
		protocol.ProfileStandard: "older",
		"":                       "older", // a request of an older version, which had no profiles of services
	} {
		b := wants(1 << 30)
		b.Spec.OptionalServices = protocol.Services{"db": {Profile: profile}}
		if chosen, refusals := Place(b, []*protocol.Host{older, strict, loose}, nil); chosen == nil ||
			chosen.Worker != want {
			t.Errorf("a service with profile %q is placed on %+v, want %s: %v", profile, chosen, want, refusals)
		}
	}
	b := wants(1 << 30)
	b.Spec.RequiredServices = protocol.Services{"db": {Profile: protocol.ProfileStandard}}
	chosen, refusals := Place(b, []*protocol.Host{strict}, nil)
	if chosen != nil || !strings.HasPrefix(refusals[0].Reason, "spec.required_services.db.profile: ") {
		t.Errorf("placed on %+v: %v", chosen, refusals)
	}
	if why := Impossible(b, []*protocol.Host{strict}); why == nil || why.Code != protocol.PermissionDenied ||
		why.Field != "spec.required_services.db.profile" {
		t.Errorf("a profile that no host allows leads to the error %v", why)
	}
}

func TestASandboxWithADiskLimitGoesToAHostThatCanEnforceIt(t *testing.T) {
	without, with := host("without", 0), host("with", 5)
	with.DiskQuota, with.Disk = true, 100<<30
	for field, change := range map[string]func(*protocol.SandboxSpec){
		"spec.disk": func(s *protocol.SandboxSpec) { s.Disk = 1 << 30 },
		"spec.optional_services.db.disk": func(s *protocol.SandboxSpec) {
			s.OptionalServices = protocol.Services{"db": {Disk: 1 << 30}}
		},
	} {
		b := wants(1 << 30)
		change(&b.Spec)
		chosen, refusals := Place(b, []*protocol.Host{with, without}, nil)
		if chosen != with || !strings.HasPrefix(refusals[1].Reason, field+": without cannot limit") {
			t.Errorf("%s is placed on %+v: %v", field, chosen, refusals)
		}
		if chosen, _ := Place(b, []*protocol.Host{without}, nil); chosen != without {
			t.Errorf("%s: no host can enforce the limit, so the sandbox should go to any host, whose engine refuses it", field)
		}
		if why := Impossible(b, []*protocol.Host{without}); why != nil {
			t.Errorf("%s: %v", field, why)
		}
		away := &protocol.Host{Worker: "away", HostID: "h-away", State: protocol.HostSuspect}
		if chosen, _ := Place(b, []*protocol.Host{without, away}, nil); chosen != nil {
			t.Errorf("a limit %s is placed on %s while a host that may be able to enforce it is away", field, chosen.Worker)
		}
	}
	if chosen, _ := Place(wants(1<<30), []*protocol.Host{with, without}, nil); chosen != without {
		t.Errorf("a sandbox without a limit is placed on %+v", chosen)
	}
}

func TestASandboxGoesToAHostWithEnoughCores(t *testing.T) {
	small, large := host("small", 0), host("large", 5)
	small.Cores, large.Cores = 2, 16
	for field, change := range map[string]func(*protocol.SandboxSpec){
		"spec.cpu": func(s *protocol.SandboxSpec) { s.CPU = 8 },
		"spec.optional_services.db.cpu": func(s *protocol.SandboxSpec) {
			s.OptionalServices = protocol.Services{"db": {CPU: 8}}
		},
	} {
		b := wants(1 << 30)
		change(&b.Spec)
		chosen, refusals := Place(b, []*protocol.Host{large, small}, nil)
		if chosen != large || refusals[1].Reason != field+": 8 wanted, small has 2" {
			t.Errorf("%s is placed on %+v: %v", field, chosen, refusals)
		}
		impossible := Impossible(b, []*protocol.Host{small})
		if impossible == nil || impossible.Field != field ||
			impossible.Message != "8 wanted, and the largest host has 2" {
			t.Errorf("%s exceeds the cores of every host: got the error %v", field, impossible)
		}
		away := &protocol.Host{Worker: "away", HostID: "h-away", State: protocol.HostSuspect}
		if chosen, _ := Place(b, []*protocol.Host{small, away}, nil); chosen != nil {
			t.Errorf("a limit %s is placed on %s while a host that may have the cores is away", field, chosen.Worker)
		}
	}
	b := wants(1 << 30)
	b.Spec.CPU = 2
	if chosen, _ := Place(b, []*protocol.Host{large, small}, nil); chosen != small {
		t.Errorf("a sandbox that fits on both hosts is placed on %+v, want the emptier one", chosen)
	}
}

func TestDiskIsReservedAndPIDsAreCounted(t *testing.T) {
	large, small := host("large", 1), host("small", 1)
	for _, h := range []*protocol.Host{large, small} {
		h.DiskQuota, h.Disk, h.PIDs = true, 100<<30, 100_000
	}
	large.Disk = 200 << 30
	hosts := []*protocol.Host{large, small}
	b := wants(0)
	b.Spec.Disk, b.Spec.PIDs = 30<<30, 10_000
	b.Spec.RequiredServices = protocol.Services{"db": {Disk: 20 << 30, PIDs: 10_000}}
	var refusals []protocol.HostRefusal
	for range 7 {
		var chosen *protocol.Host
		if chosen, refusals = Place(b, hosts, nil); chosen != nil {
			UsageOf(&b.Spec).AddTo(chosen)
		}
	}
	if want := "50GiB of disk are wanted, 0B of 200GiB are free"; refusals[0].Reason != want {
		t.Errorf("the seventh sandbox is refused because %q, want %q", refusals[0].Reason, want)
	}
	if large.UsedPIDs != 80_000 || small.UsedPIDs != 40_000 || large.UsedDisk != 200<<30 {
		t.Errorf("the usage of the hosts is wrong: %+v, %+v", large, small)
	}
	// The host that has promised less of its scarcest resource is chosen. Hosts may promise more pids than they have.
	emptier := func(change func(a, b *protocol.Host)) {
		t.Helper()
		a, b := host("a", 1), host("b", 1)
		a.Disk, b.Disk, a.PIDs, b.PIDs = 100<<30, 100<<30, 100_000, 100_000
		change(a, b)
		if chosen, refusals := Place(wants(1<<30), []*protocol.Host{a, b}, nil); chosen != b {
			t.Errorf("placed on %+v: %v", chosen, refusals)
		}
	}
	emptier(func(a, b *protocol.Host) { a.UsedPIDs, b.UsedPIDs = 130_000, 120_000 })
	// Pids are not scarce while fewer are promised than the host has.
	emptier(func(a, b *protocol.Host) { a.UsedPIDs, b.UsedPIDs, a.Sandboxes = 0, 100_000, 2 })
	emptier(func(a, b *protocol.Host) { a.UsedDisk, b.UsedDisk = 90<<30, 80<<30 })
}

func TestANetworkGoesToAHostWhoseOperatorDoesNotDenyIt(t *testing.T) {
	strict, loose := host("strict", 0), host("loose", 5)
	strict.DenyNetworks = []string{"10.1.0.0/16"}
	strict.AllowNetworks, loose.AllowNetworks = []string{"10.0.0.0/8", "192.0.2.0/24"}, []string{"10.0.0.0/8",
		"192.0.0.0/16"}
	hosts := []*protocol.Host{strict, loose}
	for allow, want := range map[string]*protocol.Host{
		"10.1.2.0/24": loose, "10.1.0.0/16": loose,
		"10.0.0.0/8":  strict, // the rest of the range is reachable
		"10.2.0.0/16": strict,
	} {
		b := wants(1 << 30)
		b.Spec.Network = &protocol.Network{Mode: protocol.NetworkAllow, Allow: []string{"192.0.2.0/24", allow}}
		if chosen, refusals := Place(b, hosts, nil); chosen != want {
			t.Errorf("a sandbox that may reach %s is not placed on %s: %v", allow, want.Worker, refusals)
		}
		why := Impossible(b, hosts[:1])
		if (why == nil) != (want == strict) || why != nil &&
			(why.Field != "spec.network.allow[1]" || why.Code != protocol.PermissionDenied) {
			t.Errorf("with the strict host alone, the range %s leads to the error %v", allow, why)
		}
	}
}

func TestPrivateRangesAndPortsNeedTheOperatorsPermission(t *testing.T) {
	open, shut := host("open", 5), host("shut", 0)
	open.AllowNetworks, open.Ports, shut.Ports = []string{"10.1.0.0/16"}, "20000-20999", "30000-30999"
	older := host("older", 0) // an older worker does not report what its operator allows
	for what, c := range map[string]struct {
		allow               string
		port                int
		onOpen, onShut, old bool
	}{
		"an allowed range":        {allow: "10.1.2.0/24", onOpen: true},
		"more than is allowed":    {allow: "10.0.0.0/8"},
		"a public range":          {allow: "8.8.8.0/24", onOpen: true, onShut: true, old: true},
		"everything":              {allow: "0.0.0.0/0", onOpen: true, onShut: true, old: true},
		"a port that one allows":  {port: 20500, onOpen: true, old: true},
		"a port that none allows": {port: 8080, old: true},
		"a port that is assigned": {port: 0, onOpen: true, onShut: true, old: true},
		"the last port of a host": {port: 30999, onShut: true, old: true},
	} {
		b := wants(1 << 30)
		b.Spec.Ports = []protocol.Port{{Container: 1}, {Container: 2, Host: c.port}}
		field := "spec.ports[1].host"
		if c.allow != "" {
			b.Spec.Network, field = &protocol.Network{Mode: protocol.NetworkAllow,
				Allow: []string{c.allow}}, "spec.network.allow[0]"
		}
		for h, want := range map[*protocol.Host]bool{open: c.onOpen, shut: c.onShut, older: c.old} {
			why := Impossible(b, []*protocol.Host{h})
			if (why == nil) != want || why != nil &&
				(why.Field != field || why.Code != protocol.PermissionDenied ||
					why.Reason != protocol.ReasonPolicyDenied) {
				t.Errorf("%s on host %s leads to the error %v", what, h.Worker, why)
			}
		}
	}
}

func TestTheOperatorLimitsTheProcessesOfAContainer(t *testing.T) {
	h, older := host("bounded", 0), host("older", 0)
	h.MostPIDs = 4096
	b := wants(1 << 30)
	b.Spec.PIDs = 4096
	b.Spec.RequiredServices = protocol.Services{"db": {PIDs: 5000}}
	if why := Impossible(b, []*protocol.Host{h}); why == nil || why.Field != "spec.required_services.db.pids" ||
		why.Code != protocol.PermissionDenied {
		t.Errorf("got %v", why)
	}
	if why := Impossible(b, []*protocol.Host{older}); why != nil {
		t.Errorf("a host that reports no limit refuses the sandbox: %v", why)
	}
}

func TestRequirementsThatNoHostAloneMeetsAreRefusedAtOnce(t *testing.T) {
	h1, h2, both := host("h1", 0), host("h2", 0), host("both", 10)
	h1.Mounts, h2.Mounts, both.Mounts = []string{"/a"}, []string{"/b"}, []string{"/a", "/b"}
	b := wants(1 << 30)
	b.Spec.Mounts = []protocol.Mount{{Source: "/a", Target: "/x"}, {Source: "/b", Target: "/y"}}
	why := Impossible(b, []*protocol.Host{h2, h1})
	if why == nil || why.Reason != protocol.ReasonNoHost || why.Field != "spec" ||
		why.Message != "no host alone meets all requirements; "+
			"h1: spec.mounts[1].source: /b is not below the allow-list of h1; "+
			"h2: spec.mounts[0].source: /a is not below the allow-list of h2" {
		t.Errorf("got %v", why)
	}
	if why := Impossible(b, []*protocol.Host{h1, h2, both}); why != nil {
		t.Errorf("the host that meets all requirements is only busy, but the error is %v", why)
	}
	// The error names the requirement that no host meets, although each host also fails another requirement.
	h1.Runtimes, b.Spec.Runtime, b.Spec.Tools = []string{"runsc"}, "runsc", []string{"git"}
	if why := Impossible(b, []*protocol.Host{h1, h2}); why == nil || why.Field != "spec.tools[0]" ||
		why.Reason != protocol.ReasonToolUnavailable {
		t.Errorf("got %v", why)
	}
}

// A sandbox larger than the largest empty host is refused at once. If the worker of a known host has not registered,
// that host may be larger. Then the sandbox waits, and that host's refusal says that its offer is unknown.
func TestASandboxLargerThanAnyHostIsRefusedAtOnce(t *testing.T) {
	small, large := host("small", 0), host("large", 10)
	large.Memory, large.UsedMem = 20<<30, 20<<30
	services := wants(8 << 30)
	services.Spec.RequiredServices = protocol.Services{"db": {Memory: 8 << 30}, "web": {Memory: 8 << 30}}
	disk := wants(1 << 30)
	disk.Spec.Disk = 200 << 30
	for _, h := range []*protocol.Host{small, large} {
		h.Disk, h.DiskQuota = 100<<30, true
		h.Profiles, h.ServiceProfiles = []string{protocol.ProfileHardened}, []string{protocol.ProfileStandard}
	}
	for field, b := range map[string]*protocol.Sandbox{"spec.memory": wants(100 << 30), "spec.memory ": services,
		"spec.disk": disk} {
		field = strings.TrimSpace(field)
		e := Impossible(b, []*protocol.Host{small, large})
		if e == nil || e.Reason != protocol.ReasonNoHost || e.Field != field ||
			!strings.Contains(e.Message, "largest host has") {
			t.Errorf("%s: %v", field, e)
		}
		away := &protocol.Host{Worker: "away", HostID: "h-away", State: protocol.HostLost}
		if e := Impossible(b, []*protocol.Host{small, large, away}); e != nil {
			t.Errorf("while a host is away, too much %s leads to the error %v", field, e)
		}
		_, refusals := Place(b, []*protocol.Host{small, large, away}, nil)
		if r := refusals[0]; !strings.Contains(r.Reason, "its offer is unknown until its worker is back") {
			t.Errorf("the host that is away refuses with %+v", r)
		}
	}
	if e := Impossible(wants(15<<30), []*protocol.Host{small, large}); e != nil {
		t.Errorf("a sandbox that fits on a busy host leads to the error %v", e)
	}
	resumed := wants(100 << 30)
	resumed.Resuming, resumed.HostID = true, small.HostID
	if e := Impossible(resumed, []*protocol.Host{small}); e != nil {
		t.Errorf("a resume on the sandbox's own host leads to the error %v", e)
	}
}

func TestAHostThatGaveASandboxBackIsPassedOverForAWhile(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := wants(1 << 30)
	b.Refusals = []protocol.Refusal{{HostID: "h-w1", Worker: "w1", Reason: "all of its 2 slots are taken",
		Until: now.Add(time.Second)}}
	hosts := []*protocol.Host{host("w1", 0), host("w2", 5)}
	if chosen, refusals := Place(WithoutExpiredRefusals(b, now), hosts, nil); chosen != hosts[1] ||
		!strings.Contains(refusals[0].Reason, "2 slots") {
		t.Errorf("before the refusal expires, the refusals are %+v", refusals)
	}
	if chosen, _ := Place(WithoutExpiredRefusals(b, now.Add(time.Second)), hosts, nil); chosen != hosts[0] {
		t.Error("the host is still skipped after its refusal has expired")
	}
}

func TestASandboxGoesToAHostWithTheLabelsThatItWants(t *testing.T) {
	a, b, none := host("a", 5), host("b", 0), host("none", 0)
	a.Labels, b.Labels = map[string]string{"zone": "a", "disk": "ssd"}, map[string]string{"zone": "b"}
	hosts := []*protocol.Host{a, b, none}
	for _, c := range []struct {
		placement []string
		want      *protocol.Host
		why       string // reason of b's refusal
	}{
		{[]string{"zone=a"}, a, "spec.placement[0]: on b label zone is b, wanted a"},
		{[]string{"zone in (a, c)", "disk=ssd"}, a, "spec.placement[0]: on b label zone is b, wanted a or c"},
		{[]string{"zone!=b", "zone!=a"}, none, "spec.placement[0]: on b label zone is b, wanted anything except b"},
		{[]string{"zone=b", "disk!=ssd"}, b, ""},
	} {
		s := wants(1 << 30)
		s.Spec.Placement = c.placement
		chosen, refusals := Place(s, hosts, nil)
		if chosen != c.want || refusals[1].Reason != c.why {
			t.Errorf("a sandbox with placement %q is refused with %+v", c.placement, refusals)
		}
		if e := Impossible(s, hosts); e != nil {
			t.Errorf("placement %q leads to the error %v", c.placement, e)
		}
	}
	s := wants(1 << 30)
	s.Spec.Placement = []string{"zone=z"}
	if e := Impossible(s, hosts); e == nil || e.Field != "spec.placement[0]" || e.Reason != protocol.ReasonNoHost {
		t.Errorf("a zone without hosts leads to the error %v", e)
	}
	if e := Impossible(s, append(hosts, &protocol.Host{Worker: "away", State: protocol.HostLost})); e != nil {
		t.Errorf("while a host that may be in the zone is away, the error is %v", e)
	}
}
