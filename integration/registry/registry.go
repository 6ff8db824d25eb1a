// Package registry runs a real image registry for tests, Debian's docker-registry, on its own socket. Doors are HTTP
// proxies in front of the registry, on loopback addresses. They count requests and can stall, slow down and refuse
// requests.
package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/boxfleet/boxfleet/integration/child"
)

// The login of a private registry.
const (
	User     = "box"
	Password = "fleet"
)

// Registry is a registry that runs until the test ends.
type Registry struct {
	tb     testing.TB
	dir    string
	socket string
}

// Start starts an empty registry. A private registry refuses everyone except [User].
func Start(tb testing.TB, private bool) *Registry {
	tb.Helper()
	dir, err := os.MkdirTemp("", "boxfleet-registry-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	r := &Registry{tb: tb, dir: dir, socket: filepath.Join(dir, "socket")}
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: "+
		"{rootdirectory: %s/data}}\nhttp: {net: unix, addr: %s}\n", dir, r.socket)
	if private {
		hash, err := bcrypt.GenerateFromPassword([]byte(Password), bcrypt.MinCost)
		if err != nil {
			tb.Fatal(err)
		}
		r.write("htpasswd", User+":"+string(hash)+"\n")
		config += fmt.Sprintf("auth: {htpasswd: {realm: test, path: %s/htpasswd}}\n", dir)
	}
	r.write("config.yml", config)
	var log bytes.Buffer
	server := exec.Command(binary(tb), "serve", filepath.Join(dir, "config.yml"))
	server.Stdout, server.Stderr = &log, &log
	if err := child.Start(server); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = server.Process.Kill() // fails if the server has ended
		_ = server.Wait()         // reports the kill
		if tb.Failed() {
			tb.Logf("the registry's log:\n%s", log.String())
		}
	})
	deadline := time.Now().Add(20 * time.Second)
	for {
		conn, err := net.Dial("unix", r.socket)
		if err == nil {
			conn.Close()
			return r
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the registry does not listen: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// binary returns the server that scripts/registry installed.
func binary(tb testing.TB) string {
	tb.Helper()
	if path, err := exec.LookPath("docker-registry"); err == nil {
		return path
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			tb.Fatal(err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	path := filepath.Join(state, "boxfleet", "registry", "usr", "bin", "docker-registry")
	if _, err := os.Stat(path); err != nil {
		tb.Fatal("docker-registry is not installed: run `make registry`")
	}
	return path
}

func (r *Registry) write(name, content string) {
	r.tb.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
		r.tb.Fatal(err)
	}
}

// Login creates a directory with a Docker configuration that contains the login for a host. It returns the directory's
// path.
func Login(tb testing.TB, host, password string) string {
	tb.Helper()
	dir := tb.TempDir()
	auth := base64.StdEncoding.EncodeToString([]byte(User + ":" + password))
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Push builds an image on the engine at host from the base image and a file of random bytes of the given size. It
// pushes the image through the door, and removes the image from the engine. The engine must reach the door. Push
// returns the registry's digest of the image.
func (r *Registry) Push(host string, door *Door, base, name string, size int) (digest string) {
	r.tb.Helper()
	ref := door.Host + "/" + name
	config := Login(r.tb, door.Host, Password)
	source := r.tb.TempDir()
	payload := make([]byte, size)
	_, _ = rand.Read(payload) // never fails
	for file, content := range map[string][]byte{"Dockerfile": []byte("FROM " + base + "\nADD payload /payload\n"),
		"payload": payload} {
		if err := os.WriteFile(filepath.Join(source, file), content, 0o644); err != nil {
			r.tb.Fatal(err)
		}
	}
	r.docker(host, config, "build", "-q", "-t", ref, source)
	defer r.docker(host, config, "rmi", ref)
	r.docker(host, config, "push", "-q", ref)
	out := r.docker(host, config, "inspect", "-f", "{{index .RepoDigests 0}}", ref)
	_, digest, _ = strings.Cut(out, "@")
	return digest
}

func (r *Registry) docker(host, config string, args ...string) string {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", append([]string{"--config", config, "-H", host}, args...)...)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.tb.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *Registry) transport() *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.socket)
	}}
}
