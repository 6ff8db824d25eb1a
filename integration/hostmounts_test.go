package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// ofTheKernel lists the file systems that use no disk space of the host. A tmpfs counts as memory of the container.
var ofTheKernel = []string{"tmpfs", "proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue"}

// writableOfHost lists the mounts in a container's /proc/self/mountinfo through which the container could write to a
// disk of the host without a limit. It leaves out the container's root, kernel file systems and read-only mounts.
func writableOfHost(mountinfo string) []string {
	var found []string
	for line := range strings.Lines(mountinfo) {
		mount, super, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(mount), strings.Fields(super)
		if len(fields) < 6 || len(kind) < 1 {
			found = append(found, "not understood: "+line)
			continue
		}
		target, options := fields[4], strings.Split(fields[5], ",")
		if target != "/" && !slices.Contains(options, "ro") && !slices.Contains(ofTheKernel, kind[0]) {
			found = append(found, target)
		}
	}
	return found
}

// A container can write to the host only through mounts that its spec asks for and the operator allows.
func TestNoWritableMountOfTheHostIsInAContainer(t *testing.T) {
	t.Parallel()
	readable, writable := t.TempDir(), t.TempDir()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{readable, writable + ":rw"},
		Profiles: []string{protocol.ProfileHardened, protocol.ProfileStandard}})
	ctx := f.Context(2 * time.Minute)

	exotic := withServices(f, services{"web": web("0")}, services{"plain": small("exec sleep 1000")})
	exotic.Profile, exotic.ReadOnly, exotic.Hostname, exotic.User = protocol.ProfileStandard, true, "strange", "0"
	exotic.Command = []string{"sh", "-c", "echo up; exec sleep 1000"}
	exotic.Tmpfs = []protocol.Tmpfs{{Target: "/scratch", Size: 1 << 20}}
	exotic.Mounts = []protocol.Mount{{Source: readable, Target: "/readable"},
		{Source: writable, Target: "/writable", Writable: true}}

	check := func(s *sdk.Sandbox, service string, allowed ...string) {
		t.Helper()
		if got := writableOfHost(printedBy(t, ctx, s, service, "cat", "/proc/self/mountinfo")); !slices.Equal(got,
			allowed) {
			t.Errorf("%s, service %q: the writable mounts are %v, want %v", s.ID(), service, got, allowed)
		}
		for _, command := range []string{"echo x >> /etc/hosts", "echo x > /etc/hostname", "echo x > /etc/resolv.conf",
			"ls /.boxfleet/run"} {
			if got := printedBy(t, ctx, s, service, "sh", "-c",
				"("+command+") 2>/dev/null && echo done; true"); got != "" {
				t.Errorf("%s, service %q: %q works", s.ID(), service, command)
			}
		}
	}
	named := func(s *sdk.Sandbox, service, hostname string) {
		t.Helper()
		script := fmt.Sprintf("hostname; cat /etc/hostname; grep -w %s /etc/hosts | cut -f 1; hostname -i", hostname)
		got := strings.Fields(printedBy(t, ctx, s, service, "sh", "-c", script))
		if len(got) != 4 || got[0] != hostname || got[1] != hostname || got[2] != got[3] {
			t.Errorf("%s, service %q: its names and addresses are %q, want %s and one address", s.ID(), service, got,
				hostname)
		}
	}
	s := f.Create("plain")
	check(s, "")
	named(s, "", "plain")
	e, err := f.Client.Create(ctx, exotic, sdk.WithID("exotic"))
	if err != nil {
		t.Fatal(err)
	}
	for resumed := range 2 {
		check(e, "", "/writable")
		check(e, "web")
		check(e, "plain")
		named(e, "", "strange")
		named(e, "web", "web")
		if got := printedBy(t, ctx, e, "", "wget", "-q", "-O", "-", "http://web/"); got != "hello" {
			t.Errorf("the service printed %q", got)
		}
		if resumed > 0 {
			break
		}
		if err := e.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		if err := e.Resume(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*sdk.Sandbox{s, e} {
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, f, w)
}
