package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

var (
	// shellBlock is a block of commands in a page.
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	// blockWhere is the first line of a block: the machines that run it, and machines with a fault meanwhile.
	blockWhere  = regexp.MustCompile(`^# on (.+?)(?:, while (.+) (?:is|are) (off|gone|full))?\n`)
	machineName = regexp.MustCompile(`\b[nw]\d\b`)
)

// TestTheCommandsOfThePageOnOperatingWork runs the blocks of docs/operate.md in order, on the machines that they name.
// It prints the commands and their output, so `make operate-demo` shows the life of a fleet.
func TestTheCommandsOfThePageOnOperatingWork(t *testing.T) {
	page, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	old, upgraded := packages(t, "1.0.0"), packages(t, "1.0.1")
	s := pageSite(boot(t, "n1", "n2", "n3", "w1", "w2"))
	s.prepare(t, old)
	began, blocks := time.Now(), 0
	for section := range strings.SplitSeq(string(page), "\n## ") {
		check := func() {}
		if strings.HasPrefix(section, "Upgrade\n") {
			check = s.beforeUpgrade(t, upgraded)
		}
		if strings.HasPrefix(section, "When something fails\n") {
			check = func() {
				s["n3"].movesBack(t, "boxfleet-nats", natsStore)
				s["w1"].movesBack(t, "boxfleet-worker", workerState)
			}
		}
		for _, block := range shellBlock.FindAllStringSubmatch(section, -1) {
			s.runs(t, block[1])
			blocks++
		}
		check()
	}
	took := time.Since(began).Round(time.Second)
	fmt.Fprintf(t.Output(), "\nThe commands of the page took %s.\n", took)
	if took > 15*time.Minute {
		t.Errorf("the commands of the page took %s, want at most 15 minutes", took)
	}
	if blocks < 20 {
		t.Errorf("the page has %d blocks", blocks)
	}
	for name, m := range s {
		if name == "w2" { // it was switched off for good
			continue
		}
		if failed, _ := m.try("journalctl --no-pager --unit boxfleet-nats | grep 'TLS route handshake error'"); failed != "" {
			t.Errorf("the certificates do not let %s connect to another server:\n%.1000s", name, failed)
		}
		if left := m.run(t, "ls -d /etc/boxfleet* /var/lib/boxfleet* 2>/dev/null || true"); left != "" {
			t.Errorf("left on %s: %s", name, left)
		}
	}
}

// pageSite is the machines of the page, by name.
type pageSite map[string]*machine

// prepare does what the page takes for granted: packages of a directory and an image on the machines, and ssh from n1
// to all of them.
func (s pageSite) prepare(t *testing.T, dir string) {
	t.Helper()
	public := s["n1"].run(t, `ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
echo StrictHostKeyChecking accept-new >/root/.ssh/config
cat /root/.ssh/id_ed25519.pub`)
	for _, m := range s {
		m.copy(t, dir+"/.", "/root")
		m.run(t, "mkdir -p /root/.ssh && echo '"+public+"' >>/root/.ssh/authorized_keys")
	}
	s["w1"].takeImage(t)
	s["w2"].takeImage(t)
}

// beforeUpgrade creates a sandbox with an exec, and puts the packages of a directory in place of the old ones. The
// function that it returns checks that only the new version runs, and that the sandbox and its exec have run on.
func (s pageSite) beforeUpgrade(t *testing.T, dir string) (check func()) {
	t.Helper()
	for name, m := range s {
		if name == "w2" { // it was switched off for good
			continue
		}
		m.run(t, "rm /root/*.deb")
		m.copy(t, dir+"/.", "/root")
	}
	n1, w1 := s["n1"], s["w1"]
	n1.run(t, "boxfleet sandbox create --name living --image "+demoImage)
	id := n1.run(t, "boxfleet exec --detach living sh -c 'until test -e /tmp/end; do sleep 1; done; echo lived on'")
	before := w1.run(t, inspect)
	return func() {
		t.Helper()
		eventually.Holds(t, time.Minute, "only the new version runs", func() bool {
			report, err := n1.try("boxfleet doctor -o json")
			return err == nil && onlyVersion(report, "1.0.1", 2)
		})
		if after := w1.run(t, inspect); before == "" || after != before {
			t.Errorf("containers before the upgrade: %s; after: %s", before, after)
		}
		n1.run(t, "boxfleet exec living touch /tmp/end")
		if said := n1.run(t, "boxfleet execs logs --follow living "+id); said != "lived on" {
			t.Errorf("after the upgrade, the exec from before said %q", said)
		}
		n1.run(t, "boxfleet sandbox delete living")
	}
}

// onlyVersion reports whether a report of doctor shows as many coordinators, and a worker, of this version alone.
func onlyVersion(report, version string, coordinators int) bool {
	type role struct {
		Version string `json:"version"`
	}
	var r struct {
		Fleet struct {
			AnsweredBy   role           `json:"answered_by"`
			Coordinators []role         `json:"coordinators"`
			Workers      map[string]int `json:"workers"`
		} `json:"fleet"`
	}
	if err := json.Unmarshal([]byte(report), &r); err != nil {
		return false
	}
	f := r.Fleet
	return len(f.Coordinators) == coordinators && len(f.Workers) == 1 && f.Workers[version] == 1 &&
		!slices.ContainsFunc(append(f.Coordinators, f.AnsweredBy), func(c role) bool { return c.Version != version })
}

