package integration

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

func writeFile(t *testing.T, path, content string, mode os.FileMode, at time.Time) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestMountsAreReadOnlyWithoutWhatIsMountedBelow(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "content", 0o666, time.Now())
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(below, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	writeFile(t, filepath.Join(below, "secret"), "secret", 0o666, time.Now())
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{dir}})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Mounts = []protocol.Mount{{Source: dir, Target: "/mnt/dir"}, {Source: filepath.Join(dir, "file"), Target: "/etc/a file"}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("mounts"))
	if err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /mnt/dir/file '/etc/a file'; ls /mnt/dir/below")); got != "contentcontent" {
		t.Errorf("the mounts show %q", got)
	}
	for _, attempt := range []string{
		"touch /mnt/dir/new", "echo x > /mnt/dir/file", "echo x > '/etc/a file'", "rm /mnt/dir/file", "touch /mnt/dir/below/new",
		"chmod 777 /mnt/dir", "mount -o remount,rw,bind /mnt/dir", "umount /mnt/dir", "mount -t tmpfs x /mnt",
	} {
		r, err := s.Exec(ctx, script(attempt))
		if err != nil || code(r) == "0" {
			t.Errorf("%s in a sandbox, as root: %v, exit code %s", attempt, err, code(r))
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(data) != "content" {
		t.Errorf("the host's file: %v, %q", err, data)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
	if _, err := os.Stat(filepath.Join(below, "secret")); err != nil {
		t.Errorf("the delete reached what was mounted: %v", err)
	}
}

func TestACopiedTreeArrivesAsItIs(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	tree := t.TempDir()
	old := time.Unix(1_000_000_000, 0)
	writeFile(t, filepath.Join(tree, "script"), "#!/bin/sh\necho ran\n", 0o755, old)
	writeFile(t, filepath.Join(tree, "sub", "private"), "p", 0o600, old.Add(time.Hour))
	writeFile(t, filepath.Join(tree, "sub", "-n 'ü\n\""), "odd", 0o644, old)
	writeFile(t, filepath.Join(tree, "empty"), "", 0o444, old)
	writeFile(t, filepath.Join(tree, "left out", "x"), "x", 0o644, old)
	if err := os.Mkdir(filepath.Join(tree, "nothing"), 0o711); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "sub/private", "sub/up": "../script", "dangling": "not/there"} {
		if err := os.Symlink(to, filepath.Join(tree, link)); err != nil {
			t.Fatal(err)
		}
	}
	spec := f.Spec()
	for _, c := range []struct{ source, target string }{
		{tree, "/not/there/yet"}, {filepath.Join(tree, "script"), "/opt/tool"}, {filepath.Join(tree, "empty"), "/opt/files/"},
	} {
		copied, err := f.Client.CopyTree(ctx, c.source, c.target, "left out")
		if err != nil {
			t.Fatal(err)
		}
		spec.Copies = append(spec.Copies, copied)
	}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("copies"))
	if err != nil {
		t.Fatal(err)
	}
	got := mustExec(ctx, t, s, script(`cd /not/there/yet && find . | sort | while IFS= read -r p; do [ -e "$p" ] || [ -L "$p" ] && stat -c '%n %a %u %F' "$p"; done; stat -c '%n %Y' script sub/private; for l in link sub/up dangling; do readlink $l; done; cat sub/-n*; ./script; /opt/tool; ls /opt/files`))
	for _, want := range []string{
		"./script 755 0 regular file\n", "./sub/private 600 0 regular file\n", "./empty 444 0 regular empty file\n", "./nothing 711 0 directory\n",
		"script 1000000000\n", "sub/private 1000003600\n", "sub/private\n../script\nnot/there\n", "oddran\nran\nempty\n", "./link 777 0 symbolic link\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "left out") {
		t.Error("what was left out is there")
	}
	// The sandbox may change its copy.
	mustExec(ctx, t, s, script("echo more >> /not/there/yet/script && rm -r /not/there/yet/sub"))
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}

func TestATreeThatLeadsOutIsRefusedByItsPath(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Coordinators: 0})
	ctx := f.Context(time.Minute)
	for what, make := range map[string]func(path string) error{
		"an absolute link":  func(p string) error { return os.Symlink("/etc/passwd", p) },
		"a link out":        func(p string) error { return os.Symlink("../../x", p) },
		"a link that turns": func(p string) error { return os.Symlink("../sub/../../x", p) },
		"a pipe":            func(p string) error { return syscall.Mkfifo(p, 0o600) },
	} {
		tree := t.TempDir()
		writeFile(t, filepath.Join(tree, "sub", "fine"), "x", 0o644, time.Now())
		path := filepath.Join(tree, "sub", "odd one")
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		_, err := f.Client.CopyTree(ctx, tree, "/x")
		wantError(t, what, err, protocol.InvalidArgument, "", "source")
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name %s: %v", what, path, err)
		}
	}
	_, err := f.Client.CopyTree(ctx, "/not/there", "/x")
	wantError(t, "a tree that is not there", err, protocol.NotFound, "", "")
	_, err = f.Client.CopyTree(ctx, t.TempDir(), "relative")
	wantError(t, "a relative target", err, protocol.InvalidArgument, "", "target")
}

