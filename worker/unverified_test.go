package worker

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// TestAWorkerThatIsNotRootMountsNothingThatCanBeWritten runs its other half as such a worker.
func TestAWorkerThatIsNotRootMountsNothingThatCanBeWritten(t *testing.T) {
	const variable, nobody = "BOXFLEET_TEST_AS_NOBODY", 65534
	if os.Geteuid() != 0 || os.Getenv(variable) != "" {
		asWorkerThatIsNotRoot(t)
		return
	}
	dir, err := os.MkdirTemp("", "boxfleet-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	half := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	half.Dir = dir
	half.Env = append(os.Environ(), variable+"=1", "TMPDIR="+dir)
	half.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := half.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

func asWorkerThatIsNotRoot(t *testing.T) {
	dir, err := os.MkdirTemp("", "nobody-") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	home, agent := filepath.Join(dir, "home"), filepath.Join(dir, "agent.sock")
	fill(t, home, map[string]string{
		".claude/x": "x", ".claude.json": "{}", ".codex/x": "x", ".agents/x": "x", ".config/opencode/x": "x", ".config/gh/x": "x",
		".ssh/known_hosts": "x", ".cache/uv/x": "x", ".npm/x": "x",
	})
	listener, err := net.Listen("unix", agent)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	if _, err := newMountPolicy([]string{home + ":rw"}, nil); protocol.AsError(err) == nil || protocol.AsError(err).Field != "mounts.allow[0]" {
		t.Errorf("a writable mount is allowed: %v", err)
	}
	box := boxOf(t, []string{"all"}, home, agent)
	if got := strings.Join(box.usable(), " "); got != "git" {
		t.Errorf("offered are %s", got)
	}
	if got := strings.Join(FoundTools(home, agent), " "); got != "git" {
		t.Errorf("up finds %s", got)
	}
	d := directory{path: filepath.Join(dir, "state")}
	list, env, err := box.plan(&protocol.SandboxSpec{Tools: []string{"git"}}, "/root", d)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range list {
		got = append(got, b.Tool)
		if b.Writable {
			t.Errorf("%s can be written", b.Tool)
		}
	}
	if strings.Join(got, " ") != "gh-auth ssh-known-hosts" || len(env) > 0 {
		t.Errorf("git has %v, %v", got, env)
	}
	w := &worker{tools: box, mounts: box.policy}
	for _, name := range []string{"claude", "codex", "opencode", "uv", "npm", "apt"} {
		spec := &protocol.SandboxSpec{Tools: []string{"git", name}}
		_, before := w.planBindings(spec)
		_, _, in := box.plan(spec, "/root", d)
		for _, err := range []error{before, in} {
			e := protocol.AsError(err)
			if e == nil || e.Code != protocol.FailedPrecondition || e.Reason != protocol.ReasonToolUnavailable || e.Field != "spec.tools[1]" || !strings.Contains(e.Message, "root") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// A sandbox that a worker had made as root does not get them back at its next start.
	for _, b := range []binding{{Field: "spec.tools[0]", Tool: "npm", Target: "/root/.npm", Writable: true, Dir: true}, {Field: "spec.tools[0]", Tool: "ssh-agent", Target: "/ssh-agent", Writable: true}} {
		if _, _, err := w.openBinding(d, b); protocol.AsError(err) == nil || protocol.AsError(err).Reason != protocol.ReasonToolUnavailable || protocol.AsError(err).Field != b.Field {
			t.Errorf("at a start: %s: %v", b.Tool, err)
		}
	}
}
