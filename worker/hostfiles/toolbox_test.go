package hostfiles

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
				t.Errorf("%s has the mount %s, which does not exist", tool.name, use.mount)
			}
		}
	}
	for i, m := range toolMounts {
		if !used[m.name] {
			t.Errorf("no tool has %s", m.name)
		}
		if m.mode == toolSocket != (m.source == "") {
			t.Errorf("%s: a mount has no source if and only if it is a socket", m.name)
		}
		for _, other := range toolMounts[i+1:] {
			if m.name == other.name {
				t.Errorf("%s is defined twice", m.name)
			}
			// A sandbox must not be able to redirect another mount's source.
			if m.source != "" && other.source != "" && (isBelow(m.source, other.source) || isBelow(other.source, m.source)) {
				t.Errorf("%s is inside %s, or contains it", m.name, other.name)
			}
		}
	}
}

// fill creates files below a directory. Content that begins with -> makes a link, a name that ends with a slash a
// directory.
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
		".codex/auth.json": "x", ".agents/a": "x", ".config/opencode/c": "x", ".ssh/known_hosts": "x", ".local/share/uv/python/3/bin": "x",
		"real/gh/hosts.yml": "x", ".config/gh": "->../real/gh",
	})
	agent := filepath.Join(dir, "agent.sock")
	listener, err := net.Listen("unix", agent)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	box := boxOf(t, []string{"all"}, home, agent)
	if got := strings.Join(box.Usable(), " "); got != "codex opencode git uv npm apt" {
		t.Errorf("usable: %s", got)
	}
	if got := strings.Join(FoundTools(home, ""), " "); got != "codex opencode git uv" {
		t.Errorf("found: %s", got)
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
			t.Errorf("%s is copied", b.Tool)
		}
	}
	want := []string{
		"spec.tools[0] opencode-config /home/agent/.config/opencode rw", "spec.tools[0] .agents /home/agent/.agents rw",
		"spec.tools[1] .codex /home/agent/.codex rw",
		"spec.tools[2] ssh-agent /ssh-agent rw", "spec.tools[2] gh-auth /home/agent/.config/gh ro", "spec.tools[2] ssh-known-hosts /home/agent/.ssh/known_hosts ro",
		"spec.tools[3] uv-python " + home + "/.local/share/uv/python rw",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	env := planned.Env
	if env["SSH_AUTH_SOCK"] != "/ssh-agent" || env["UV_PYTHON_INSTALL_DIR"] != home+"/.local/share/uv/python" || len(env) != 2 {
		t.Errorf("environment: %v", env)
	}
}

func TestToolsAreRefusedByTheirField(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	fill(t, home, map[string]string{".claude/x": "x", ".codex": "->/etc", ".agents/a": "x", ".npm": "a file", ".cache/uv/x": "x"})
	d := hostdir.Dir{Path: filepath.Join(dir, "state")}
	box := boxOf(t, []string{"claude", "codex", "npm", "uv", "git"}, home, filepath.Join(home, ".claude", "x"))
	for what, c := range map[string]struct {
		spec   protocol.SandboxSpec
		home   string
		code   protocol.Code
		reason string
	}{
		"a required file is missing": {protocol.SandboxSpec{Tools: []string{"uv", "claude"}}, "/root", protocol.FailedPrecondition, protocol.ReasonToolUnavailable},
		"a link leads out":           {protocol.SandboxSpec{Tools: []string{"uv", "codex"}}, "/root", protocol.PermissionDenied, protocol.ReasonMountDenied},
		"a file for a directory":     {protocol.SandboxSpec{Tools: []string{"uv", "npm"}}, "/root", protocol.PermissionDenied, protocol.ReasonMountDenied},
		"no socket":                  {protocol.SandboxSpec{Tools: []string{"uv", "git"}}, "/root", protocol.PermissionDenied, protocol.ReasonMountDenied},
		"turned off":                 {protocol.SandboxSpec{Tools: []string{"uv", "opencode"}}, "/root", protocol.FailedPrecondition, protocol.ReasonToolUnavailable},
		"unknown":                    {protocol.SandboxSpec{Tools: []string{"uv", "vim"}}, "/root", protocol.FailedPrecondition, protocol.ReasonToolUnavailable},
	} {
		_, err := box.plan(&c.spec, c.home, d)
		if e := protocol.AsError(err); e == nil || e.Code != c.code || e.Reason != c.reason || e.Field != "spec.tools[1]" {
			t.Errorf("%s: %v", what, err)
		}
	}
	uv := []string{"uv"}
	for what, c := range map[string]struct {
		spec protocol.SandboxSpec
		home string
	}{
		"where a mount goes":    {protocol.SandboxSpec{Tools: uv, Mounts: []protocol.Mount{{Source: "/x", Target: "/root/.cache/uv/"}}}, "/root"},
		"where a tmpfs goes":    {protocol.SandboxSpec{Tools: uv, Tmpfs: []protocol.Tmpfs{{Target: "/root/.cache/uv"}}}, "/root"},
		"above a copy":          {protocol.SandboxSpec{Tools: uv, Copies: []protocol.Copy{{Target: "/root/.cache/uv/x"}}}, "/root"},
		"in the worker's files": {protocol.SandboxSpec{Tools: uv}, "/.boxfleet/run"},
		"in the kernel's files": {protocol.SandboxSpec{Tools: uv}, "/proc/self"},
	} {
		_, err := box.plan(&c.spec, c.home, d)
		if e := protocol.AsError(err); e == nil || e.Code != protocol.InvalidArgument || e.Field != "spec.tools[0]" {
			t.Errorf("%s: %v", what, err)
		}
	}
	elsewhere := protocol.SandboxSpec{Tools: uv, Copies: []protocol.Copy{{Target: "/root/.cache/uv/x", Service: "db"}}}
	if _, err := box.plan(&elsewhere, "/root", d); err != nil {
		t.Errorf("a copy into a service's container: %v", err)
	}
	if _, err := NewToolbox([]string{"git", "vim"}, home, "", nil); protocol.AsError(err) == nil || protocol.AsError(err).Field != "tools[1]" {
		t.Errorf("an operator offers vim: %v", err)
	}
	if _, err := boxOf(t, nil, home, "").plan(&protocol.SandboxSpec{Tools: uv}, "/root", d); protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("by default nothing is offered: %v", err)
	}
}

