package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// host is one with ten slots and 10 GiB, of which n are taken by sandboxes of 1 GiB.
func host(worker string, n int) *protocol.Host {
	return &protocol.Host{
		Worker: worker, HostID: "h-" + worker, Instance: "i-" + worker, State: protocol.HostReady, Slots: 10, Memory: 10 << 30, CPU: 4,
		Sandboxes: n, UsedMem: protocol.Bytes(n) << 30, Firewall: protocol.FirewallNFTables, Mounts: []string{"/srv/cache"},
	}
}

func wants(memory protocol.Bytes) *protocol.Sandbox {
	return &protocol.Sandbox{State: protocol.StatePending, Spec: protocol.SandboxSpec{Memory: memory, CPU: 1}}
}

func TestPlaceChoosesTheHostWithTheMostRoom(t *testing.T) {
	chosen, _ := place(wants(1<<30), []*protocol.Host{host("w1", 3), host("w2", 1), host("w3", 2)}, nil)
	if chosen == nil || chosen.Worker != "w2" {
		t.Errorf("placed on %+v, want w2", chosen)
	}
	fewSlots := host("w1", 0)
	fewSlots.Sandboxes = 9
	if chosen, _ := place(wants(1<<30), []*protocol.Host{fewSlots, host("w2", 5)}, nil); chosen.Worker != "w2" {
		t.Errorf("placed on %s, which has one slot left", chosen.Worker)
	}
}