// printedHosts are the machines of the hosts whose ids the page prints. A machine has another id in another fleet.
var printedHosts = map[string]string{"EUJWVNGE5TFI6JAATMATQMD76O": "w1", "7SCPCTRLQZJQNQ4G5CGZ2PWK3A": "w2",
	"KQ2VZ7M4XH3TCLBDPWEN6SYAOI": "w1"}

// runs runs a block of the page.
func (s pageSite) runs(t *testing.T, script string) {
	t.Helper()
	script = strings.ReplaceAll(script, "--image busybox", "--image "+demoImage)
	for printed, name := range printedHosts {
		if strings.Contains(script, printed) {
			script = strings.ReplaceAll(script, printed, s[name].hostOf(t, printed))
		}
	}
	on := "n1"
	if where := blockWhere.FindStringSubmatch(script); where != nil {
		on = where[1]
		for _, away := range machineName.FindAllString(where[2], -1) {
			defer s[away].fails(t, where[3])()
		}
	}
	for _, name := range machineName.FindAllString(on, -1) {
		fmt.Fprintf(t.Output(), "\n%s> %s\n", name, strings.ReplaceAll(strings.TrimSpace(script), "\n", "\n"+name+"> "))
		said := s[name].run(t, "cd /root\n"+script)
		fmt.Fprintln(t.Output(), said)
		if strings.Contains(script, "cat /run/secrets/") && !strings.Contains(said, strings.Repeat("*", len("open sesame"))) {
			t.Errorf("a command that reads a secret with a mask said %q", said)
		}
		if strings.Contains(script, "exit code $?") && !strings.Contains(said, "exit code ") {
			t.Errorf("a ping during the fault %q succeeded: %s", strings.TrimSpace(strings.Split(script, "\n")[0]), said)
		}
	}
}

// fails gives a machine a fault: it is off, gone for good, or the disk of its NATS server is full. The function that it
// returns ends the fault.
func (m *machine) fails(t *testing.T, how string) (end func()) {
	t.Helper()
	if how == "full" {
		if _, err := m.try("systemctl is-active boxfleet-nats"); err != nil {
			return m.fills(t, "boxfleet-worker", workerState)
		}
		return m.fills(t, "boxfleet-nats", natsStore)
	}
	run(t, exec.CommandContext(within(t, time.Minute), "docker", "kill", m.id))
	return func() {
		t.Helper()
		if how == "off" {
			run(t, exec.CommandContext(within(t, time.Minute), "docker", "start", m.id))
			m.hasBooted(t)
		}
	}
}

// The directories that fills moves.
const (
	natsStore   = "/var/lib/boxfleet-nats/store"
	workerState = "/var/lib/boxfleet/worker"
)

// fills moves the directory of a unit to a small disk, and fills the disk. The function that it returns frees space
// again.
func (m *machine) fills(t *testing.T, unit, dir string) (free func()) {
	t.Helper()
	m.run(t, `systemctl stop `+unit+`
mkdir /srv/small
mount -t tmpfs -o size=512m small /srv/small
cp -a `+dir+`/. /srv/small
chown --reference `+dir+` /srv/small
mount --bind /srv/small `+dir+`
systemctl start `+unit)
	if unit == "boxfleet-nats" {
		eventually.Holds(t, time.Minute, "the server has caught up", func() bool {
			_, err := m.try(`exec 3<>/dev/tcp/127.0.0.1/8222
echo GET /healthz HTTP/1.0 >&3 && echo >&3
grep -q '^HTTP/.* 200' <&3`)
			return err == nil
		})
	}
	m.run(t, "! cat /dev/zero >/srv/small/filler")
	return func() {
		t.Helper()
		m.run(t, "rm /srv/small/filler")
	}
}

// movesBack undoes fills.
func (m *machine) movesBack(t *testing.T, unit, dir string) {
	t.Helper()
	m.run(t, `systemctl stop `+unit+`
umount `+dir+`
rm -r `+dir+`/*
cp -a /srv/small/. `+dir+`
umount /srv/small
systemctl start `+unit)
}

var hostInError = regexp.MustCompile(`host: is ([A-Z0-9]+), but`)

// hostOf returns the host's id in the fleet for which the page prints another id.
func (m *machine) hostOf(t *testing.T, printed string) string {
	t.Helper()
	if m.hosts[printed] == "" {
		id := m.hostID(t)
		if m.hosts == nil {
			m.hosts = map[string]string{}
		}
		m.hosts[printed] = id
	}
	return m.hosts[printed]
}

// hostID waits until the worker's log names a host that hostOf has not returned yet.
func (m *machine) hostID(t *testing.T) (id string) {
	t.Helper()
	eventually.Holds(t, time.Minute, "the worker names its host", func() bool {
		log, err := m.try("journalctl --no-pager --unit boxfleet-worker")
		for _, found := range hostInError.FindAllStringSubmatch(log, -1) {
			if !slices.Contains(slices.Collect(maps.Values(m.hosts)), found[1]) {
				id = found[1]
			}
		}
		return err == nil && id != ""
	})
	return id
}
