package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// small returns a service that runs a line of shell in the test image.
func small(script string) protocol.Service {
	return protocol.Service{Image: fleet.Image, Command: []string{"sh", "-c", script}, Memory: 32 << 20}
}

// withCheck gives a service a quick health check.
func withCheck(v protocol.Service, test string) protocol.Service {
	v.Healthcheck = &protocol.Healthcheck{Test: []string{"CMD-SHELL", test},
		Interval: protocol.Duration(200 * time.Millisecond),
		Timeout:  protocol.Duration(2 * time.Second), Retries: 5, StartInterval: protocol.Duration(100 * time.Millisecond)}
	return v
}

// neverReady gives a service a health check that never passes. On a slow machine, a service without a health check
// could become ready before its command ends.
func neverReady(v protocol.Service) protocol.Service {
	v = withCheck(v, "false")
	v.Healthcheck.Retries = 1000
	return v
}

// web returns a service that answers on port 80 and becomes ready after a delay.
func web(after string) protocol.Service { return webAfter("sleep " + after) }

// webWhenTold returns the same service as [web], but it becomes ready when a file exists.
func webWhenTold(file string) protocol.Service {
	return webAfter("until [ -e " + file + " ]; do sleep 0.05; done")
}

// webAfter returns the same service as [web], but it becomes ready after a line of shell.
func webAfter(waits string) protocol.Service {
	v := withCheck(small("echo starting; "+waits+"; mkdir -p /tmp/w; echo hello >/tmp/w/index.html; exec httpd -f -h "+
		"/tmp/w -p 80"), "wget -q -O /dev/null http://127.0.0.1/")
	v.Healthcheck.Retries = 1000
	return v
}

func hook(script string) protocol.Hook {
	return protocol.Hook{Command: []string{"sh", "-c", script}, Timeout: protocol.Duration(10 * time.Second)}
}

// withServices returns a small spec with the given services.
func withServices(f *fleet.Fleet, required, optional map[string]protocol.Service) protocol.SandboxSpec {
	spec := f.Spec()
	spec.RequiredServices, spec.OptionalServices = required, optional
	return spec
}

type services = map[string]protocol.Service

// printedBy runs a command that must exit with 0 and returns its output.
func printedBy(t *testing.T, ctx context.Context, s *sdk.Sandbox, service string, command ...string) string {
	t.Helper()
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: command, Service: service,
		Timeout: protocol.Duration(20 * time.Second)})
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%q ended with %v: %s%s", command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// serviceEvents lists the events of a service as "kind" or "kind reason". It omits the ends of the service's command.
func serviceEvents(h *fleet.History, name string) []string {
	var found []string
	for _, e := range h.Events {
		if e.Service != nil && e.Service.Name == name && e.Kind != protocol.ServiceEnded {
			found = append(found, strings.TrimSpace(string(e.Kind)+" "+e.Reason))
		}
	}
	return found
}

// serviceIs returns an error unless the service of a sandbox is in this state.
func serviceIs(f *fleet.Fleet, id, name string, state protocol.ServiceState) error {
	if status := f.History(id).State.Sandbox.Services[name]; status.State != state {
		return fmt.Errorf("%s is %+v", name, status)
	}
	return nil
}

// imageWith makes an image from the test image with instructions of a Dockerfile. The image exists until the test ends.
// Call imageWith before starting anything that uses the image: the image is then removed last.
func imageWith(t *testing.T, name string, instructions ...string) string {
	t.Helper()
	run := func(args ...string) string {
		out, err := exec.Command("docker", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	ref := fmt.Sprintf("boxfleet/test:%s-%d", name, os.Getpid())
	create, commit := []string{"create", "--entrypoint", ""}, []string{"commit"}
	for _, line := range instructions {
		if signal, ok := strings.CutPrefix(line, "STOPSIGNAL "); ok { // a commit takes the stop signal from the container
			create = append(create, "--stop-signal", signal)
		} else {
			commit = append(commit, "--change", line)
		}
	}
	container := run(append(create, fleet.Image, "true")...)
	defer run("rm", container)
	run(append(commit, container, ref)...)
	t.Cleanup(func() { run("rmi", ref) })
	return ref
}

// debianImage is an image of Debian with Python, Node.js, PostgreSQL and Redis.
const debianImage = "boxfleet/test:debian"

// image makes a test image unless the engine already has it.
func image(t *testing.T, name string) {
	t.Helper()
	if out, err := exec.Command("../scripts/image", name).CombinedOutput(); err != nil {
		t.Fatalf("make the image %s: %v\n%s", name, err, out)
	}
}

// postgres returns a service with Debian's PostgreSQL. At its first start, PostgreSQL initializes its data. Like many
// database images, the image starts as root and switches to another user.
func postgres() protocol.Service {
	const bin = "/usr/lib/postgresql/15/bin"
	script := "set -e; d=/var/lib/postgresql/data; " +
		"if ! [ -e $d/PG_VERSION ]; then install -d -o postgres -g postgres -m 700 $d; " +
		"setpriv --reuid=postgres --regid=postgres --init-groups " + bin + "/initdb -D $d -A trust; " +
		"echo 'host all all all trust' >>$d/pg_hba.conf; fi; " +
		"install -d -o postgres -g postgres /run/postgresql; " +
		"exec setpriv --reuid=postgres --regid=postgres --init-groups " + bin + "/postgres -D $d -c " +
		"listen_addresses='*' -c fsync=off"
	return protocol.Service{Image: debianImage, Command: []string{"sh", "-c", script}, Memory: 256 << 20,
		Healthcheck: &protocol.Healthcheck{Test: []string{"CMD", bin + "/pg_isready", "-h", "127.0.0.1"},
			Interval: protocol.Duration(time.Second),
			Retries:  40, StartInterval: protocol.Duration(200 * time.Millisecond)}}
}

func redis() protocol.Service {
	return protocol.Service{Image: debianImage, User: "redis", Memory: 64 << 20,
		Command: []string{"redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir",
			"/tmp"},
		Healthcheck: &protocol.Healthcheck{Test: []string{"CMD-SHELL", "redis-cli ping | grep -q PONG"},
			Interval: protocol.Duration(time.Second), Retries: 20}}
}
