package sdk_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// tree creates files below a new directory. A name that ends with a slash becomes a directory; a content that begins
// with -> becomes a symbolic link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		to, isLink := strings.CutPrefix(content, "->")
		switch {
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
	return dir
}

func uploadsKeepTrees(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(time.Minute)
	files := map[string]string{"a/b c": "content\x00\xff", "a/link": "->b c", "empty/": "", "$(x)`y`": "odd",
		"left/out": "no"}
	dir := tree(t, files)
	at := time.Unix(1_700_000_000, 0)
	if err := os.Chmod(filepath.Join(dir, "$(x)`y`"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, "$(x)`y`"), at, at); err != nil {
		t.Fatal(err)
	}
	first, err := f.Client.Upload(ctx, dir, "/deep/down", sdk.WithExclude("left"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := f.Client.Upload(ctx, dir, "/deep/down", sdk.WithExclude("left"))
	if err != nil || first != second {
		t.Errorf("uploads of the same tree: %v and %v, %v", first, second, err)
	}
	file, err := f.Client.Upload(ctx, filepath.Join(dir, "a/b c"), "/single/renamed")
	if err != nil {
		t.Fatal(err)
	}
	into, err := f.Client.Upload(ctx, filepath.Join(dir, "a/b c"), "/into/")
	if err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Copies = []protocol.Copy{first, file, into}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Exec(ctx, protocol.ExecSpec{Cwd: "/deep/down", Command: []string{"sh", "-c",
		"cat 'a/b c'; cat a/link; cat /single/renamed; cat '/into/b c'; readlink a/link; ls -d empty; stat -c '%a %Y' " +
			"'$(x)`y`'; ls"}})
	c := "content\x00\xff"
	want := c + c + c + c + "b c\nempty\n755 1700000000\n$(x)`y`\na\nempty\n"
	if err != nil || string(r.Stdout) != want {
		t.Errorf("got  %q %q, %v\nwant %q", r.Stdout, r.Stderr, err, want)
	}
	for name, files := range map[string]map[string]string{
		"an absolute link":      {"bad": "->/etc/passwd"},
		"a link that leads out": {"d/bad": "->../../x"},
	} {
		_, err := f.Client.Upload(ctx, tree(t, files), "/x")
		wantError(t, err, protocol.InvalidArgument, "")
		if !strings.Contains(err.Error(), "bad") {
			t.Errorf("%s: the error does not name the path: %v", name, err)
		}
	}
	special := tree(t, nil)
	if err := syscall.Mkfifo(filepath.Join(special, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = f.Client.Upload(ctx, special, "/x")
	wantError(t, err, protocol.InvalidArgument, "")
	special = tree(t, nil)
	socket, err := net.Listen("unix", filepath.Join(special, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	_, err = f.Client.Upload(ctx, special, "/x")
	wantError(t, err, protocol.InvalidArgument, "")
	_, err = f.Client.Upload(ctx, filepath.Join(special, "nothing"), "/x")
	wantError(t, err, protocol.NotFound, "")
	_, err = f.Client.Upload(ctx, special, "relative")
	wantError(t, err, protocol.InvalidArgument, "")
}
