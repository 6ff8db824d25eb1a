package ssh_test

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/environmenttest"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh/sshtest"
)

// listen starts an sshd that runs a command instead of what a client asks for, or "" for what it asks for.
func listen(t *testing.T, force string) *sshtest.Server {
	t.Helper()
	s, err := sshtest.Start(t.Context(), t.TempDir(), force)
	if errors.Is(err, sshtest.ErrNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
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
	environmenttest.Run(t, connect(t, listen(t, "").Config), o)
}

// TestALoginThatPrintsDoesNotChangeTheOutput runs each command below a program that prints first, as a profile does.
func TestALoginThatPrintsDoesNotChangeTheOutput(t *testing.T) {
	t.Parallel()
	env := connect(t, listen(t, `sh -c 'echo Welcome; echo warning >&2; eval "$SSH_ORIGINAL_COMMAND"'`).Config)
	result, err := environment.Execute(t.Context(), env, "echo out; echo err >&2", environment.Options{})
	if err != nil || string(result.Stdout) != "out\n" || string(result.Stderr) != "err\n" {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestAHostWithAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := listen(t, "")
	for name, known := range map[string]string{"unknown": "", "changed": "other"} {
		if err := s.Know(known); err != nil {
			t.Fatal(err)
		}
		_, err := environment.Execute(t.Context(), connect(t, s.Config), "echo ran", environment.Options{})
		if environment.KindOf(err) != environment.Unavailable || !strings.Contains(err.Error(), "ost key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAUserWithAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := listen(t, "")
	s.Config.Identity = s.Stranger()
	_, err := environment.Execute(t.Context(), connect(t, s.Config), "echo ran", environment.Options{})
	if environment.KindOf(err) != environment.Unavailable || !strings.Contains(err.Error(), "denied") {
		t.Error(err)
	}
}

func TestAClosedConnectionLeavesNothing(t *testing.T) {
	t.Parallel()
	s := listen(t, "")
	env := connect(t, s.Config)
	if _, err := environment.Execute(t.Context(), env, "echo ran", environment.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the shared connection ends", func() bool {
		return exec.Command("pgrep", "-f", "127.0.0.1.*-p "+fmt.Sprint(s.Config.Port)).Run() != nil
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
