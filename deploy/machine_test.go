package deploy

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

const demoImage = "boxfleet/demo:busybox"

// machine is a container with systemd as PID 1 and an engine of its own.
type machine struct {
	id    string
	hosts map[string]string // ids of its Docker host in fleets, by the id that a page prints
}

// machineLabel is on the images, containers and networks of machines. scripts/clean finds it.
const machineLabel = "boxfleet.test=machine"

// boot starts machines with these host names from the Debian root. They reach each other as NAME.example.com.
func boot(t *testing.T, names ...string) map[string]*machine {
	t.Helper()
	docker := func(limit time.Duration, args ...string) string {
		return strings.TrimSpace(run(t, exec.CommandContext(within(t, limit), "docker", args...)))
	}
	remove := func(args ...string) {
		t.Cleanup(func() {
			if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
				t.Errorf("docker %v: %v: %s", args, err, out)
			}
		})
	}
	label := "boxfleet.test.run=" + rand.Text() // on what this call makes, beside machineLabel
	t.Cleanup(func() {                          // runs after all removals
		if left := labelled(t, label); left != "" {
			t.Errorf("the removals of machines left:\n%s", left)
		}
	})
	image := docker(2*time.Minute, "import", "--change", "LABEL "+machineLabel+" "+label, debianRoot(t))
	remove("rmi", image)
	network := docker(time.Minute, "network", "create", "--label", machineLabel, "--label", label, "boxfleet-"+rand.Text())
	remove("network", "rm", network)
	machines := make(map[string]*machine, len(names))
	for _, name := range names {
		// Not --privileged: where root lacks CAP_SYS_RESOURCE, the engine cannot grant it. systemd mounts credentials in
		// a namespace from which mounts spread only if they are shared, as on any machine.
		machines[name] = &machine{id: docker(time.Minute, "run", "--detach", "--cap-add", "ALL",
			"--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
			"--security-opt", "systempaths=unconfined", "--device-cgroup-rule", "a *:* rwm",
			"--volume", "/sys/fs/cgroup:/sys/fs/cgroup", "--volume", "/var/lib/docker", "--tmpfs", "/run",
			"--tmpfs", "/tmp", "--network", network, "--network-alias", name+".example.com", "--hostname", name,
			"--env", "container=docker", "--stop-signal", "SIGRTMIN+3", image,
			"sh", "-c", "mount --make-rshared / && exec /sbin/init")}
	}
	t.Cleanup(func() {
		stop := []string{"stop", "--time", "30"}
		for name, m := range machines {
			if t.Failed() {
				log, _ := m.try("journalctl --no-pager --lines 150 --unit 'boxfleet*'") // the failure says more
				t.Logf("journal of %s:\n%s", name, log)
			}
			stop = append(stop, m.id)
		}
		_ = exec.Command("docker", stop...).Run() // the removal below ends machines that still run
		for _, m := range machines {
			m.remove(t)
		}
	})
	for _, m := range machines {
		m.hasBooted(t)
	}
	return machines
}

// remove removes a machine with its disk.
func (m *machine) remove(t *testing.T) {
	t.Helper()
	disk, err := exec.Command("docker", "inspect", "--format", "{{range .Mounts}}{{.Name}}{{end}}", m.id).Output()
	if err != nil {
		t.Errorf("inspect a machine: %v", err)
	}
	if out, err := exec.Command("docker", "rm", "--force", "--volumes", m.id).CombinedOutput(); err != nil {
		t.Errorf("remove a machine: %v: %s", err, out)
	}
	name := strings.TrimSpace(string(disk))
	if name == "" || exec.Command("docker", "volume", "inspect", name).Run() == nil {
		t.Errorf("the disk %q of a machine is left", name)
	}
}

// labelled lists the containers, networks and images with a label.
func labelled(t *testing.T, label string) string {
	t.Helper()
	filter := " --filter label=" + label
	return run(t, exec.CommandContext(within(t, time.Minute), "bash", "-euo", "pipefail", "-c",
		"docker container ls --all"+filter+" --format 'container {{.ID}}'; docker network ls"+filter+
			" --format 'network {{.ID}}'; docker image ls"+filter+" --format 'image {{.ID}}'"))
}

// hasBooted waits until a machine has started its services.
func (m *machine) hasBooted(t *testing.T) {
	t.Helper()
	eventually.Holds(t, time.Minute, "the machine has booted", func() bool {
		_, err := m.try("systemctl is-active docker multi-user.target")
		return err == nil
	})
}

