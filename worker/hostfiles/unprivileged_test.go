package hostfiles

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

// As root, the test runs itself again as the user nobody.
func TestAWorkerThatIsNotRootMountsNothingWritable(t *testing.T) {
	const variable, nobody = "BOXFLEET_TEST_AS_NOBODY", 65534
	if os.Geteuid() != 0 || os.Getenv(variable) != "" {
		unprivileged(t)
		return
	}
	dir, err := os.MkdirTemp("", "boxfleet-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	again := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	again.Dir = dir
	again.Env = append(os.Environ(), variable+"=1", "TMPDIR="+dir)
	again.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("the test failed as the user nobody: %v\n%s", err, out)
	}
}

func unprivileged(t *testing.T) {
	dir, err := os.MkdirTemp("", "nobody-") // t.TempDir is too long for the address of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	home, agent := filepath.Join(dir, "home"), filepath.Join(dir, "agent.sock")
	fill(t, home, map[string]string{
		".claude/x": "x", ".claude.json": "{}", ".codex/x": "x", ".agents/x": "x", ".config/opencode/x": "x",
		".config/gh/x": "x", ".ssh/known_hosts": "x", ".cache/uv/x": "x", ".npm/x": "x",
	})
	listener, err := net.Listen("unix", agent)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	if _, err := NewPolicy([]string{home + ":rw"}, nil); !names(err, "mounts.allow[0]") {
		t.Errorf("a writable entry of the allow-list: error %v, want one that names mounts.allow[0]", err)
	}
	box := boxOf(t, []string{"all"}, home, agent)
	if got := strings.Join(box.Usable(), " "); got != "git" {
		t.Errorf("the usable tools are %s, want git", got)
	}
	if got := strings.Join(FoundTools(home, agent), " "); got != "git" {
		t.Errorf("the tools found in the home directory are %s, want git", got)
	}
	d := hostdir.Dir{Path: filepath.Join(dir, "state")}
	gitIsReadOnly(t, box, d)
	nothingElseIsMounted(t, Files{Mounts: box.policy, Tools: box}, d)
}

func gitIsReadOnly(t *testing.T, box *Toolbox, d hostdir.Dir) {
	t.Helper()
	planned, err := box.plan(&protocol.SandboxSpec{Tools: []string{"git"}}, "/root", d)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range planned.List {
		got = append(got, b.Tool)
		if b.Writable {
			t.Errorf("%s is writable", b.Tool)
		}
	}
	if strings.Join(got, " ") != "gh-auth ssh-known-hosts" || len(planned.Env) > 0 {
		t.Errorf("git has the mounts %v and the environment %v, want its two read-only mounts", got, planned.Env)
	}
}

func nothingElseIsMounted(t *testing.T, files Files, d hostdir.Dir) {
	t.Helper()
	for _, name := range []string{"claude", "codex", "opencode", "uv", "npm", "apt"} {
		spec := &protocol.SandboxSpec{Tools: []string{"git", name}}
		_, before := files.Check(spec)
		_, in := files.Tools.plan(spec, "/root", d)
		for _, err := range []error{before, in} {
			e := protocol.AsError(err)
			if e == nil || e.Code != protocol.FailedPrecondition || e.Reason != protocol.ReasonToolUnavailable ||
				e.Field != "spec.tools[1]" || !strings.Contains(e.Message, "root") {
				t.Errorf("%s: error %v, want reason tool_unavailable for spec.tools[1], because of root", name, err)
			}
		}
	}
	// A worker that ran as root may have created a sandbox with these bindings. The sandbox's next start must not mount
	// them.
	for _, b := range []Binding{
		{Field: "spec.tools[0]", Tool: "npm", Target: "/root/.npm", Writable: true, Dir: true},
		{Field: "spec.tools[0]", Tool: "ssh-agent", Target: "/ssh-agent", Writable: true},
	} {
		_, _, err := files.openBinding(d, b)
		if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonToolUnavailable || e.Field != b.Field {
			t.Errorf("at the next start, %s: error %v, want reason tool_unavailable for %s", b.Tool, err, b.Field)
		}
	}
}
