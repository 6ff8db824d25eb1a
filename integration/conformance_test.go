package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

var updateDocs = flag.Bool("update-docs", false, "write the results to docs/conformance.md")

const conformanceFile = "../docs/conformance.md"

// part is one field of a sandbox's spec, with the settings and the checks that the test uses for the field.
type part struct {
	field string
	set   func(*protocol.SandboxSpec) // sets the field through the SDK
	flags []string                    // set the field through the CLI; if empty, the CLI reads yaml as a file with -f
	yaml  string                      // sets the field through a file; for a field services.*, a part of the service db

	in          string // service in which the probe runs; default: the primary container
	probe, want string // a script and its expected output; empty if shown is set
	shown       string // name of the test that checks the effect of the field

	read func(*protocol.Sandbox) any // reads the value back; the value must be set, and be the same for each way
}

// imagePart is part of every group.
var imagePart = part{field: "image", set: func(s *protocol.SandboxSpec) { s.Image = fleet.Image },
	flags: []string{"--image", fleet.Image}, yaml: "image: " + fleet.Image,
	probe: "ls /bin/busybox", want: "/bin/busybox", read: func(b *protocol.Sandbox) any { return b.Image }}

// parts lists all fields by group. The test sets all fields of a group on the same sandbox.
func parts(dirs conformanceDirs) map[string][]part {
	spec := func(read func(*protocol.SandboxSpec) any) func(*protocol.Sandbox) any {
		return func(b *protocol.Sandbox) any { return read(&b.Spec) }
	}
	return map[string][]part{
		"plain": {
			imagePart,
			{field: "command", set: func(s *protocol.SandboxSpec) {
				s.Command = []string{"sh", "-c",
					"echo ran > /tmp/primary; sleep 1000"}
			},
				flags: []string{"--", "sh", "-c",
					"echo ran > /tmp/primary; sleep 1000"}, yaml: `command: [sh, -c, "echo ran > /tmp/primary; sleep 1000"]`,
				probe: "while ! test -s /tmp/primary; do usleep 10000; done; cat /tmp/primary", want: "ran",
				read: spec(func(s *protocol.SandboxSpec) any { return s.Command })},
			{field: "env", set: func(s *protocol.SandboxSpec) { s.Env = map[string]string{"COLOUR": "red"} },
				flags: []string{"--env", "COLOUR=red"}, yaml: "env: {COLOUR: red}",
				probe: "echo $COLOUR", want: "red", read: spec(func(s *protocol.SandboxSpec) any { return s.Env })},
			{field: "labels", set: func(s *protocol.SandboxSpec) { s.Labels = map[string]string{"team": "a"} },
				flags: []string{"--label", "team=a"}, yaml: "labels: {team: a}",
				shown: "TestS18_WhatIsReadBackIsComplete", read: spec(func(s *protocol.SandboxSpec) any { return s.Labels })},
			{field: "user", set: func(s *protocol.SandboxSpec) { s.User = "1000:1000" },
				flags: []string{"--user", "1000:1000"}, yaml: `user: "1000:1000"`,
				probe: "id -u", want: "1000", read: spec(func(s *protocol.SandboxSpec) any { return s.User })},
			{field: "cwd", set: func(s *protocol.SandboxSpec) { s.Cwd = "/tmp" }, flags: []string{"--cwd", "/tmp"},
				yaml:  "cwd: /tmp",
				probe: "pwd", want: "/tmp", read: spec(func(s *protocol.SandboxSpec) any { return s.Cwd })},
			{field: "cpu", set: func(s *protocol.SandboxSpec) { s.CPU = 0.5 }, flags: []string{"--cpu", "0.5"},
				yaml:  "cpu: 0.5",
				probe: "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max",
				want:  "50000", read: spec(func(s *protocol.SandboxSpec) any { return s.CPU })},
			{field: "memory", set: func(s *protocol.SandboxSpec) { s.Memory = 64 << 20 },
				flags: []string{"--memory", "64m"}, yaml: "memory: 64m",
				probe: "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max",
				want:  "67108864", read: spec(func(s *protocol.SandboxSpec) any { return s.Memory })},
			{field: "pids", set: func(s *protocol.SandboxSpec) { s.PIDs = 300 }, flags: []string{"--pids", "300"},
				yaml:  "pids: 300",
				probe: "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max", want: "300",
				read: spec(func(s *protocol.SandboxSpec) any { return s.PIDs })},
			{field: "shm_size", set: func(s *protocol.SandboxSpec) { s.ShmSize = 1 << 20 },
				flags: []string{"--shm-size", "1m"}, yaml: "shm_size: 1m",
				probe: "df -k /dev/shm | tail -1 | awk '{print $2}'", want: "1024",
				read: spec(func(s *protocol.SandboxSpec) any { return s.ShmSize })},
			{field: "network", set: func(s *protocol.SandboxSpec) {
				s.Network = &protocol.Network{Mode: protocol.NetworkAllow, Allow: []string{"10.1.0.0/16"}}
			},
				flags: []string{"--network", "10.1.0.0/16"}, yaml: "network: {allow: [10.1.0.0/16]}",
				shown: "TestS22_NetworksReachOnlyPermittedAddresses",
				read:  spec(func(s *protocol.SandboxSpec) any { return s.Network })},
			{field: "ports", set: func(s *protocol.SandboxSpec) { s.Ports = []protocol.Port{{Container: 81}} },
				flags: []string{"--port", "81"}, yaml: "ports: [\"81\"]",
				shown: "TestX18_PortsAreAskedForGivenAndRefused", read: spec(func(s *protocol.SandboxSpec) any { return s.Ports })},
			{field: "hostname", set: func(s *protocol.SandboxSpec) { s.Hostname = "box-7" },
				flags: []string{"--hostname", "box-7"}, yaml: "hostname: box-7",
				probe: "hostname", want: "box-7", read: spec(func(s *protocol.SandboxSpec) any { return s.Hostname })},
			{field: "tmpfs", set: func(s *protocol.SandboxSpec) {
				s.Tmpfs = []protocol.Tmpfs{{Target: "/scratch",
					Size: 2 << 20}}
			}, flags: []string{"--tmpfs", "/scratch:2m"}, yaml: "tmpfs: [{target: /scratch, size: 2m}]",
				probe: "df -k /scratch | tail -1 | awk '{print $2}'", want: "2048",
				read: spec(func(s *protocol.SandboxSpec) any { return s.Tmpfs })},
			{field: "runtime", set: func(s *protocol.SandboxSpec) { s.Runtime = "runc" },
				flags: []string{"--runtime", "runc"}, yaml: "runtime: runc",
				shown: "TestTheContainerIsAsTheSpecSays", read: func(b *protocol.Sandbox) any { return b.Isolation }},
			{field: "profile", set: func(s *protocol.SandboxSpec) { s.Profile = "standard" },
				flags: []string{"--profile", "standard"}, yaml: "profile: standard",
				probe: "grep CapBnd /proc/self/status | cut -f2", want: "00000000a00405fb",
				read: spec(func(s *protocol.SandboxSpec) any { return s.Profile })},
			{field: "mounts", set: func(s *protocol.SandboxSpec) {
				s.Mounts = []protocol.Mount{{Source: dirs.mount, Target: "/mnt/m"}}
			}, flags: []string{"--mount", dirs.mount + ":/mnt/m"},
				yaml:  "mounts: [{source: " + dirs.mount + ", target: /mnt/m}]",
				probe: "cat /mnt/m/file; touch /mnt/m/x 2>/dev/null || echo cannot", want: "mounted\ncannot",
				read: spec(func(s *protocol.SandboxSpec) any { return s.Mounts })},
			{field: "copies", set: func(s *protocol.SandboxSpec) {
				s.Copies = []protocol.Copy{dirs.copied}
			}, flags: []string{"--copy", dirs.tree + ":/copied", "--copy-exclude", "*.log", "--copy-owner", "1000:7"},
				yaml:  "copies: [{source: " + dirs.tree + ", target: /copied, exclude: ['*.log'], owner: '1000:7'}]",
				probe: "cd /copied; ls -A; cat f; stat -c '%u:%g' f", want: "f\ncopied\n1000:7",
				read: spec(func(s *protocol.SandboxSpec) any { return s.Copies })},
			{field: "tools", set: func(s *protocol.SandboxSpec) { s.Tools = []string{"npm"} },
				flags: []string{"--tool", "npm"}, yaml: "tools: [npm]",
				probe: "cat ~/.npm/file", want: "cached", read: spec(func(s *protocol.SandboxSpec) any { return s.Tools })},
			{field: "pull", set: func(s *protocol.SandboxSpec) { s.Pull = "never" }, flags: []string{"--pull", "never"},
				yaml:  "pull: never",
				shown: "TestQ14_ImagesArePulled", read: spec(func(s *protocol.SandboxSpec) any { return s.Pull })},
			{field: "idle_ttl", set: func(s *protocol.SandboxSpec) { s.IdleTTL = protocol.Duration(time.Hour) },
				flags: []string{"--idle-ttl", "1h"}, yaml: "idle_ttl: 1h",
				shown: "TestS9_IdleStopIsPunctualAndResumeResetsIt",
				read:  spec(func(s *protocol.SandboxSpec) any { return s.IdleTTL })},
			{field: "ttl", set: func(s *protocol.SandboxSpec) { s.TTL = protocol.Duration(time.Hour) },
				flags: []string{"--ttl", "1h"}, yaml: "ttl: 1h",
				shown: "TestASandboxIsDeletedWhenItExpires",
				read:  func(b *protocol.Sandbox) any { return b.ExpiresAt.Sub(b.CreatedAt) }},
			{field: "on_delete",
				set: func(s *protocol.SandboxSpec) {
					s.OnDelete = &protocol.Hook{Command: []string{"echo",
						"bye"}}
				}, flags: []string{"--on-delete", "echo", "--on-delete", "bye"}, yaml: "on_delete: {command: [echo, bye]}",
				shown: "TestAHookRunsBeforeTheDelete", read: spec(func(s *protocol.SandboxSpec) any { return s.OnDelete })},
			{field: "required_services", set: func(s *protocol.SandboxSpec) {
				s.RequiredServices = protocol.Services{"web": {Image: dirs.httpd}}
			}, flags: []string{"--service", "web=" + dirs.httpd}, yaml: "required_services: {web: {image: " + dirs.httpd + "}}",
				probe: "until wget -q -O /dev/null http://web/passwd; do usleep 100000; done; echo reached", want: "reached",
				read: func(b *protocol.Sandbox) any { return b.Services["web"].State }},
			{field: "optional_services", set: func(s *protocol.SandboxSpec) {
				s.OptionalServices = protocol.Services{"extra": {Image: dirs.httpd}}
			}, flags: []string{"--optional-service", "extra=" + dirs.httpd},
				yaml:  "optional_services: {extra: {image: " + dirs.httpd + "}}",
				probe: "until wget -q -O /dev/null http://extra/passwd; do usleep 100000; done; echo reached", want: "reached",
				read: spec(func(s *protocol.SandboxSpec) any { return s.OptionalServices })},
			{field: "queue_timeout",
				set:   func(s *protocol.SandboxSpec) { s.QueueTimeout = protocol.Duration(time.Hour) },
				flags: []string{"--queue-timeout", "1h"}, yaml: "queue_timeout: 1h",
				shown: "TestWithoutAHostASandboxWaitsAndThenFails",
				read:  spec(func(s *protocol.SandboxSpec) any { return s.QueueTimeout })},
			{field: "create_timeout",
				set:   func(s *protocol.SandboxSpec) { s.CreateTimeout = protocol.Duration(time.Minute) },
				flags: []string{"--create-timeout", "1m"}, yaml: "create_timeout: 1m",
				shown: "TestQ1_ASandboxThatNoWorkerStartsIsEnded",
				read:  spec(func(s *protocol.SandboxSpec) any { return s.CreateTimeout })},
			{field: "grace", set: func(s *protocol.SandboxSpec) { s.Grace = protocol.Duration(time.Second) },
				flags: []string{"--stop-grace", "1s"}, yaml: "grace: 1s",
				shown: "TestAStopWaitsForTheGracePeriod", read: spec(func(s *protocol.SandboxSpec) any { return s.Grace })},
			{field: "on_host_loss", set: func(s *protocol.SandboxSpec) { s.OnHostLoss = "fail" },
				flags: []string{"--on-host-loss", "fail"}, yaml: "on_host_loss: fail",
				shown: "TestASandboxNeedNotWaitForALostHost",
				read:  spec(func(s *protocol.SandboxSpec) any { return s.OnHostLoss })},
			{field: "placement", set: func(s *protocol.SandboxSpec) {
				s.Placement = []string{"zone in (a, b)",
					"disk!=slow"}
			},
				flags: []string{"--placement", "zone in (a, b)", "--placement",
					"disk!=slow"}, yaml: `placement: ["zone in (a, b)", "disk!=slow"]`,
				shown: "TestASandboxGoesWhereItsPlacementSays",
				read:  spec(func(s *protocol.SandboxSpec) any { return s.Placement })},
		},
		"service": serviceParts(dirs),
		"service-flag": {
			imagePart,
			{field: "services.image", set: inDB(func(v *protocol.Service) { v.Image = dirs.httpd }),
				flags: []string{"--service", "db=" + dirs.httpd}, yaml: "image: " + dirs.httpd,
				probe: "until wget -q -O /dev/null http://db/passwd; do usleep 100000; done; echo reached", want: "reached",
				read: func(b *protocol.Sandbox) any { return b.Spec.RequiredServices["db"].Image }},
		},
		"read-only": {
			imagePart,
			{field: "read_only", set: func(s *protocol.SandboxSpec) { s.ReadOnly = true },
				flags: []string{"--read-only"}, yaml: "read_only: true",
				probe: "touch /x 2>/dev/null || echo cannot", want: "cannot",
				read: spec(func(s *protocol.SandboxSpec) any { return s.ReadOnly })},
		},
	}
}

