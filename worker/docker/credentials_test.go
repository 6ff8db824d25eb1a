package docker

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestLoginsAreReadFromTheConfigurationAndFromCredentialHelpers(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	helper := func(name, script string) {
		if err := os.WriteFile(filepath.Join(bin, "docker-credential-"+name), []byte("#!/bin/sh\n"+script),
			0o755); err != nil {
			t.Fatal(err)
		}
	}
	helper("good", `read host; [ "$1 $host" = "get helped.test" ] && `+
		`echo '{"ServerURL":"helped.test","Username":"u","Secret":"s"}'`)
	helper("broken", "echo it broke; exit 1")
	helper("hanging", "echo $$ >"+filepath.Join(bin, "pid")+"; exec sleep 60")
	config := `{"auths": {"plain.test": {"auth": "dTpw"}, "https://index.docker.io/v1/": {"auth": "aHViOnB3"}},
		"credHelpers": {"helped.test": "good", "broken.test": "broken", "hanging.test": "hanging"}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for ref, user := range map[string]string{"plain.test/a/b:1": "u", "helped.test/x": "u", "busybox": "hub",
		"library/busybox@sha256:" + digits: "hub", "other.test/x": ""} {
		login, err := loginFor(t.Context(), dir, registryOf(ref))
		if err != nil || login.Username != user {
			t.Errorf("login for %s: got %+v and error %v, want the user %q", ref, login, err, user)
		}
	}
	if login, err := loginFor(t.Context(), dir, "broken.test"); err == nil {
		t.Errorf("login with a failing helper: got %+v, want an error", login)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := loginFor(short, dir, "hanging.test"); err == nil {
		t.Error("login with a hanging helper: got no error when the context ended")
	}
	data, err := os.ReadFile(filepath.Join(bin, "pid"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 || syscall.Kill(pid, syscall.SIGKILL) != nil {
		t.Errorf("could not end the hanging helper, process %d: %v", pid, err)
	}
	if login, err := loginFor(t.Context(), t.TempDir(), "plain.test"); err != nil || login.Username != "" {
		t.Errorf("login without a configuration: got %+v and error %v, want neither", login, err)
	}
}

const digits = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
