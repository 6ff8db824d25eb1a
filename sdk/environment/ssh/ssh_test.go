package ssh_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/environmenttest"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh"
)

// server is an sshd on the loopback address, with keys of its own.
type server struct {
	dir    string
	config ssh.Config
}

// listen starts an sshd that runs a command instead of what a client asks for, or "" for what it asks for.
func listen(t *testing.T, force string) *server {
	t.Helper()
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		if sshd = "/usr/sbin/sshd"; exec.Command("test", "-x", sshd).Run() != nil {
			t.Skip("no sshd: scripts/tools installs openssh-server")
		}
	}
	s := &server{dir: t.TempDir()}
	for _, name := range []string{"host", "user", "other"} {
		s.command(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir, name))
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	s.write(t, "authorized", s.read(t, "user.pub"))
	s.write(t, "known", fmt.Sprintf("[127.0.0.1]:%d %s", port, s.read(t, "host.pub")))
	config := fmt.Sprintf("ListenAddress 127.0.0.1\nPort %d\nHostKey %s/host\nAuthorizedKeysFile %s/authorized\n"+
		"PidFile none\nStrictModes no\nUsePAM no\n"+
		"PasswordAuthentication no\nPermitRootLogin yes\nMaxSessions 200\nMaxStartups 200\n"+
		"PrintMotd no\nSetEnv HOME=%s\n", port, s.dir, s.dir, s.dir)
	s.write(t, ".bashrc", "echo Welcome\necho warning >&2\n") // bash reads it when sshd starts it
	if force != "" {
		config += "ForceCommand " + force + "\n"
	}
	s.write(t, "config", config)
	if os.Getuid() == 0 {
		s.command(t, "mkdir", "-p", "/run/sshd") // sshd wants this directory
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, sshd, "-D", "-e", "-f", filepath.Join(s.dir, "config"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	s.config = ssh.Config{Host: "127.0.0.1", Port: port, User: me.Username, KnownHosts: filepath.Join(s.dir, "known"),
		Identity: filepath.Join(s.dir, "user")}
	eventually.Holds(t, 10*time.Second, "sshd accepts connections", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return s
}

func (s *server) command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func (s *server) read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (s *server) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, c ssh.Config) *ssh.Environment {
	t.Helper()
	env, err := ssh.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { env.Close() })
	return env
}

func TestConformance(t *testing.T) {
	t.Parallel()
	o := environmenttest.Sample()
	o.Dir = t.TempDir()
	environmenttest.Run(t, connect(t, listen(t, "").config), o)
}

// TestALoginThatPrintsDoesNotChangeTheOutput runs each command below a program that prints first, as a profile does.
func TestALoginThatPrintsDoesNotChangeTheOutput(t *testing.T) {
	t.Parallel()
	env := connect(t, listen(t, `sh -c 'echo Welcome; echo warning >&2; eval "$SSH_ORIGINAL_COMMAND"'`).config)
	result, err := environment.Execute(t.Context(), env, "echo out; echo err >&2", environment.Options{})
	if err != nil || string(result.Stdout) != "out\n" || string(result.Stderr) != "err\n" {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestAHostWithAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := listen(t, "")
	for name, known := range map[string]string{"unknown": "", "changed": fmt.Sprintf("[127.0.0.1]:%d %s", s.config.Port,
		s.read(t, "other.pub"))} {
		s.write(t, "known", known)
		_, err := environment.Execute(t.Context(), connect(t, s.config), "echo ran", environment.Options{})
		if environment.KindOf(err) != environment.Unavailable || !strings.Contains(err.Error(), "ost key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAUserWithAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := listen(t, "")
	s.config.Identity = filepath.Join(s.dir, "other")
	_, err := environment.Execute(t.Context(), connect(t, s.config), "echo ran", environment.Options{})
	if environment.KindOf(err) != environment.Unavailable || !strings.Contains(err.Error(), "denied") {
		t.Error(err)
	}
}

func TestAClosedConnectionLeavesNothing(t *testing.T) {
	t.Parallel()
	s := listen(t, "")
	env := connect(t, s.config)
	if _, err := environment.Execute(t.Context(), env, "echo ran", environment.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the shared connection ends", func() bool {
		return exec.Command("pgrep", "-f", "127.0.0.1.*-p "+fmt.Sprint(s.config.Port)).Run() != nil
	})
}

func TestBadSettingsAreRefused(t *testing.T) {
	t.Parallel()
	good := ssh.Config{Host: "h", User: "u", KnownHosts: "/k"}
	for name, change := range map[string]func(*ssh.Config){
		"no host":           func(c *ssh.Config) { c.Host = "" },
		"an option as host": func(c *ssh.Config) { c.Host = "-oProxyCommand=id" },
		"an option as user": func(c *ssh.Config) { c.User = "-l" }, "a command": func(c *ssh.Config) { c.User = "$(id)" },
		"no known hosts": func(c *ssh.Config) { c.KnownHosts = "" }, "a port": func(c *ssh.Config) { c.Port = 70000 },
		"a quote": func(c *ssh.Config) { c.KnownHosts = `/a"b` }, "a newline": func(c *ssh.Config) { c.Identity = "/a\nb" },
		"a percent sign":     func(c *ssh.Config) { c.KnownHosts = "/%h" },
		"a host with a line": func(c *ssh.Config) { c.Host = "h\n" },
	} {
		c := good
		change(&c)
		if _, err := ssh.New(c); environment.KindOf(err) != environment.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