// Cores are not reserved, but counted: a host that has promised fewer of them is chosen, also where all
// have promised more than they have.
func TestPlaceCountsCores(t *testing.T) {
	busy, idle := host("busy", 1), host("idle", 1)
	for busy.UsedCPU, idle.UsedCPU = 2, 1; busy.UsedCPU < 20; busy.UsedCPU, idle.UsedCPU = busy.UsedCPU+4, idle.UsedCPU+4 {
		if chosen, refusals := place(wants(1<<30), []*protocol.Host{busy, idle}, nil); chosen != idle {
			t.Errorf("with %v and %v of %v cores promised: %+v", busy.UsedCPU, idle.UsedCPU, idle.CPU, refusals)
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
		{protocol.ProfileHardened, []*protocol.Host{loose, strict}, strict}, {protocol.ProfileStandard, []*protocol.Host{strict, loose}, loose},
		{protocol.ProfileHardened, []*protocol.Host{older, loose}, older}, {protocol.ProfileStandard, []*protocol.Host{older, loose}, loose},
	} {
		b := wants(1 << 30)
		b.Spec.Profile = c.profile
		if chosen, refusals := place(b, c.hosts, nil); chosen != c.want {
			t.Errorf("%s: %+v", c.profile, refusals)
		}
	}
	b := wants(1 << 30)
	b.Spec.Profile = protocol.ProfileHardened
	if e := impossible(b, []*protocol.Host{loose}); e == nil || e.Field != "spec.profile" || e.Code != protocol.PermissionDenied {
		t.Errorf("where no host allows it: %v", e)
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
	chosen, refusals := place(b, hosts, nil)
	if chosen != nil {
		t.Fatalf("placed on %s", chosen.Worker)
	}
	for i, want := range []string{"slots", "memory", "suspect", "no answer", "spec.mounts[0].source", "networks of sandboxes apart: no right"} {
		if r := refusals[i]; r.Worker != hosts[i].Worker || !strings.Contains(r.Reason, want) {
			t.Errorf("refusal %d is %+v, want one of %s about %q", i, r, hosts[i].Worker, want)
		}
	}
	if why := impossible(b, hosts); why == nil || why.Code != protocol.PermissionDenied || why.Field != "spec.mounts[0].source" {
		t.Errorf("a mount that no host allows: %v", why)
	}
	b.Spec.Mounts[0].Source = "/srv/cache/go"
	if why := impossible(b, hosts); why != nil {
		t.Errorf("a mount that a busy host allows: %v", why)
	}
}

func TestAWritableMountGoesToAHostThatLetsItBeWritten(t *testing.T) {
	reader, writer := host("reader", 0), host("writer", 5)
	writer.Mounts, writer.Writable = []string{"/srv/cache", "/srv/cache/fixed"}, []string{"/srv/cache"}
	hosts := []*protocol.Host{reader, writer}
	b := wants(1 << 30)
	for source, want := range map[string]string{"/srv/cache/go": "writer", "/srv/cache/fixed": "", "/srv/cache": "", "/srv": "", "/srv/cachet": ""} {
		b.Spec.Mounts = []protocol.Mount{{Source: source, Target: "/t", Writable: true}}
		chosen, refusals := place(b, hosts, nil)
		got := ""
		if chosen != nil {
			got = chosen.Worker
		}
		if got != want {
			t.Errorf("%s is placed on %q, want %q: %v", source, got, want, refusals)
		}
		field := "writable"
		if !strings.HasPrefix(source, "/srv/cache/") && source != "/srv/cache" {
			field = "source"
		}
		if why := impossible(b, hosts); (why == nil) != (want != "") || why != nil && (why.Code != protocol.PermissionDenied || why.Field != "spec.mounts[0]."+field) {
			t.Errorf("%s: %v", source, why)
		}
	}
	b.Spec.Mounts = []protocol.Mount{{Source: "/srv/cache/go", Target: "/t"}}
	if chosen, _ := place(b, hosts, nil); chosen != reader {
		t.Errorf("what is only read is placed on %s", chosen.Worker)
	}
}

func TestAServiceGoesToAHostThatAllowsItsProfile(t *testing.T) {
	older, strict, loose := host("older", 0), host("strict", 3), host("loose", 5)
	strict.ServiceProfiles = []string{protocol.ProfileHardened}
	loose.ServiceProfiles = []string{protocol.ProfileHardened, protocol.ProfileStandard}
	for profile, want := range map[string]string{
		protocol.ProfileHardened: "strict", // the older worker would not harden it
		protocol.ProfileStandard: "older",
		"":                       "older", // of a request from before there was a choice
	} {
		b := wants(1 << 30)
		b.Spec.OptionalServices = protocol.Services{"db": {Profile: profile}}
		if chosen, refusals := place(b, []*protocol.Host{older, strict, loose}, nil); chosen == nil || chosen.Worker != want {
			t.Errorf("%q is placed on %+v, want %s: %v", profile, chosen, want, refusals)
		}
	}
	b := wants(1 << 30)
	b.Spec.RequiredServices = protocol.Services{"db": {Profile: protocol.ProfileStandard}}
	chosen, refusals := place(b, []*protocol.Host{strict}, nil)
	if chosen != nil || !strings.HasPrefix(refusals[0].Reason, "spec.required_services.db.profile: ") {
		t.Errorf("placed on %+v: %v", chosen, refusals)
	}
	if why := impossible(b, []*protocol.Host{strict}); why == nil || why.Code != protocol.PermissionDenied || why.Field != "spec.required_services.db.profile" {
		t.Errorf("a profile that no host allows: %v", why)
	}
}

func TestPagesNeitherRepeatNorHideRows(t *testing.T) {
	type row struct {
		at time.Time
		id string
	}
	order := func(a, b row) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.id, b.id)) }
	token := func(r row) string { return pageToken(r.at, r.id) }
	small := func(row) int { return 1 }
	var rows []row
	for i := range 25 {
		rows = append(rows, row{time.Unix(int64(i/3), 5), fmt.Sprintf("s%02d", i)}) // some at the same time
	}
	want := slices.SortedFunc(slices.Values(rows), order)
	var got []row
	q := &protocol.Query{Limit: 4}
	for pages := 0; ; pages++ {
		page, next, err := paginate(slices.Clone(rows), order, token, small, q)
		if err != nil || pages > 10 {
			t.Fatal(pages, err)
		}
		got = append(got, page...)
		if next == "" {
			break
		}
		q.Page = next
		rows = append(rows, row{time.Unix(100+int64(pages), 0), fmt.Sprint("new", pages)}) // made meanwhile: the newest
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if _, _, err := paginate(rows, order, token, small, &protocol.Query{Limit: 4, Page: "x"}); protocol.AsError(err).Field != "page" {
		t.Errorf("a bad page token: %v", err)
	}
}
