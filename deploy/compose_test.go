package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// TestTheComposeFileRunsAFleet starts the compose file, with the worker in a process of its own, and takes away one
// NATS server and one coordinator.
func TestTheComposeFileRunsAFleet(t *testing.T) {
	if os.Getenv("BOXFLEET_TEST_COMPOSE") == "" {
		t.Skip("BOXFLEET_TEST_COMPOSE is not set: run make compose-test")
	}
	s := newSite(t)
	certificates(t, s.dir, "n1.example.com", "n2.example.com", "n3.example.com")
	run(t, s.boxfleet(t, "auth", "add", "coordinator", "c2", "--dir", s.authority(), "--file", s.creds("c2")))
	run(t, s.boxfleet(t, "auth", "secrets-key", "--dir", s.authority(), "--file", filepath.Join(s.dir, "secrets.key")))
	write(t, filepath.Join(s.dir, "auth.conf"), run(t, s.boxfleet(t, "auth", "config", "--dir", s.authority(),
		"--resolver-dir", "/var/lib/boxfleet-nats/accounts")))
	for _, file := range []string{"auth.conf", "ca.crt", "server.crt", "server.key", "secrets.key", "c1.creds",
		"c2.creds"} {
		if err := os.Chown(filepath.Join(s.dir, file), 65532, 65532); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ports, err := embedded.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	s.url = fmt.Sprintf("tls://127.0.0.1:%d,tls://127.0.0.1:%d,tls://127.0.0.1:%d", ports[0], ports[1], ports[2])
	tag := strings.ToLower(filepath.Base(filepath.Dir(s.dir)))
	run(t, exec.CommandContext(within(t, 5*time.Minute), "../scripts/images", tag))
	compose := func(args ...string) *exec.Cmd {
		cmd := exec.Command("docker-compose", append([]string{"--project-name", tag, "--file",
			"compose/docker-compose.yml"}, args...)...)
		cmd.Env = append(os.Environ(), "SITE="+s.dir, "TAG="+tag, fmt.Sprintf("PORT1=%d", ports[0]),
			fmt.Sprintf("PORT2=%d", ports[1]), fmt.Sprintf("PORT3=%d", ports[2]))
		return cmd
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := compose("logs", "--tail", "40").CombinedOutput() // the failure says more
			t.Logf("logs:\n%s", log)
		}
		for _, cmd := range []*exec.Cmd{compose("down", "--volumes", "--timeout", "10"),
			exec.Command("docker", "rmi", "boxfleet/nats:"+tag, "boxfleet/coordinator:"+tag)} {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", cmd, err, out)
			}
		}
	})
	run(t, compose("up", "--detach"))
	healthy := func() bool { return s.boxfleet(t, "ping", "--creds", s.creds("otto")).Run() == nil }
	eventually.Holds(t, time.Minute, "the fleet is as safe as configured", healthy)
	s.worksOn(t)

	set := s.boxfleet(t, "secret", "set", "password", "--tenant", "blue", "--creds", s.creds("otto"))
	set.Stdin = strings.NewReader("open sesame")
	run(t, set)
	reads := func(when string) {
		said := run(t, s.boxfleet(t, "run", "--tenant", "blue", "--creds", s.creds("otto"), "--image", demoImage,
			"--secret", "password", "cat", "/run/secrets/password"))
		if said != "open sesame" {
			t.Errorf("%s, a command reads %q", when, said)
		}
	}
	reads("with all servers")
	run(t, compose("kill", "n1", "c1"))
	reads("without n1 and c1")
	run(t, compose("start", "n1", "c1"))
	eventually.Holds(t, time.Minute, "the fleet is as safe again as configured", healthy)
}

// worksOn runs a worker in a process of its own, on the engine of this machine.
func (s *site) worksOn(t *testing.T) {
	t.Helper()
	supervisor, state := program(t, boxfleetProgram+"-supervisor"), filepath.Join(s.dir, "state")
	worker := func(host string) *exec.Cmd {
		creds := s.creds(host)
		run(t, s.boxfleet(t, "auth", "add", "worker", "w1", "--host", host, "--dir", s.authority(), "--file", creds))
		cmd := s.boxfleet(t, "worker", "--name", "w1", "--state-dir", state, "--supervisor", supervisor, "--creds", creds)
		cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
		return cmd
	}
	out, err := worker("new").CombinedOutput()
	host := hostInError.FindSubmatch(out)
	if err == nil || host == nil {
		t.Fatalf("a worker with credentials for another host: %v: %s", err, out)
	}
	run(t, s.boxfleet(t, "auth", "revoke", "worker", "w1", "--dir", s.authority()))
	t.Cleanup(func() { run(t, s.boxfleet(t, "worker", "purge", "--state-dir", state, "--yes")) })
	start(t, "ready: worker w1", worker(string(host[1])))
}
