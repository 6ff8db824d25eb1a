package integration

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

func TestToolsAreMountedInTheHomeOfTheSandboxsUser(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	home := t.TempDir()
	for name, content := range map[string]string{
		".claude/settings": "settings", ".claude.json": "{}", ".ssh/known_hosts": "host key", ".config/gh/hosts.yml": "token",
		".local/share/uv/python/3.13/bin": "python", ".agents/skills/a": "skill", ".codex/auth": "auth",
	} {
		writeFile(t, filepath.Join(home, name), content, 0o666, time.Now())
	}
	// A link in .codex leads out of that directory. The sandbox gets a copy of the link's target.
	writeFile(t, filepath.Join(home, "secret"), "SECRET", 0o644, time.Now())
	if err := errors.Join(os.Symlink("../secret", filepath.Join(home, ".codex", "link")),
		os.Chown(filepath.Join(home, ".codex"), 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(home, "agent.sock")
	listener, err := net.Listen("unix", agent)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	w := f.Worker("w1", fleet.Role{Tools: []string{"claude", "git", "uv", "codex", "apt", "opencode"}, ToolsHome: home,
		SSHAgent: agent})
	ctx := f.Context(time.Minute)
	f.Eventually(10*time.Second, "the host reports its tools", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
		if err == nil && (len(hosts) != 1 || strings.Join(hosts[0].Tools, " ") != "claude git uv codex apt opencode") {
			err = fmt.Errorf("the hosts are %+v", hosts)
		}
		return err
	})
	spec := f.Spec()
	spec.Tools = []string{"codex", "claude", "git", "uv", "opencode"}
	spec.User = "box"
	s, err := f.Client.Create(ctx, spec, sdk.WithID("tools"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Info().Spec.Tools, " "); got != "codex claude git uv opencode" {
		t.Errorf("read back: %s", got)
	}
	got := mustExec(ctx, t, s,
		script(`echo $HOME; cd; cat .claude/settings .claude.json .ssh/known_hosts .config/gh/hosts.yml `+
			`.agents/skills/a .codex/auth; echo; ls -A .codex; stat -c %F $SSH_AUTH_SOCK; cat `+
			`$UV_PYTHON_INSTALL_DIR/3.13/bin; grep -c ' /home/box/.agents ' /proc/self/mountinfo`))
	if want := "/home/box\nsettings{}host keytokenskillauth\nauth\nsocket\npython1\n"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	mustExec(ctx, t, s,
		script(`cd; echo by sandbox > .claude/settings && echo x > .codex/auth && echo new > .codex/new`))
	for _, attempt := range []string{"echo x > .ssh/known_hosts", "echo x > .config/gh/hosts.yml",
		"rm .config/gh/hosts.yml", "touch .config/gh/new"} {
		if r, err := s.Exec(ctx, script("cd; "+attempt)); err != nil || code(r) == "0" {
			t.Errorf("%s: %v, exit code %s", attempt, err, code(r))
		}
	}
	for name, want := range map[string]string{".claude/settings": "by sandbox\n", ".codex/auth": "auth",
		".ssh/known_hosts": "host key", "secret": "SECRET"} {
		if data, err := os.ReadFile(filepath.Join(home, name)); err != nil || string(data) != want {
			t.Errorf("the host's %s: %q, %v", name, data, err)
		}
	}
	if err := errors.Join(s.Stop(ctx), s.Resume(ctx)); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat ~/.codex/new ~/.claude.json")); got != "new\n{}" {
		t.Errorf("after a resume: %q", got)
	}
	// When a sandbox starts again, the files of its tools must still exist.
	if err := errors.Join(s.Stop(ctx), os.Remove(filepath.Join(home, ".ssh", "known_hosts"))); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a resume without a tool's file", s.Resume(ctx), protocol.FailedPrecondition,
		protocol.ReasonToolUnavailable, "spec.tools[2]")
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
	if _, err := os.Stat(filepath.Join(home, ".claude", "settings")); err != nil {
		t.Errorf("the delete reached the host's files: %v", err)
	}

	// If the spec's environment sets HOME, that directory is the home. Without HOME, a user that has no home is
	// refused.
	spec.Tools, spec.User, spec.Env = []string{"claude"}, "4711", map[string]string{"HOME": "/tmp/me"}
	s, err = f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat ~/.claude.json; echo $HOME")); got != "{}/tmp/me\n" {
		t.Errorf("with HOME: %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	spec.Env = nil
	_, err = f.Client.Create(ctx, spec)
	wantError(t, "a user without a home", err, protocol.InvalidArgument, "", "spec.user")
	spec.Tools = []string{"apt"} // this tool needs no home
	if s, err = f.Client.Create(ctx, spec); err == nil {
		err = s.Delete(ctx)
	}
	if err != nil {
		t.Errorf("a user without a home, and a tool that needs none: %v", err)
	}
	for what, tools := range map[string][]string{"a tool that is turned off": {"git", "npm"},
		"an unknown tool": {"git", "vim"}} {
		spec := f.Spec()
		spec.Tools = tools
		_, err := f.Client.Create(ctx, spec)
		wantError(t, what, err, protocol.FailedPrecondition, protocol.ReasonToolUnavailable, "spec.tools[1]")
	}
	// The worker refuses a tool if its required file has disappeared since the worker reported the tool.
	if err := os.Remove(filepath.Join(home, ".claude.json")); err != nil {
		t.Fatal(err)
	}
	spec = f.Spec()
	spec.Tools = []string{"git", "claude"}
	_, err = f.Client.Create(ctx, spec)
	wantError(t, "a required file that is missing", err, protocol.FailedPrecondition, protocol.ReasonToolUnavailable,
		"spec.tools[1]")
	becomesEmpty(f, w)
}

func TestS12_NoToolLeadsToTheEnginesSocket(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	home := t.TempDir()
	link := filepath.Join(home, "agent.sock")
	if err := os.Symlink("/var/run/docker.sock", link); err != nil {
		t.Fatal(err)
	}
	w := f.Worker("w1", fleet.Role{Tools: []string{"all"}, ToolsHome: home, SSHAgent: link})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Tools = []string{"apt", "git"}
	_, err := f.Client.Create(ctx, spec)
	wantError(t, "the engine's socket as an ssh agent", err, protocol.PermissionDenied, protocol.ReasonMountDenied,
		"spec.tools[1]")
	becomesEmpty(f, w)
	if bytes.Contains([]byte(w.Log()), []byte("panic")) {
		t.Error(w.Log())
	}
}

func TestToolsNeedTheOperatorsPermission(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	home := t.TempDir()
	mkdir(t, filepath.Join(home, ".npm"))
	w := f.Worker("w1", fleet.Role{ToolsHome: home})
	spec := f.Spec()
	spec.Tools = []string{"npm"}
	_, err := f.Client.Create(f.Context(time.Minute), spec)
	wantError(t, "a tool without the operator's permission", err, protocol.FailedPrecondition,
		protocol.ReasonToolUnavailable, "spec.tools[0]")
	becomesEmpty(f, w)
}

// To look up the home of a user, the worker creates a container that never starts. The worker does so before it creates
// the sandbox's own container.
func TestTheHomeOfAUserIsLookedUpOncePerImage(t *testing.T) {
	t.Parallel()
	main := engines.Default(t)
	proxy, host := dockertest.StartProxy(t, main.Socket)
	other := "boxfleet/homes:" + strings.ToLower(rand.Text()[:10])
	// Make the image before the fleet starts. Cleanups run in reverse order, so the image is removed after the fleet
	// has ended.
	importWith(t, main.Host, other, "box:x:1000:1000:box:/elsewhere:/bin/sh\n")
	f := fleet.Start(t, fleet.Options{Workers: -1})
	home := t.TempDir()
	mkdir(t, filepath.Join(home, ".npm"))
	f.Worker("w1", fleet.Role{Engine: host, Tools: []string{"npm"}, ToolsHome: home})
	lookups := func() (n int) {
		for _, r := range proxy.Mutations() {
			if strings.HasSuffix(r.Path, "/containers/create") && strings.Contains(r.Query, ".passwd") {
				n++
			}
		}
		return n
	}
	for i, c := range []struct {
		image, user, home string
		lookups           int // expected number of lookups so far
	}{
		{fleet.Image, "box", "/home/box", 1}, {fleet.Image, "box", "/home/box", 1}, {fleet.Image, "box:100",
			"/home/box", 1},
		{fleet.Image, "", "/root", 2}, {fleet.Image, "0", "/root", 2}, {other, "box", "/elsewhere", 3}, {fleet.Image,
			"box", "/home/box", 3},
	} {
		spec := f.Spec()
		spec.Image, spec.User, spec.Tools = c.image, c.user, []string{"npm"}
		started := time.Now()
		s, err := f.Client.Create(f.Context(time.Minute), spec, sdk.WithID(fmt.Sprint("home-", i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v: created in %s", c, time.Since(started).Round(time.Millisecond))
		if got := mustExec(f.Context(time.Minute), t, s,
			script("grep -c ' "+c.home+"/.npm ' /proc/self/mountinfo")); got != "1\n" {
			t.Errorf("%+v: %q", c, got)
		}
		if n := lookups(); n != c.lookups {
			t.Errorf("%+v: %d lookups so far", c, n)
		}
	}
}

// If a worker is killed while it looks up a home, a container is left. The delete of the sandbox removes that
// container.
func TestADeleteRemovesTheContainerOfAHomeLookup(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	home := t.TempDir()
	mkdir(t, filepath.Join(home, ".npm"))
	w := f.Worker("w1", fleet.Role{Tools: []string{"npm"}, ToolsHome: home, CrashAt: "after-passwd-create"})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Tools = []string{"npm"}
	s, err := f.Client.Create(ctx, spec, sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	w.AwaitKilled(20 * time.Second)
	left := func() bool {
		return slices.ContainsFunc(f.Objects(""), func(o string) bool { return strings.HasSuffix(o, ".passwd") })
	}
	if !left() {
		t.Error("the killed worker left no container: the test proves nothing")
	}
	deleted := begin(func() error { return s.Delete(ctx) })
	restarted := time.Now()
	w = w.Restart()
	if err := doneWithin(t, restarted, "deleted", deleted); err != nil {
		t.Fatal(err)
	}
	if left() {
		t.Error("the sandbox is deleted, but the container of its home lookup exists")
	}
	becomesEmpty(f, w)
}

// importWith makes an image that differs from the test image only in its /etc/passwd.
func importWith(t *testing.T, host, ref, passwd string) {
	t.Helper()
	name := "boxfleet-homes-" + strings.ToLower(rand.Text()[:10])
	file := filepath.Join(t.TempDir(), "passwd")
	writeFile(t, file, passwd, 0o644, time.Now())
	docker(t, host, "create", "--name", name, fleet.Image)
	defer docker(t, host, "rm", name)
	docker(t, host, "cp", file, name+":/etc/passwd")
	docker(t, host, "commit", name, ref)
	t.Cleanup(func() { docker(t, host, "rmi", ref) })
}