// try runs a script and returns what it printed.
func (m *machine) try(script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // the context of t has ended in a cleanup
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", "exec", m.id, "bash", "-euo", "pipefail", "-c", script).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run runs a script that has to succeed, and returns what it printed.
func (m *machine) run(t *testing.T, script string) string {
	t.Helper()
	out, err := m.try(script)
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return out
}

// copy copies a file or directory to the machine.
func (m *machine) copy(t *testing.T, from, to string) {
	t.Helper()
	run(t, exec.Command("docker", "cp", from, m.id+":"+to))
}

// install installs the packages, makes an authority, and configures NATS, a coordinator and a client.
func (m *machine) install(t *testing.T) {
	t.Helper()
	m.copy(t, packages(t, "1.0.0")+"/.", "/root")
	dir := t.TempDir()
	certificates(t, dir, "m1")
	m.run(t, "dpkg --install /root/*.deb")
	m.copy(t, filepath.Join(dir, "ca.crt"), "/etc/boxfleet/ca.crt")
	for _, file := range []string{"ca.crt", "server.crt", "server.key"} {
		m.copy(t, filepath.Join(dir, file), "/etc/boxfleet-nats/"+file)
	}
	m.run(t, `
chmod 0644 /etc/boxfleet/ca.crt /etc/boxfleet-nats/*.crt
systemd-tmpfiles --create boxfleet-nats.conf
boxfleet auth init /root/authority
cd /root
boxfleet auth config --dir authority --resolver-dir /var/lib/boxfleet-nats/accounts >/etc/boxfleet-nats/auth.conf
boxfleet auth add coordinator c1 --dir authority --file /etc/boxfleet/coordinator.creds
boxfleet auth add operator otto --dir authority --file otto.creds
boxfleet auth add worker w1 --host new --dir authority --file /etc/boxfleet/worker.creds
cat >/etc/boxfleet/config.yaml <<EOF
nats: tls://m1:4222
tls: {ca: /etc/boxfleet/ca.crt}
coordinator: {name: c1}
worker: {name: w1}
EOF`)
	m.takeImage(t)
}

// takeImage copies the small image to the machine's engine.
func (m *machine) takeImage(t *testing.T) {
	t.Helper()
	run(t, exec.CommandContext(within(t, time.Minute), "bash", "-c",
		"docker save "+demoImage+" | docker exec -i "+m.id+" docker load"))
}

var units = []string{"boxfleet-nats", "boxfleet-coordinator", "boxfleet-worker"}

// confinements are the settings with which systemd runs each unit, in the order of settings: whether it watches and
// restarts the unit, and what the unit may do.
var (
	settings     = []string{"WatchdogUSec", "Restart", "NoNewPrivileges", "ProtectSystem", "CapabilityBoundingSet"}
	confinements = map[string][]string{
		"boxfleet-nats":        {"0", "always", "yes", "strict", ""}, // its unit says why it has no watchdog
		"boxfleet-coordinator": {"2min", "always", "yes", "strict", ""},
		// The worker has to see the mounts of its host, so none of them is protected.
		"boxfleet-worker": {"2min", "always", "yes", "no", "cap_chown cap_dac_override cap_dac_read_search cap_fowner " +
			"cap_fsetid cap_kill cap_net_admin cap_sys_chroot cap_sys_ptrace cap_sys_admin cap_sys_resource"},
	}
)

// isConfined checks the settings of a running unit.
func (m *machine) isConfined(t *testing.T, unit string) {
	t.Helper()
	for i, setting := range settings {
		got := m.run(t, "systemctl show -P "+setting+" "+unit)
		if want := confinements[unit][i]; got != want {
			t.Errorf("%s of %s is %q, want %q", setting, unit, got, want)
		}
	}
	status := m.run(t, "cat /proc/$(systemctl show -P MainPID "+unit+")/status")
	if !strings.Contains(status, "NoNewPrivs:\t1\n") {
		t.Errorf("the process of %s can gain privileges:\n%s", unit, status)
	}
}

// inspect prints the processes of the containers that run on a machine, and when they started.
const inspect = "docker inspect --format '{{.State.Pid}} {{.State.StartedAt}}' $(docker ps --quiet)"

// hangs stops the main process of a unit as if it hung, and waits until the watchdog has restarted the unit.
func (m *machine) hangs(t *testing.T, unit string) {
	t.Helper()
	m.run(t, `mkdir -p /etc/systemd/system/`+unit+`.service.d
printf '[Service]\nWatchdogSec=6\n' >/etc/systemd/system/`+unit+`.service.d/test.conf
systemctl daemon-reload
systemctl restart `+unit+`
kill -STOP "$(systemctl show -P MainPID `+unit+`)"`)
	eventually.Holds(t, time.Minute, "systemd has restarted "+unit, func() bool {
		restarts, err := m.try("systemctl show -P NRestarts " + unit + " && systemctl is-active " + unit)
		return err == nil && restarts == "1\nactive"
	})
}

// dropIn is the text of a drop-in in a page.
var dropIn = regexp.MustCompile("(?s)```ini\n(.*?)```")

// handsOverKey configures a certificate with a key that the user of the coordinator cannot read, and hands the key over
// as docs/operate.md does.
func (m *machine) handsOverKey(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	text := dropIn.FindStringSubmatch(string(page))
	if text == nil {
		t.Fatal("the page has no drop-in")
	}
	m.run(t, `install -m 0644 /etc/boxfleet-nats/server.crt /etc/boxfleet/client.crt
install -m 0600 /etc/boxfleet-nats/server.key /etc/boxfleet/client.key
sed -i 's#^tls:.*#tls: {ca: /etc/boxfleet/ca.crt, cert: /etc/boxfleet/client.crt, key: /etc/boxfleet/client.key}#' \
	/etc/boxfleet/config.yaml
systemctl restart --no-block boxfleet-coordinator`)
	eventually.Holds(t, time.Minute, "the coordinator cannot read the key", func() bool {
		log, err := m.try("journalctl --no-pager --unit boxfleet-coordinator")
		return err == nil && strings.Contains(log, "tls.key: cannot read /etc/boxfleet/client.key: permission denied")
	})
	m.run(t, `mkdir -p /etc/systemd/system/boxfleet-coordinator.service.d
cat >/etc/systemd/system/boxfleet-coordinator.service.d/tls.conf <<'EOF'
`+text[1]+`EOF
systemctl daemon-reload
timeout 60 systemctl restart boxfleet-coordinator
systemctl is-active boxfleet-coordinator`)
}

func TestTheUnitsRunAFleetOnABootedDebian(t *testing.T) {
	m := boot(t, "m1")["m1"]
	m.install(t)
	m.run(t, "systemctl enable --now boxfleet-nats boxfleet-coordinator") // returns once the coordinator is ready

	// The first start shows the host's ID. The unit goes on trying, so credentials for that ID are enough.
	m.run(t, "systemctl enable --now --no-block boxfleet-worker")
	host := m.hostID(t)
	m.run(t, `cd /root
boxfleet auth revoke worker w1 --dir authority
rm /etc/boxfleet/worker.creds
boxfleet auth add worker w1 --host `+host+` --dir authority --file /etc/boxfleet/worker.creds`)
	eventually.Holds(t, time.Minute, "the worker is ready", func() bool {
		_, err := m.try("systemctl is-active boxfleet-worker")
		return err == nil
	})

	client := "export BOXFLEET_NATS=tls://m1:4222 BOXFLEET_TLS_CA=/etc/boxfleet/ca.crt " +
		"BOXFLEET_CREDS=/root/otto.creds BOXFLEET_TENANT=blue; boxfleet "
	m.run(t, client+"sandbox create --name s1 --image "+demoImage)
	if said := m.run(t, client+"exec s1 -- echo hello"); said != "hello" {
		t.Errorf("the sandbox said %q", said)
	}
	t.Run("a restart of the worker leaves its sandboxes running", func(t *testing.T) {
		before := m.run(t, inspect)
		m.run(t, "systemctl restart boxfleet-worker")
		if after := m.run(t, inspect); before == "" || after != before {
			t.Errorf("containers before: %s; after: %s", before, after)
		}
		if said := m.run(t, client+"exec s1 -- echo hello"); said != "hello" {
			t.Errorf("after the restart the sandbox said %q", said)
		}
	})
	t.Run("the worker sees the mounts of its host", func(t *testing.T) {
		m.run(t, `worker="$(systemctl show -P MainPID boxfleet-worker)"
test "$(readlink /proc/1/ns/mnt)" = "$(readlink "/proc/$worker/ns/mnt")"`)
	})
	t.Run("restarts have no limit that needs a human", func(t *testing.T) {
		for _, unit := range units {
			if limit := m.run(t, "systemctl show -P StartLimitIntervalUSec "+unit); limit != "0" {
				t.Errorf("the start limit of %s counts within %s", unit, limit)
			}
		}
	})
	t.Run("systemd watches, restarts and confines the units as they say", func(t *testing.T) {
		for _, unit := range units {
			m.isConfined(t, unit)
		}
	})
	t.Run("the unit of NATS has started once the server takes connections", func(t *testing.T) {
		for range 3 {
			m.run(t, "systemctl restart boxfleet-nats && exec 3<>/dev/tcp/127.0.0.1/4222")
		}
	})
	for _, unit := range []string{"boxfleet-coordinator", "boxfleet-worker"} {
		t.Run("the watchdog restarts a hanging "+unit, func(t *testing.T) {
			before := m.run(t, inspect)
			m.hangs(t, unit)
			if after := m.run(t, inspect); after != before {
				t.Errorf("containers before: %s; after: %s", before, after)
			}
			if said := m.run(t, client+"exec s1 -- echo hello"); said != "hello" {
				t.Errorf("after the restart the sandbox said %q", said)
			}
		})
	}
	t.Run("a coordinator gets the key of its certificate from systemd", func(t *testing.T) { m.handsOverKey(t) })
	m.run(t, client+"rm s1")
	m.run(t, "systemctl stop boxfleet-worker boxfleet-coordinator boxfleet-nats")
	for _, unit := range units {
		if result := m.run(t, "systemctl show -P Result "+unit); result != "success" {
			t.Errorf("%s ended with the result %s", unit, result)
		}
	}
	m.run(t, "boxfleet worker purge --state-dir /var/lib/boxfleet/worker --yes && dpkg --purge boxfleet")
	left := m.run(t, `find /var/lib/boxfleet /etc/boxfleet 2>/dev/null || true
docker volume ls --quiet
nft list tables inet`)
	if left != "" {
		t.Errorf("left on the host: %s", left)
	}
}
