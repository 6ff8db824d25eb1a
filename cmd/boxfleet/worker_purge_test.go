package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAPurgeLeavesNothingOfAWorkerOnItsHost(t *testing.T) {
	fleetOfOne(t)
	startWithoutHosts(t, 0)
	state := filepath.Join(t.TempDir(), "state")
	w := startRole(t, "worker", "--state-dir", state, "--name", "w1")
	w.await(t, 200, "the engine answers")
	var ping protocol.Ping
	if err := json.Unmarshal([]byte(must(t, "ping", "-o", "json")), &ping); err != nil {
		t.Fatal(err)
	}
	must(t, "sandbox", "create", "--name", "kept", "--image", "boxfleet/demo:busybox")

	refused := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"worker", "purge", "--state-dir", state}, args...)
		if code, _, stderr := call(t.Context(), "", args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("purge: %d, %s; want %q", code, stderr, want)
		}
	}
	refused("a worker of deployment "+ping.Deployment+" runs", "--yes")
	w.stop()
	w.ends(t, 20*time.Second)
	refused("the engine has containers of sandboxes", "--yes")

	w = startRole(t, "worker", "--state-dir", state, "--name", "w1")
	w.await(t, 200, "the engine answers")
	must(t, "rm", "kept")
	w.stop()
	w.ends(t, 20*time.Second)
	refused("use --yes")
	for what, typed := range map[string]string{"n": "n\n", "only a new line": "\n", "the end of input": "\x04"} {
		if code, said := answered(t, typed, "worker", "purge", "--state-dir", state); code == 0 ||
			!strings.Contains(said, "nothing was changed") {
			t.Errorf("a purge that is answered with %s: %d, %s", what, code, said)
		}
	}
	if _, err := os.Stat(filepath.Join(state, ping.Deployment)); err != nil {
		t.Errorf("a refused purge removed something: %v", err)
	}
	if code, said := answered(t, "y\n", "worker", "purge", "--state-dir", state); code != 0 {
		t.Errorf("a purge that is answered with y: %d, %s", code, said)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("the state directory is left")
	}
	for _, list := range [][]string{
		{"docker", "volume", "ls"}, {"docker", "network", "ls"}, {"nft", "list", "tables"},
	} {
		if left, err := exec.Command(list[0], list[1:]...).CombinedOutput(); err != nil ||
			strings.Contains(string(left), ping.Deployment) {
			t.Errorf("%v: %v, %s", list, err, left)
		}
	}
	if said := must(t, "worker", "purge", "--state-dir", state, "--yes"); !strings.Contains(said, "nothing to remove") {
		t.Errorf("a second purge says %q", said)
	}
}

// answered runs a command at a terminal at which somebody has typed text.
func answered(t *testing.T, typed string, args ...string) (code int, stderr string) {
	t.Helper()
	screen, tty := terminal(t)
	if _, err := screen.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = run(t.Context(), args, tty, &out, &errs)
	return code, errs.String()
}