// tarOf makes a tar stream and its digest.
func tarOf(t *testing.T, headers ...tar.Header) (data []byte, digest string) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := []byte("hostile")
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		h.Mode = 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return b.Bytes(), "sha256-" + hex.EncodeToString(sum[:])
}

func TestAHostileTreeFailsItsSandbox(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	outside := filepath.Join(f.Dir, "outside")
	up := strings.Repeat("../", 12)
	fine, fineDigest := tarOf(t, tar.Header{Name: "fine", Typeflag: tar.TypeReg})
	upload := func(data []byte, digest string) string {
		if err := f.Conn.PutBlob(ctx, digest, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		return digest
	}
	hostile := func(headers ...tar.Header) string { return upload(tarOf(t, headers...)) }
	upload(fine, fineDigest)
	for what, c := range map[string]struct {
		digest string
		code   protocol.Code
	}{
		"an entry that climbs":     {hostile(tar.Header{Name: up + outside, Typeflag: tar.TypeReg}), protocol.InvalidArgument},
		"an entry from the root":   {hostile(tar.Header{Name: outside, Typeflag: tar.TypeReg}), protocol.InvalidArgument},
		"a link that climbs":       {hostile(tar.Header{Name: "l", Linkname: up + "etc", Typeflag: tar.TypeSymlink}), protocol.InvalidArgument},
		"a link to the root":       {hostile(tar.Header{Name: "l", Linkname: "/", Typeflag: tar.TypeSymlink}, tar.Header{Name: "l" + outside, Typeflag: tar.TypeReg}), protocol.InvalidArgument},
		"a hard link":              {hostile(tar.Header{Name: "h", Linkname: "/etc/shadow", Typeflag: tar.TypeLink}), protocol.InvalidArgument},
		"a device":                 {hostile(tar.Header{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}), protocol.InvalidArgument},
		"no tar stream":            {upload([]byte("this is no tar stream"), sha("this is no tar stream")), protocol.InvalidArgument},
		"what has another digest":  {upload(append(fine, 0), sha("something else")), protocol.InvalidArgument},
		"what was never uploaded":  {sha("never"), protocol.FailedPrecondition},
		"a tree with a broken end": {upload(fine[:515], sha(string(fine[:515]))), protocol.InvalidArgument},
	} {
		spec := f.Spec()
		spec.Copies = []protocol.Copy{{Digest: fineDigest, Target: "/fine"}, {Digest: c.digest, Target: "/x"}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, what, err, c.code, protocol.ReasonCopyFailed, "spec.copies[1]")
	}
	becomesEmpty(f, w)
	if _, err := os.Lstat(outside); err == nil {
		t.Errorf("%s was written", outside)
	}
	spec := f.Spec()
	spec.Copies = []protocol.Copy{{Digest: fineDigest, Target: "/fine"}}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /fine/fine")); got != "hostile" {
		t.Errorf("got %q", got)
	}
}

func sha(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + hex.EncodeToString(sum[:])
}

func TestATreeOf50MegabytesIsCopied(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(2 * time.Minute)
	tree := t.TempDir()
	content := make([]byte, 50<<20)
	_, _ = rand.Read(content) // never fails
	sums := sha256.New()
	const files = 500
	for i := range files {
		part := content[i*len(content)/files : (i+1)*len(content)/files]
		writeFile(t, filepath.Join(tree, fmt.Sprintf("d%d", i%10), fmt.Sprintf("f%03d", i)), string(part), 0o644, time.Now())
		sums.Write(part)
	}
	begin := time.Now()
	copied, err := f.Client.CopyTree(ctx, tree, "/tree")
	if err != nil {
		t.Fatal(err)
	}
	uploaded := time.Since(begin)
	again := time.Now()
	if twice, err := f.Client.CopyTree(ctx, tree, "/tree"); err != nil || twice != copied {
		t.Errorf("the same tree again: %v, %v", err, twice)
	}
	repeated := time.Since(again)
	spec := f.Spec()
	spec.Copies = []protocol.Copy{copied}
	begin = time.Now()
	s, err := f.Client.Create(ctx, spec, sdk.WithID("large"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("50 MiB in %d files: upload %s, the same again %s, create with it %s", files, uploaded.Round(time.Millisecond), repeated.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	got := mustExec(ctx, t, s, script("cd /tree && find . -type f | sed 's,.*/,,;s,^f0*,,;s,^$,0,' | sort -n | while read n; do cat d$((n%10))/$(printf f%03d $n); done | sha256sum"))
	if want := hex.EncodeToString(sums.Sum(nil)); !strings.HasPrefix(got, want) {
		t.Errorf("the tree has the digest %q, want %s", got, want)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
