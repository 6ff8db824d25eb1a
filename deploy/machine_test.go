package deploy

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

const demoImage = "boxfleet/demo:busybox"

// machine is a container with systemd as PID 1 and an engine of its own.
type machine struct{ id string }

// boot starts a machine from the Debian root.
func boot(t *testing.T) *machine {
	t.Helper()
	image := strings.TrimSpace(run(t, exec.CommandContext(within(t, 2*time.Minute), "docker", "import",
		"--change", "LABEL boxfleet.test=machine", debianRoot(t)))) // scripts/clean finds the label
	t.Cleanup(func() {
		if out, err := exec.Command("docker", "rmi", image).CombinedOutput(); err != nil {
			t.Errorf("remove the image of the machine: %v: %s", err, out)
		}
	})
	// Not --privileged: where root lacks CAP_SYS_RESOURCE, the engine cannot grant it. systemd mounts credentials in a
	// namespace from which mounts spread only if they are shared, as on any machine.
	m := &machine{}
	m.id = strings.TrimSpace(run(t, exec.CommandContext(within(t, time.Minute), "docker", "run", "--detach",
		"--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined",
		"--security-opt", "apparmor=unconfined", "--security-opt", "systempaths=unconfined",
		"--device-cgroup-rule", "a *:* rwm", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup", "--volume", "/var/lib/docker",
		"--tmpfs", "/run", "--tmpfs", "/tmp", "--hostname", "m1", "--env", "container=docker",
		"--stop-signal", "SIGRTMIN+3", image, "sh", "-c", "mount --make-rshared / && exec /sbin/init")))
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := m.try("journalctl --no-pager --lines 150 --unit 'boxfleet*'") // the failure says more
			t.Logf("journal:\n%s", log)
		}
		_ = exec.Command("docker", "stop", "--time", "30", m.id).Run() // the removal fails if the machine runs on
		if out, err := exec.Command("docker", "rm", "--force", "--volumes", m.id).CombinedOutput(); err != nil {
			t.Errorf("remove the machine: %v: %s", err, out)
		}
	})
	eventually.Holds(t, time.Minute, "the machine has booted", func() bool {
		_, err := m.try("systemctl is-active docker multi-user.target")
		return err == nil
	})
	return m
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

func TestTheUnitsRunAFleetOnABootedDebian(t *testing.T) {
	m := boot(t)
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
		inspect := "docker inspect --format '{{.State.Pid}} {{.State.StartedAt}}' $(docker ps --quiet)"
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
	t.Run("the watchdog restarts a coordinator that hangs", func(t *testing.T) {
		m.run(t, `mkdir -p /etc/systemd/system/boxfleet-coordinator.service.d
printf '[Service]\nWatchdogSec=6\n' >/etc/systemd/system/boxfleet-coordinator.service.d/test.conf
systemctl daemon-reload
systemctl restart boxfleet-coordinator
kill -STOP "$(systemctl show -P MainPID boxfleet-coordinator)"`)
		eventually.Holds(t, time.Minute, "systemd has restarted the coordinator", func() bool {
			restarts, err := m.try(`systemctl show -P NRestarts boxfleet-coordinator
systemctl is-active boxfleet-coordinator`)
			return err == nil && restarts == "1\nactive"
		})
	})
	m.run(t, client+"rm s1")
	m.run(t, "systemctl stop boxfleet-worker boxfleet-coordinator boxfleet-nats")
	for _, unit := range []string{"boxfleet-nats", "boxfleet-coordinator", "boxfleet-worker"} {
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