// serviceParts are the fields of services, and of copies into services.
func serviceParts(dirs conformanceDirs) []part {
	of := func(read func(protocol.Service) any) func(*protocol.Sandbox) any {
		return func(b *protocol.Sandbox) any { return read(b.Spec.RequiredServices["db"]) }
	}
	return []part{
		imagePart,
		{field: "services.image", set: inDB(func(v *protocol.Service) { v.Image = dirs.httpd }),
			yaml:  "image: " + dirs.httpd,
			probe: "wget -q -O - http://db/tmp/ran", want: "ran", read: of(func(v protocol.Service) any { return v.Image })},
		{field: "services.command", set: inDB(func(v *protocol.Service) {
			v.Command = []string{"sh", "-c", "echo ran >/tmp/ran; exec httpd -f -p 80 -h /"}
		}), yaml: `command: [sh, -c, "echo ran >/tmp/ran; exec httpd -f -p 80 -h /"]`,
			in: "db", probe: "cat /tmp/ran", want: "ran", read: of(func(v protocol.Service) any { return v.Command })},
		{field: "services.env", set: inDB(func(v *protocol.Service) { v.Env = map[string]string{"COLOUR": "red"} }),
			flags: []string{"--service-env", "db.COLOUR=red"}, yaml: "env: {COLOUR: red}",
			in: "db", probe: "echo $COLOUR", want: "red", read: of(func(v protocol.Service) any { return v.Env })},
		{field: "services.user", set: inDB(func(v *protocol.Service) { v.User = "1000:7" }), yaml: `user: "1000:7"`,
			in: "db", probe: "stat -c %u:%g /tmp/ran; id -u", want: "1000:7\n1000",
			read: of(func(v protocol.Service) any { return v.User })},
		{field: "services.cpu", set: inDB(func(v *protocol.Service) { v.CPU = 0.5 }), yaml: "cpu: 0.5",
			in: "db", probe: "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max",
			want: "50000", read: of(func(v protocol.Service) any { return v.CPU })},
		{field: "services.memory", set: inDB(func(v *protocol.Service) { v.Memory = 64 << 20 }), yaml: "memory: 64m",
			in: "db", probe: "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max",
			want: "67108864", read: of(func(v protocol.Service) any { return v.Memory })},
		{field: "services.pids", set: inDB(func(v *protocol.Service) { v.PIDs = 300 }), yaml: "pids: 300",
			in: "db", probe: "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max", want: "300",
			read: of(func(v protocol.Service) any { return v.PIDs })},
		{field: "services.profile", set: inDB(func(v *protocol.Service) { v.Profile = "hardened" }),
			yaml: "profile: hardened",
			in:   "db", probe: "grep CapBnd /proc/self/status | cut -f2", want: "0000000000000000",
			read: of(func(v protocol.Service) any { return v.Profile })},
		{field: "services.healthcheck", set: inDB(func(v *protocol.Service) {
			v.Healthcheck = &protocol.Healthcheck{Test: []string{"CMD-SHELL",
				"wget -q -O /dev/null http://127.0.0.1/tmp/ran && touch /tmp/tested"}}
		}), yaml: `healthcheck: {test: "wget -q -O /dev/null http://127.0.0.1/tmp/ran && touch /tmp/tested"}`,
			in: "db", probe: "ls /tmp/tested", want: "/tmp/tested",
			read: of(func(v protocol.Service) any { return v.Healthcheck })},
		{field: "services.post_start",
			set: inDB(func(v *protocol.Service) {
				v.PostStart = []protocol.Hook{{Command: []string{"touch",
					"/tmp/hooked"}}}
			}), yaml: "post_start: [[touch, /tmp/hooked]]",
			probe: "ls /tmp/hooked", want: "/tmp/hooked", read: of(func(v protocol.Service) any { return v.PostStart })},
		{field: "copies.service", set: func(s *protocol.SandboxSpec) {
			copied := dirs.copied
			copied.Service = "db"
			s.Copies = []protocol.Copy{copied}
		}, flags: []string{"--copy", dirs.tree + ":db:/copied", "--copy-exclude", "*.log", "--copy-owner", "1000:7"},
			yaml: "copies: [{source: " + dirs.tree + ", target: /copied, service: db, exclude: ['*.log'], owner: '1000:7'}]",
			in:   "db", probe: "cat /copied/f", want: "copied", read: func(b *protocol.Sandbox) any { return b.Spec.Copies }},
	}
}

