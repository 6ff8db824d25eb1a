package integration

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

// expect runs the program, and checks its exit code and a part of what it prints.
func (c *commandLine) expect(want int, part, stdin string, args ...string) string {
	c.t.Helper()
	code, stdout, stderr := c.run(stdin, args...)
	if code != want || !strings.Contains(stdout+stderr, part) {
		c.t.Errorf("%q: exit code %d, %q, %q; want %d and %q", args, code, stdout, stderr, want, part)
	}
	return stdout
}

func TestTheCommandLineCarriesFiles(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(4 * time.Minute)
	b := filesOf(ctx, t, f, "cli", func(spec *protocol.SandboxSpec) {
		spec.RequiredServices = services{"web": small("exec sleep 1000")}
	})
	c := &commandLine{t, buildCLI(t), f, t.TempDir()}
	f.Run(t, "cp", func(t *testing.T) {
		c.t = t
		c.copies(b)
	})
	f.Run(t, "cp with a service", func(t *testing.T) {
		c.t = t
		c.copiesWithService(b)
	})
	f.Run(t, "fs", func(t *testing.T) {
		c.t = t
		c.worksOnFiles(b)
	})
}

// local makes a file in the program's directory.
func (c *commandLine) local(name, content string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o750); err != nil {
		c.t.Fatal(err)
	}
}

func (c *commandLine) has(name, content string) {
	c.t.Helper()
	if got, err := os.ReadFile(filepath.Join(c.dir, name)); err != nil || string(got) != content {
		c.t.Errorf("%s has %q, %v; want %q", name, got, err, content)
	}
}

func (c *commandLine) copies(b boxed) {
	ctx := c.t.Context()
	c.local("src/f", "file")
	c.local("src/d/g", "deep")
	c.local("src/skip.o", "")
	b.sh(ctx, c.t, "mkdir -p /w/dir")
	for _, step := range []struct{ args, path, content string }{
		{"cp src/f cli:/w/new", "/w/new", "file"},                   // becomes the file
		{"cp src/f cli:/w/dir", "/w/dir/f", "file"},                 // into a directory
		{"cp src/f cli:/w/dir/", "/w/dir/f", "file"},                // the same; replaces
		{"cp src cli:/w/copy --exclude *.o", "/w/copy/d/g", "deep"}, // becomes the directory
		{"cp src cli:/w/dir", "/w/dir/src/d/g", "deep"},             // into a directory
		{"cp src cli:/w/small --compress always", "/w/small/d/g", "deep"},
		{"cp src/. cli:/w/dir", "/w/dir/d/g", "deep"},                     // the content into a directory
		{"cp src/ cli:/w/dir --user 0 --owner 0", "/w/dir/src/f", "file"}, // a slash changes nothing
	} {
		c.expect(0, "", "", strings.Fields(step.args)...)
		b.want(ctx, c.t, step.path, step.content)
	}
	if got := b.sh(ctx, c.t, "ls /w/copy; stat -c %a /w/new /w/copy/f"); got != "d\nf\n750\n750\n" {
		c.t.Errorf("copied: %q", got)
	}
	c.expect(1, protocol.ReasonNotDirectory, "", "cp", "src", "cli:/w/new")
	c.expect(1, protocol.ReasonPathNotFound, "", "cp", "src/f", "cli:/w/none/")
	c.expect(0, "", "from stdin", "cp", "-", "cli:/w/stdin")
	b.want(ctx, c.t, "/w/stdin", "from stdin")
	c.copiesOut(b)
	for args, part := range map[string]string{
		"cp a b": "neither", "cp x:/a y:/b": "both", "cp --tar a x:/b": "--tar", "cp a": "DST is missing",
		"cp a x:/b --keep-links": "--keep-links", "cp x:/a b --owner 1": "--owner", "cp none cli:/x": "none",
		"cp - x:/b --exclude a": "--exclude", "cp a x.y:/b": "SANDBOX",
		"cp a x:/b --max-bytes 1": "--max-bytes", "cp x:/a b --max-bytes many": "--max-bytes",
		"cp a x:/b --compress maybe": "--compress",
	} {
		c.expect(2, part, "", strings.Fields(args)...)
	}
}

func (c *commandLine) copiesWithService(b boxed) {
	ctx := c.t.Context()
	c.local("forweb/d/f", "for the service")
	c.expect(0, "", "", "cp", "forweb/d/f", "cli:/in-web", "--service", "web")
	c.expect(0, "", "", "cp", "forweb", "cli:/tree-in-web", "--service", "web")
	for _, path := range []string{"/in-web", "/tree-in-web/d/f"} {
		if got := printedBy(c.t, ctx, b.box, "web", "cat", path); got != "for the service" {
			c.t.Errorf("the service reads %q in %s", got, path)
		}
		c.expect(1, protocol.ReasonPathNotFound, "", "cp", "cli:"+path, "-")
	}
	if got := c.expect(0, "", "", "cp", "cli:/in-web", "-", "--service", "web"); got != "for the service" {
		c.t.Errorf("stdout has %q", got)
	}
	c.expect(2, "no service", "", "cp", "forweb/d/f", "cli:/x", "--service", "none")
}