func TestADirectoryWithLinksThatLeadOutIsCopied(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	fill(t, source, map[string]string{"f": "content", "d/g": "more", "d/in": "->../f", "d/empty/": ""})
	f, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to := filepath.Join(dir, "copies", "copy")
	if copied, err := shadow(f, to); copied || err != nil {
		t.Fatalf("without such links: %v, %v", copied, err)
	}
	if _, err := os.Lstat(to); err == nil {
		t.Error("a copy was made")
	}
	secret := filepath.Join(dir, "secret")
	fill(t, dir, map[string]string{"secret": "SECRET"})
	fill(t, source, map[string]string{"d/out": "->" + secret, "up": "->../secret", "turns": "->d/../../secret"})
	socket, err := net.Listen("unix", filepath.Join(source, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := os.Chmod(filepath.Join(source, "d"), 0o711); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over the copy of an earlier try
		if copied, err := shadow(f, to); !copied || err != nil {
			t.Fatalf("with such links: %v, %v", copied, err)
		}
	}
	var got []string
	err = filepath.WalkDir(to, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(to, p)
		got = append(got, rel+" "+e.Type().String())
		return nil
	})
	if want := ". d---------,d d---------,d/empty d---------,d/g ----------,d/in L---------,f ----------"; err != nil || strings.Join(got, ",") != want {
		t.Errorf("the copy has %s, %v", strings.Join(got, ","), err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "d", "in")); err != nil || string(data) != "content" {
		t.Errorf("a link inside: %q, %v", data, err)
	}
	if info, err := os.Stat(filepath.Join(to, "d")); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("a directory's mode: %v, %v", info.Mode(), err)
	}
}

func TestHomesComeFromPasswd(t *testing.T) {
	passwd := []byte("root:x:0:0:root:/root:/bin/sh\nbox:x:1000:1000:box:/home/box:/bin/sh\nbroken\nnobody:x:65534:65534::/\n")
	for user, want := range map[string]string{"root": "/root", "0": "/root", "box": "/home/box", "1000": "/home/box", "nobody": "/", "x": "", "7": "", "": ""} {
		if got := passwdHome(passwd, user); got != want {
			t.Errorf("%q: %q, want %q", user, got, want)
		}
	}
}

func TestOnlySoManyHomesAreRemembered(t *testing.T) {
	var h Homes
	if _, known := h.find(imageUser{"1", "box"}); known {
		t.Error("a home is known at the start")
	}
	for i := range 3 * maxHomes {
		of := imageUser{strconv.Itoa(i), "box"}
		h.remember(of, "/home")
		if home, known := h.find(of); home != "/home" || !known || len(h.known) > maxHomes {
			t.Fatalf("after %d: %q, %t, %d are remembered", i, home, known, len(h.known))
		}
	}
	if _, known := h.find(imageUser{strconv.Itoa(3*maxHomes - 1), "root"}); known {
		t.Error("another user's is known")
	}
}

func TestS12_AnotherNameOfTheEnginesSocketIsNoAgent(t *testing.T) {
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
	_, err = box.plan(&protocol.SandboxSpec{Tools: []string{"git"}}, "/root", hostdir.Dir{Path: filepath.Join(dir, "state")})
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonMountDenied || e.Field != "spec.tools[0]" {
		t.Errorf("a hard link to the engine's socket: %v", err)
	}
}