// inDB changes the required service db of a spec.
func inDB(change func(*protocol.Service)) func(*protocol.SandboxSpec) {
	return func(s *protocol.SandboxSpec) {
		v := s.RequiredServices["db"]
		change(&v)
		s.RequiredServices = protocol.Services{"db": v}
	}
}

// refused lists the fields that the hosts of this test do not support. A create with such a field must be refused, and
// the error must name the field.
func refused() []part {
	return []part{
		{field: "disk", set: func(s *protocol.SandboxSpec) { s.Disk = 1 << 30 }, flags: []string{"--disk", "1g"},
			yaml: "disk: 1g"},
		{field: "gpus", set: func(s *protocol.SandboxSpec) { s.GPUs = "all" }, flags: []string{"--gpus", "all"},
			yaml: "gpus: all"},
		{field: "services.disk", set: inDB(func(v *protocol.Service) { v.Image, v.Disk = fleet.Image, 1<<30 }),
			yaml: "image: " + fleet.Image + ", disk: 1g"},
	}
}

// elsewhere maps each field that this test does not cover to the name of the test that covers it.
var elsewhere = map[string]string{
	"sensitive_env":          "TestSecretsReachTheCommandsThatNameThem",
	"secrets":                "TestSecretsReachTheCommandsThatNameThem",
	"services.sensitive_env": "TestSecretsReachTheCommandsThatNameThem",
	"services.secrets":       "TestSecretsReachTheCommandsThatNameThem",
}