func (c *commandLine) copiesOut(b boxed) {
	ctx := c.t.Context()
	c.local("here/old", "")
	for _, step := range []struct{ args, path, content string }{
		{"cp cli:/w/new got", "got", "file"},
		{"cp cli:/w/new got", "got", "file"}, // replaces
		{"cp cli:/w/new here", "here/new", "file"},
		{"cp cli:/w/copy out", "out/d/g", "deep"},
		{"cp cli:/w/copy here", "here/copy/d/g", "deep"},
		{"cp cli:/w/copy small --compress always", "small/d/g", "deep"},
		{"cp cli:/w/copy/. here", "here/d/g", "deep"},
	} {
		c.expect(0, "", "", strings.Fields(step.args)...)
		c.has(step.path, step.content)
	}
	if got := c.expect(0, "", "", "cp", "cli:/w/new", "-"); got != "file" {
		c.t.Errorf("stdout has %q", got)
	}
	stream := c.expect(0, "", "", "cp", "--tar", "cli:/w/copy", "-")
	if _, err := tar.NewReader(bytes.NewReader([]byte(stream))).Next(); err != nil {
		c.t.Errorf("stdout has no tar stream: %v", err)
	}
	c.expect(0, "", stream, "cp", "--tar", "-", "cli:/w/again")
	b.want(ctx, c.t, "/w/again/d/g", "deep")
	b.sh(ctx, c.t, "mkdir /w/hostile && cd /w/hostile && "+
		"ln -s /etc/passwd out && mkfifo pipe && echo x > f && chmod 6755 f")
	c.expect(1, "2 paths were left out", "", "cp", "cli:/w/hostile", "safe")
	c.has("safe/f", "x\n")
	if info, err := os.Lstat(filepath.Join(c.dir, "safe", "f")); err != nil || info.Mode() != 0o755 {
		c.t.Errorf("the mode is %v, %v", info, err)
	}
	c.expect(1, "1 paths were left out", "", "cp", "cli:/w/hostile", "kept", "--keep-links")
	if to, err := os.Readlink(filepath.Join(c.dir, "kept", "out")); err != nil || to != "/etc/passwd" {
		c.t.Errorf("the kept link leads to %q, %v", to, err)
	}
	c.expect(1, protocol.ReasonPathNotFound, "", "cp", "cli:/w/none", "x")
	c.expect(1, protocol.ReasonTooLarge, "", "cp", "cli:/w/copy", "large", "--max-bytes", "1k")
	c.expect(1, protocol.ReasonTooLarge, "", "cp", "cli:/w/new", "-", "--max-bytes", "3")
	c.expect(0, "", "", "cp", "cli:/w/new", "large/new", "--max-bytes", "4")
	c.expect(1, protocol.ReasonNotRegular, "", "cp", "cli:/w/hostile/pipe", "x")
}

func (c *commandLine) worksOnFiles(b boxed) {
	ctx := c.t.Context()
	for _, step := range []struct {
		args  string
		stdin string
		want  int
		part  string
	}{
		{"fs write cli /v/a/f -p --mode 640", "one\ntwo\n", 0, "/v/a/f"},
		{"fs write cli /v/a/f --new", "", 1, protocol.ReasonPathExists},
		{"fs write cli /v/a/f --append", "three\n", 0, ""},
		{"fs write cli /v/a/f --mode 9", "", 2, "octal"},
		{"fs cat cli /v/a/f", "", 0, "one\ntwo\nthree\n"},
		{"fs cat cli /v/a/f --offset 4 --length 3", "", 0, "two"},
		{"fs cat cli /v/none", "", 1, protocol.ReasonPathNotFound},
		{"fs ls cli /v", "", 0, "drwxr-xr-x"},
		{"fs ls cli /v -R -q", "", 0, "a/f\n"},
		{"fs stat cli /v/a/f", "", 0, "-rw-r-----"},
		{"fs stat cli /v/a/f /v/none", "", 1, "/v/none"},
		{"fs mkdir cli /v/d/e -p", "", 0, "/v/d/e"},
		{"fs cp cli /v/a /v/d/copy -r", "", 0, ""},
		{"fs mv cli /v/d/copy /v/moved", "", 0, "/v/moved"},
		{"fs grep cli t[wh] /v --include **/f", "", 0, "a/f:2:two"},
		{"fs grep cli nothing-like-it /v", "", 1, ""},
		{"fs glob cli **/f /v -q", "", 0, "moved/f"},
		{"fs edit cli /v/a/f --old one --new 1", "", 0, "1 replaced"},
		{"fs edit cli /v/a/f --old one --new 1", "", 1, protocol.ReasonNoMatch},
		{"fs edit cli /v/a/f --old t", "", 2, "--new"},
		{"fs changes cli /v", "", 0, ""},
		{"fs rm cli /v/moved", "", 1, protocol.ReasonNotEmpty},
		{"fs rm cli /v/moved -r", "", 0, ""},
		{"fs rm cli /v/moved -f", "", 0, ""},
		{"fs watch cli /v --deadline 2s", "", 1, "watching"},
		{"fs ls", "", 2, "SANDBOX is missing"},
		{"fs cat cli", "", 2, "PATH is missing"},
	} {
		c.expect(step.want, step.part, step.stdin, strings.Fields(step.args)...)
	}
	b.want(ctx, c.t, "/v/a/f", "1\ntwo\nthree\n")
	var listed []protocol.FileInfo
	if err := json.Unmarshal([]byte(c.expect(0, "", "", "fs", "ls", "cli", "/v/a", "-o", "json")), &listed); err != nil ||
		len(listed) != 1 || listed[0].Path != "f" || listed[0].Mode != 0o640 {
		c.t.Errorf("as JSON: %+v, %v", listed, err)
	}
}
