package hostfiles

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

func TestTheTableOfToolsIsConsistent(t *testing.T) {
	used := map[string]bool{}
	for _, tool := range tools {
		for _, use := range tool.uses {
			used[use.mount] = true
			if findToolMount(use.mount) == nil {
				t.Errorf("the tool %s uses the mount %s, which does not exist", tool.name, use.mount)
			}
		}
	}
	for i, m := range toolMounts {
		if !used[m.name] {
			t.Errorf("no tool uses the mount %s", m.name)
		}
		if m.mode == toolSocket != (m.source == "") {
			t.Errorf("the mount %s has the source %q; only sockets must have no source", m.name, m.source)
		}
		for _, other := range toolMounts[i+1:] {
			if m.name == other.name {
				t.Errorf("the mount %s is defined twice", m.name)
			}
			// A sandbox that can write to a mount must not be able to replace the source of another mount.
			overlap := isBelow(m.source, other.source) || isBelow(other.source, m.source)
			if m.source != "" && other.source != "" && overlap {
				t.Errorf("the sources of the mounts %s and %s overlap", m.name, other.name)
			}
		}
	}
}

// fill creates files below a directory. Content that begins with "->" makes a link. A name that ends with a slash makes
// a directory.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		p := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		to, isLink := strings.CutPrefix(content, "->")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o755)
		case isLink:
			err = os.Symlink(to, p)
		default:
			err = os.WriteFile(p, []byte(content), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func boxOf(t *testing.T, offered []string, home, agent string) *Toolbox {
	t.Helper()
	policy, err := NewPolicy(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	box, err := NewToolbox(offered, home, agent, policy)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func TestToolsThatShareAMountMountItOnce(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	fill(t, home, map[string]string{
		".codex/auth.json": "x", ".agents/a": "x", ".config/opencode/c": "x", ".ssh/known_hosts": "x",
		".local/share/uv/python/3/bin": "x", "real/gh/hosts.yml": "x", ".config/gh": "->../real/gh",
	})
	agent := filepath.Join(dir, "agent.sock")
	listener, err := net.Listen("unix", agent)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	box := boxOf(t, []string{"all"}, home, agent)
	if got := strings.Join(box.Usable(), " "); got != "codex opencode git uv npm apt" {
		t.Errorf("the usable tools are %s", got)
	}
	if got := strings.Join(FoundTools(home, ""), " "); got != "codex opencode git uv" {
		t.Errorf("the tools with files in the home directory are %s", got)
	}
	spec := &protocol.SandboxSpec{Tools: []string{"opencode", "codex", "git", "uv", "npm"}}
	planned, err := box.plan(spec, "/home/agent", hostdir.Dir{Path: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range planned.List {
		mode := "ro"
		if b.Writable {
			mode = "rw"
		}
		got = append(got, b.Field+" "+b.Tool+" "+b.Target+" "+mode)
		if b.Shadow {
			t.Errorf("%s is copied, although no link leads out of it", b.Tool)
		}
	}
	want := []string{
		"spec.tools[0] opencode-config /home/agent/.config/opencode rw",
		"spec.tools[0] .agents /home/agent/.agents rw",
		"spec.tools[1] .codex /home/agent/.codex rw",
		"spec.tools[2] ssh-agent /ssh-agent rw",
		"spec.tools[2] gh-auth /home/agent/.config/gh ro",
		"spec.tools[2] ssh-known-hosts /home/agent/.ssh/known_hosts ro",
		"spec.tools[3] uv-python " + home + "/.local/share/uv/python rw",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the bindings are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	wantEnv := map[string]string{
		"SSH_AUTH_SOCK": "/ssh-agent", "UV_PYTHON_INSTALL_DIR": home + "/.local/share/uv/python",
	}
	if !maps.Equal(planned.Env, wantEnv) {
		t.Errorf("the environment is %v, want %v", planned.Env, wantEnv)
	}
}

func TestToolsAreRefusedByTheirField(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	fill(t, home, map[string]string{
		".claude/x": "x", ".codex": "->/etc", ".agents/a": "x", ".npm": "a file", ".cache/uv/x": "x",
	})
	d := hostdir.Dir{Path: filepath.Join(dir, "state")}
	box := boxOf(t, []string{"claude", "codex", "npm", "uv", "git"}, home, filepath.Join(home, ".claude", "x"))
	for what, c := range map[string]struct{ tool, reason string }{
		"a required file is missing":                 {"claude", protocol.ReasonToolUnavailable},
		"the directory is a link out of the home":    {"codex", protocol.ReasonMountDenied},
		"the home has a file instead of a directory": {"npm", protocol.ReasonMountDenied},
		"the ssh agent's address is not a socket":    {"git", protocol.ReasonMountDenied},
		"the operator does not offer the tool":       {"opencode", protocol.ReasonToolUnavailable},
		"there is no such tool":                      {"vim", protocol.ReasonToolUnavailable},
	} {
		code := protocol.FailedPrecondition
		if c.reason == protocol.ReasonMountDenied {
			code = protocol.PermissionDenied
		}
		_, err := box.plan(&protocol.SandboxSpec{Tools: []string{"uv", c.tool}}, "/root", d)
		if e := protocol.AsError(err); e == nil || e.Code != code || e.Reason != c.reason || e.Field != "spec.tools[1]" {
			t.Errorf("%s: error %v, want code %s, reason %s and field spec.tools[1]", what, err, code, c.reason)
		}
	}
	if _, err := NewToolbox([]string{"git", "vim"}, home, "", nil); !names(err, "tools[1]") {
		t.Errorf("an operator offers the unknown tool vim: error %v, want one that names tools[1]", err)
	}
	none := boxOf(t, nil, home, "")
	_, err := none.plan(&protocol.SandboxSpec{Tools: []string{"uv"}}, "/root", d)
	if protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("by default no tool is offered: error %v, want failed_precondition", err)
	}
}

// names reports whether an error names a field.
func names(err error, field string) bool {
	e := protocol.AsError(err)
	return e != nil && e.Field == field
}

func TestAToolIsRefusedIfTheSpecUsesItsPathForOtherFiles(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	fill(t, home, map[string]string{".cache/uv/x": "x"})
	d := hostdir.Dir{Path: filepath.Join(dir, "state")}
	box := boxOf(t, []string{"uv"}, home, "")
	for what, c := range map[string]struct {
		spec protocol.SandboxSpec
		home string
	}{
		"at the target of a mount": {
			protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: "/x", Target: "/root/.cache/uv/"}}}, "/root",
		},
		"at the target of a tmpfs": {
			protocol.SandboxSpec{Tmpfs: []protocol.Tmpfs{{Target: "/root/.cache/uv"}}}, "/root",
		},
		"above the target of a copy": {
			protocol.SandboxSpec{Copies: []protocol.Copy{{Target: "/root/.cache/uv/x"}}}, "/root",
		},
		"in the directory of the worker's files": {protocol.SandboxSpec{}, "/.boxfleet/run"},
		"in a file system of the kernel":         {protocol.SandboxSpec{}, "/proc/self"},
	} {
		c.spec.Tools = []string{"uv"}
		_, err := box.plan(&c.spec, c.home, d)
		if protocol.CodeOf(err) != protocol.InvalidArgument || !names(err, "spec.tools[0]") {
			t.Errorf("a tool %s: error %v, want invalid_argument for spec.tools[0]", what, err)
		}
	}
	elsewhere := protocol.SandboxSpec{
		Tools: []string{"uv"}, Copies: []protocol.Copy{{Target: "/root/.cache/uv/x", Service: "db"}},
	}
	if _, err := box.plan(&elsewhere, "/root", d); err != nil {
		t.Errorf("a tool above a copy into a service's container is refused: %v", err)
	}
}

func TestS12_AHardLinkToTheEnginesSocketIsNotMountedAsSSHAgent(t *testing.T) {
	dir := t.TempDir()
	socket, agent := filepath.Join(dir, "engine", "engine.sock"), filepath.Join(dir, "agent", "agent.sock")
	fill(t, dir, map[string]string{"engine/": "", "agent/": ""})
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.Link(socket, agent); err != nil {
		t.Fatal(err)
	}
	policy, err := NewPolicy(nil, []string{socket})
	if err != nil {
		t.Fatal(err)
	}
	box, err := NewToolbox([]string{"git"}, dir, agent, policy)
	if err != nil {
		t.Fatal(err)
	}
	d := hostdir.Dir{Path: filepath.Join(dir, "state")}
	_, err = box.plan(&protocol.SandboxSpec{Tools: []string{"git"}}, "/root", d)
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonMountDenied || e.Field != "spec.tools[0]" {
		t.Errorf("a hard link to the engine's socket: error %v, want reason mount_denied for spec.tools[0]", err)
	}
}