type conformanceDirs struct {
	mount, tree string
	copied      protocol.Copy // the uploaded tree
	httpd       string        // an image with a command that serves /etc
}

// ways are the ways in which a sandbox can be created.
var ways = []string{"SDK", "CLI", "YAML"}

// TestEveryFieldWorksInEveryWay sets each field of a spec through the SDK, through the CLI and through a file. It
// checks the effect of the field and the value that is read back, and compares the outcome with the table in the
// documentation.
func TestEveryFieldWorksInEveryWay(t *testing.T) {
	t.Parallel()
	dirs := conformanceDirs{mount: t.TempDir(),
		httpd: imageWith(t, "httpd", `CMD ["httpd", "-f", "-p", "80", "-h", "/etc"]`)}
	f := fleet.Start(t, fleet.Options{Workers: -1})
	if err := os.WriteFile(filepath.Join(dirs.mount, "file"), []byte("mounted\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dirs.tree = t.TempDir()
	writeFile(t, filepath.Join(dirs.tree, "f"), "copied\n", 0o644, time.Now())
	writeFile(t, filepath.Join(dirs.tree, "left.log"), "left out", 0o644, time.Now())
	var err error
	if dirs.copied, err = f.Client.Upload(f.Context(time.Minute), dirs.tree, "/copied", sdk.WithExclude("*.log"),
		sdk.WithOwner("1000:7")); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	writeFile(t, filepath.Join(home, ".npm", "file"), "cached\n", 0o644, time.Now())
	f.Worker("w1", fleet.Role{Labels: map[string]string{"zone": "b"}, AllowMounts: []string{dirs.mount},
		Tools: []string{"npm"}, ToolsHome: home, Profiles: []string{"hardened",
			"standard"}, Runtimes: []string{"runc"}, Allow: []string{"10.1.0.0/16"}})
	cli := buildCLI(t)
	found := map[string]map[string]string{}
	for group, fields := range parts(dirs) {
		read := map[string]string{}
		for _, way := range ways {
			s, err := createIn(t, f, cli, way, way+"-"+group, fields)
			if err != nil {
				t.Fatalf("create %s-%s: %v", way, group, err)
			}
			for _, p := range fields {
				if found[p.field] == nil {
					found[p.field] = map[string]string{}
				}
				works := p.probe == "" ||
					printedBy(t, f.Context(30*time.Second), s, p.in, "sh", "-c", p.probe) == p.want
				info := s.Info()
				back := asText(p.read(&info))
				if first, ok := read[p.field]; ok && first != back || back == asText(nil) || back == "0" ||
					back == `""` {
					t.Errorf("%s: read back through the %s: %s, otherwise %s", p.field, way, back, first)
					works = false
				}
				read[p.field] = back
				if !works {
					t.Errorf("%s does not work through the %s", p.field, way)
				}
				cell := "yes"
				if !works {
					cell = "NO"
				} else if way == "CLI" && len(p.flags) == 0 {
					cell = "with -f"
				}
				// A field that is in several groups must work in each group. It may have a CLI flag in only one group.
				if before := found[p.field][way]; before == "" || before == "with -f" || cell == "NO" {
					found[p.field][way] = cell
				}
			}
		}
	}
	for _, p := range refused() {
		found[p.field] = map[string]string{}
		for _, way := range ways {
			_, err := createIn(t, f, cli, way, way+"-"+strings.ReplaceAll(p.field, ".", "-"), []part{imagePart, p})
			if err == nil ||
				!strings.Contains(err.Error(),
					"spec."+strings.Replace(p.field, "services.", "required_services.db.", 1)) {
				t.Errorf("%s through the %s: %v", p.field, way, err)
			}
			found[p.field][way] = "refused"
		}
	}
	f.Eventually(10*time.Second, "the refused creates leave nothing", func() error {
		for _, o := range f.Objects("") {
			if strings.Contains(o, "disk") || strings.Contains(o, "gpus") {
				return errors.New(o)
			}
		}
		return nil
	})
	compareTable(t, found, parts(dirs))
}

func asText(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// buildCLI builds the boxfleet program.
func buildCLI(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "boxfleet")
	if out, err := exec.Command("go", "build", "-o", path,
		"github.com/boxfleet/boxfleet/cmd/boxfleet").CombinedOutput(); err != nil {
		t.Fatalf("build the CLI: %v\n%s", err, out)
	}
	return path
}

// createIn creates a sandbox with all of the fields, in one of the three ways.
func createIn(t *testing.T, f *fleet.Fleet, cli, way, id string, fields []part) (*sdk.Sandbox, error) {
	t.Helper()
	ctx := f.Context(time.Minute)
	if way == "SDK" {
		spec := protocol.SandboxSpec{}
		for _, p := range fields {
			p.set(&spec)
		}
		return f.Client.Create(ctx, spec, sdk.WithID(id))
	}
	args := append([]string{"sandbox", "create", "--id", id}, f.Flags()...)
	var command, lines, service []string
	for _, p := range fields {
		switch {
		case (way == "YAML" || len(p.flags) == 0) && strings.HasPrefix(p.field, "services."):
			service = append(service, p.yaml)
		case way == "YAML" || len(p.flags) == 0:
			lines = append(lines, p.yaml)
		case p.flags[0] == "--":
			command = p.flags
		default:
			args = append(args, p.flags...)
		}
	}
	if len(service) > 0 {
		lines = append(lines, "required_services: {db: {"+strings.Join(service, ", ")+"}}")
	}
	if len(lines) > 0 {
		args = append(args, "-f", "-")
	}
	args = append(args, command...)
	cmd := exec.CommandContext(ctx, cli, args...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return f.Client.Get(ctx, id)
}

// compareTable fails the test if a field of the spec is in no group, or if the table in the documentation differs from
// the outcome.
func compareTable(t *testing.T, found map[string]map[string]string, groups map[string][]part) {
	t.Helper()
	shown := map[string]string{}
	for _, fields := range groups {
		for _, p := range fields {
			shown[p.field] = p.shown
		}
	}
	tests := testNames(t)
	var rows []string
	names := append(wireFields(reflect.TypeFor[protocol.SandboxSpec]()), "copies.service")
	for _, name := range wireFields(reflect.TypeFor[protocol.Service]()) {
		names = append(names, "services."+name)
	}
	for _, field := range names {
		cells, here := found[field]
		by, there := elsewhere[field]
		switch {
		case here && there:
			t.Errorf("%s is in a group and elsewhere", field)
		case here:
			by = shown[field]
		case there:
		default:
			t.Errorf("%s is in no group", field)
			continue
		}
		enforced := "probed by this test"
		if cells["SDK"] == "refused" {
			enforced = "not supported by the test hosts, which say so"
		} else if by != "" {
			if !slices.ContainsFunc(tests, func(name string) bool { return strings.HasPrefix(name, by) }) {
				t.Errorf("%s is covered by %s, which does not exist", field, by)
			}
			enforced = "`" + by + "`"
		} else if !here {
			enforced = "not shown by a test of its own"
		}
		row := "| `" + field + "` |"
		for _, way := range ways {
			row += " " + cells[way] + " |"
		}
		back := ""
		if cells["SDK"] == "yes" {
			back = "yes"
		}
		rows = append(rows, row+" "+enforced+" | "+back+" |")
	}
	var table bytes.Buffer
	fmt.Fprintln(&table, "# Conformance")
	fmt.Fprintln(&table)
	fmt.Fprintln(&table, "Each field of a sandbox's spec: whether it can be set through the SDK, the CLI and a")
	fmt.Fprintln(&table, "YAML file, whether a worker enforces it, and whether it can be read back.")
	fmt.Fprintln(&table, "`TestEveryFieldWorksInEveryWay` tries this and fails if the result differs from this")
	fmt.Fprintln(&table, "page. Services are tried as required ones. For a field with an empty cell, see the test")
	fmt.Fprintln(&table, "that its row names.")
	fmt.Fprintln(&table)
	fmt.Fprintln(&table, "| field | SDK | CLI | YAML | enforced | read back |\n|---|---|---|---|---|---|")
	for _, row := range rows {
		fmt.Fprintln(&table, row)
	}
	if *updateDocs {
		if err := os.WriteFile(conformanceFile, table.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if stored, err := os.ReadFile(conformanceFile); err != nil || !bytes.Equal(stored, table.Bytes()) {
		t.Errorf("docs/conformance.md differs from the result (%v), which is:\n%s", err, table.String())
	}
}

// wireFields lists the names that a struct's fields have on the wire.
func wireFields(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// testNames lists every test of the repository.
func testNames(t *testing.T) (names []string) {
	t.Helper()
	pattern := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range pattern.FindAllSubmatch(data, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Every test that the security page names must exist.
func TestTheSecurityPageNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(page, -1)
	tests := testNames(t)
	for _, m := range named {
		if !slices.Contains(tests, string(m[1])) {
			t.Errorf("the page names %s, which does not exist", m[1])
		}
	}
	if len(named) < 10 {
		t.Errorf("the page names %d tests", len(named))
	}
}
