package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// debianRoot returns the archive of a Debian root with systemd and an engine, which `make packages-test` makes.
func debianRoot(t *testing.T) string {
	t.Helper()
	archive := os.Getenv("BOXFLEET_TEST_DEBIAN")
	if archive == "" {
		t.Skip("BOXFLEET_TEST_DEBIAN is not set: run make packages-test")
	}
	return archive
}

// packaging prevents that two tests use the build directory of scripts/package at the same time.
var packaging sync.Mutex

// packages builds the Debian packages with a version, and returns their directory.
func packages(t *testing.T, version string) string {
	t.Helper()
	packaging.Lock()
	defer packaging.Unlock()
	dir := t.TempDir()
	cmd := exec.CommandContext(within(t, 5*time.Minute), "../scripts/package", dir)
	cmd.Env = append(os.Environ(), "VERSION="+version)
	run(t, cmd)
	return dir
}

// chroot is a Debian root in a temporary directory, without running services.
type chroot struct{ dir string }

func newChroot(t *testing.T) *chroot {
	t.Helper()
	c := &chroot{dir: t.TempDir()}
	run(t, exec.CommandContext(within(t, 2*time.Minute), "tar", "-C", c.dir, "-xf", debianRoot(t)))
	return c
}

// try runs a command in the root and returns what it printed.
func (c *chroot) try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(within(t, 2*time.Minute), "unshare", append([]string{"--mount", "--pid", "--fork",
		"--mount-proc=" + filepath.Join(c.dir, "proc"), "chroot", c.dir}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *chroot) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t, args...)
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return out
}

// install installs both packages from a directory.
func (c *chroot) install(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 2 {
		t.Fatalf("packages: %v, %v", found, err)
	}
	for _, path := range found {
		run(t, exec.Command("cp", path, filepath.Join(c.dir, "tmp")))
		c.run(t, "dpkg", "--install", "/tmp/"+filepath.Base(path))
	}
}

func (c *chroot) has(path string) bool {
	_, err := os.Lstat(filepath.Join(c.dir, path))
	return err == nil
}

func TestThePackagesAreInstalledUpgradedRemovedAndPurged(t *testing.T) {
	c := newChroot(t)
	c.install(t, packages(t, "1.0.0"))
	if printed := c.run(t, "boxfleet", "version"); !strings.Contains(printed, "boxfleet 1.0.0,") {
		t.Errorf("the installed program prints %s", printed)
	}
	for _, unit := range units {
		if warnings := c.run(t, "systemd-analyze", "verify", unit+".service"); warnings != "" {
			t.Errorf("%s: %s", unit, warnings)
		}
	}
	c.run(t, "id", "boxfleet")
	c.run(t, "id", "boxfleet-nats")
	for _, path := range []string{"usr/lib/boxfleet/boxfleet-supervisor", "usr/share/man/man1/boxfleet-worker.1.gz",
		"usr/share/bash-completion/completions/boxfleet", "usr/share/zsh/vendor-completions/_boxfleet",
		"usr/share/fish/vendor_completions.d/boxfleet.fish", "usr/share/doc/boxfleet-nats/cluster.conf"} {
		if !c.has(path) {
			t.Errorf("%s is missing", path)
		}
	}

	write(t, filepath.Join(c.dir, "etc/boxfleet/config.yaml"), "nats: tls://mine:4222\n")
	creds := filepath.Join(c.dir, "etc/boxfleet/worker.creds")
	write(t, creds, "secret")
	if err := os.Chmod(creds, 0o644); err != nil {
		t.Fatal(err)
	}
	c.install(t, packages(t, "1.0.1"))
	if printed := c.run(t, "boxfleet", "version"); !strings.Contains(printed, "boxfleet 1.0.1,") {
		t.Errorf("the upgraded program prints %s", printed)
	}
	if kept := c.run(t, "cat", "/etc/boxfleet/config.yaml"); kept != "nats: tls://mine:4222\n" {
		t.Errorf("the upgrade changed the configuration: %s", kept)
	}
	if info, err := os.Stat(creds); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("credentials after an upgrade: %v, %v", info, err)
	}

	c.run(t, "dpkg", "--remove", "boxfleet", "boxfleet-nats")
	if c.has("usr/bin/boxfleet") || c.has("usr/lib/boxfleet") || !c.has("etc/boxfleet/config.yaml") {
		t.Error("want the programs removed, and the configuration kept")
	}
	for _, dir := range []string{"var/lib/boxfleet/worker", "var/lib/boxfleet-nats/store"} {
		if err := os.MkdirAll(filepath.Join(c.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	printed := c.run(t, "dpkg", "--purge", "boxfleet", "boxfleet-nats")
	if c.has("etc/boxfleet") || c.has("etc/boxfleet-nats") || !c.has("var/lib/boxfleet/worker") ||
		!c.has("var/lib/boxfleet-nats/store") || !strings.Contains(printed, "boxfleet worker purge") {
		t.Errorf("want the configuration removed, and data kept with a message: %s", printed)
	}
}
