package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/integration/engines"
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
	if err := os.Lchown(filepath.Join(tree, "link"), 1234, 4321); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(tree, "nothing"), 1234, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, target string }{
		{tree, "/not/there/yet"}, {filepath.Join(tree, "script"), "/opt/tool"}, {filepath.Join(tree, "empty"), "/opt/files/"},
	} {
		copied, err := f.Client.Upload(ctx, c.source, c.target, sdk.WithExclude("left out"))
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
		"./script 755 0 regular file\n", "./sub/private 600 0 regular file\n", "./empty 444 0 regular empty file\n", "./nothing 711 1234 directory\n",
		"script 1000000000\n", "sub/private 1000003600\n", "sub/private\n../script\nnot/there\n", "oddran\nran\nempty\n", "./link 777 1234 symbolic link\n",
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
		_, err := f.Client.Upload(ctx, tree, "/x")
		wantError(t, what, err, protocol.InvalidArgument, "", "source")
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name %s: %v", what, path, err)
		}
	}
	_, err := f.Client.Upload(ctx, "/not/there", "/x")
	wantError(t, "a tree that is not there", err, protocol.NotFound, "", "")
	_, err = f.Client.Upload(ctx, t.TempDir(), "relative")
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
		"a hard link to nothing":   {hostile(tar.Header{Name: "h", Linkname: "nothing", Typeflag: tar.TypeLink}), protocol.FailedPrecondition},
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
	twoNames := hostile(tar.Header{Name: "f", Typeflag: tar.TypeReg}, tar.Header{Name: "d/g", Linkname: "f", Typeflag: tar.TypeLink})
	spec.Copies = []protocol.Copy{{Digest: fineDigest, Target: "/fine"}, {Digest: twoNames, Target: "/two"}}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /fine/fine; stat -c ' %h' /two/f; [ /two/f -ef /two/d/g ] && echo one")); got != "hostile 2\none\n" {
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
	copied, err := f.Client.Upload(ctx, tree, "/tree")
	if err != nil {
		t.Fatal(err)
	}
	uploaded := time.Since(begin)
	again := time.Now()
	if twice, err := f.Client.Upload(ctx, tree, "/tree"); err != nil || twice != copied {
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

func TestS21_AFileGoesToAFilePathAndWhatIsMissingIsMade(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	dir := t.TempDir()
	at := time.Unix(1_000_000_000, 0)
	for _, name := range []string{"a", "b"} {
		writeFile(t, filepath.Join(dir, name), name, 0o644, at)
	}
	empty := filepath.Join(dir, "empty")
	mkdir(t, empty)
	if err := errors.Join(os.Chmod(empty, fs.ModeSetgid|0o751), os.Chtimes(empty, at, at), os.Chown(filepath.Join(dir, "a"), 1234, 4321)); err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	for _, c := range []struct{ source, target, owner string }{
		{source: filepath.Join(dir, "a"), target: "/etc/app/one.conf"},
		{source: filepath.Join(dir, "b"), target: "/etc/app/two.conf", owner: "7:8"}, // beside the other one
		{source: filepath.Join(dir, "b"), target: "/top"},                            // in the root
		{source: filepath.Join(dir, "b"), target: "/bin/busybox.conf"},
		{source: empty, target: "/made/empty"},
		{source: empty, target: "/bin"}, // it is there, and stays as it is
		{source: empty, target: "/owned/empty", owner: "9"},
	} {
		copied, err := f.Client.Upload(ctx, c.source, c.target, sdk.WithOwner(c.owner))
		if err != nil {
			t.Fatal(err)
		}
		if copied.Target != c.target || copied.Owner != c.owner {
			t.Errorf("%+v gives %+v", c, copied)
		}
		spec.Copies = append(spec.Copies, copied)
	}
	if spec.Copies[1].Digest != spec.Copies[2].Digest {
		t.Error("one file for two targets is not one content")
	}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	got := mustExec(ctx, t, s, script("cat /etc/app/one.conf /etc/app/two.conf /top /bin/busybox.conf; echo; for p in /etc/app /etc/app/one.conf /etc/app/two.conf /made /made/empty /bin /owned /owned/empty; do stat -c '%n %a %u:%g' $p; done; stat -c %Y /etc/app/one.conf /made/empty"))
	want := `abbb
/etc/app 755 0:0
/etc/app/one.conf 644 1234:4321
/etc/app/two.conf 644 7:8
/made 755 0:0
/made/empty 2751 0:0
/bin 755 0:0
/owned 755 9:9
/owned/empty 2751 9:9
1000000000
1000000000
`
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if info := s.Info(); len(info.Spec.Copies) != 7 || info.Spec.Copies[1] != spec.Copies[1] {
		t.Errorf("read back: %+v", info.Spec.Copies)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	for what, target := range map[string]string{"a directory in the place of a file": "/bin/busybox", "a way through a file": "/bin/busybox/x"} {
		copied, err := f.Client.Upload(ctx, dir, target)
		if err != nil {
			t.Fatal(err)
		}
		spec := f.Spec()
		spec.Copies = []protocol.Copy{copied}
		_, err = f.Client.Create(ctx, spec)
		wantError(t, what, err, protocol.FailedPrecondition, protocol.ReasonCopyFailed, "spec.copies[0]")
	}
	copied, err := f.Client.Upload(ctx, filepath.Join(dir, "a"), "/bin")
	if err != nil {
		t.Fatal(err)
	}
	spec = f.Spec()
	spec.Copies = []protocol.Copy{copied}
	_, err = f.Client.Create(ctx, spec)
	wantError(t, "a file in the place of a directory", err, protocol.FailedPrecondition, protocol.ReasonCopyFailed, "spec.copies[0]")
	becomesEmpty(f, w)
}

// What a tree has where something else is mounted stays out of the container, and out of the host's files.
func TestAMountHidesWhatACopyHasAtItsTarget(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	dir := t.TempDir()
	host, home, tree := filepath.Join(dir, "host"), filepath.Join(dir, "home"), filepath.Join(dir, "tree")
	for _, name := range []string{"one file", "fixed/f", "shared/f"} {
		writeFile(t, filepath.Join(host, name), "host", 0o666, time.Now())
	}
	writeFile(t, filepath.Join(home, ".ssh", "known_hosts"), "host key", 0o644, time.Now())
	for _, name := range []string{"sub/one file", "sub/beside", "fixed/f", "fixed/g", "shared/f", "shared/g", "memory/f", ".ssh/known_hosts", ".ssh/config"} {
		writeFile(t, filepath.Join(tree, name), "copy", 0o644, time.Now())
	}
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{host + ":rw"}, Tools: []string{"git"}, ToolsHome: home})
	ctx := f.Context(time.Minute)
	copied, err := f.Client.Upload(ctx, tree, "/work")
	if err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Copies, spec.Tools, spec.Env = []protocol.Copy{copied}, []string{"git"}, map[string]string{"HOME": "/work"}
	spec.Mounts = []protocol.Mount{{Source: filepath.Join(host, "one file"), Target: "/work/sub/one file"}, {Source: filepath.Join(host, "fixed"), Target: "/work/fixed"},
		{Source: filepath.Join(host, "shared"), Target: "/work/shared", Writable: true}}
	spec.Tmpfs = []protocol.Tmpfs{{Target: "/work/memory"}}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	got := mustExec(ctx, t, s, script(`cd /work; find . -type f | sort | while read p; do echo $p $(cat "$p"); done`))
	want := "./.ssh/config copy\n./.ssh/known_hosts host key\n./fixed/f host\n./shared/f host\n./sub/beside copy\n./sub/one file host\n"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
	for name, want := range map[string]int{"fixed": 1, "shared": 1} {
		if found, err := os.ReadDir(filepath.Join(host, name)); err != nil || len(found) != want {
			t.Errorf("the host's %s has %v, %v", name, found, err)
		}
	}
}

// A create that goes on after the container has run leaves alone what its command made of its copies.
func TestACreateThatGoesOnDoesNotCopyAgain(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{CrashAt: "before-ready"})
	ctx, host := f.Context(time.Minute), engines.Default(t).Host
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), "copied", 0o666, time.Now())
	copied, err := f.Client.Upload(ctx, dir, "/x")
	if err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Copies = []protocol.Copy{copied}
	spec.Command = []string{"sh", "-c", "[ -e /ran ] || echo changed > /x/f; touch /ran; sleep 1000"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("goes-on"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	w.AwaitKilled(20 * time.Second)
	container := containerOf(f, host, "goes-on")
	f.Eventually(10*time.Second, "its command has run", func() error {
		_, err := exec.Command("docker", "-H", host, "exec", container, "ls", "/ran").Output()
		return err
	})
	docker(t, host, "kill", container)
	w = w.Restart()
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /x/f")); got != "changed\n" {
		t.Errorf("its file has %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}

func TestWhatIsExcludedIsNotUploaded(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	dir, plain := t.TempDir(), t.TempDir()
	at := time.Unix(1_000_000_000, 0)
	for _, name := range []string{"src/main.go", "README"} {
		writeFile(t, filepath.Join(dir, name), name, 0o644, at)
		writeFile(t, filepath.Join(plain, name), name, 0o644, at)
	}
	for _, name := range []string{".git/HEAD", "src/deep/x.pyc", "src/deep/node_modules/a/b", "top.log"} {
		writeFile(t, filepath.Join(dir, name), "excluded", 0o644, at)
	}
	// What is left out need not even be fit to be copied.
	if err := os.Symlink("/etc", filepath.Join(dir, ".git", "out")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, plain} {
		mkdir(t, filepath.Join(d, "src", "deep"))
		for _, name := range []string{"src/deep", "src", "."} {
			if err := os.Chtimes(filepath.Join(d, name), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	patterns := []string{"/.git", "*.pyc", "**/node_modules/", "*.log", "!README"}
	with, err := f.Client.Upload(ctx, dir, "/x", sdk.WithExclude(patterns...))
	if err != nil {
		t.Fatal(err)
	}
	without, err := f.Client.Upload(ctx, plain, "/x")
	if err != nil {
		t.Fatal(err)
	}
	if with != without {
		t.Errorf("what is left out leaves a trace: %+v, %+v", with, without)
	}
	_, err = f.Client.Upload(ctx, dir, "/x", sdk.WithExclude("fine", "a["))
	wantError(t, "a pattern that is none", err, protocol.InvalidArgument, "", "exclude[1]")
}

// Somebody exchanges directories and files for links and pipes while the tree is read.
func TestATreeThatIsExchangedWhileItIsReadNeverLeadsOut(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	dir := t.TempDir()
	tree, outside := filepath.Join(dir, "tree"), filepath.Join(dir, "outside")
	writeFile(t, filepath.Join(outside, "d", "f"), "SECRET", 0o644, time.Now())
	for _, name := range []string{"a/d/f", "b/f", "c"} {
		writeFile(t, filepath.Join(tree, name), "fine", 0o644, time.Now())
	}
	exchange := filepath.Join(dir, "exchange")
	mkdir(t, exchange)
	for name, to := range map[string]string{"a": outside, "b": filepath.Join(outside, "d"), "c": filepath.Join(outside, "d", "f")} {
		if err := os.Symlink(to, filepath.Join(exchange, name)); err != nil {
			t.Fatal(err)
		}
	}
	var exchanges atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			name := []string{"a", "b", "c"}[n%3]
			for range 2 { // there and back again
				if unix.Renameat2(unix.AT_FDCWD, filepath.Join(tree, name), unix.AT_FDCWD, filepath.Join(exchange, name), unix.RENAME_EXCHANGE) == nil {
					exchanges.Add(1)
				}
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	uploaded, refused := 0, 0
	for n := 0; n < 500 || n < 20_000 && (uploaded == 0 || exchanges.Load() < 100); n++ {
		copied, err := f.Client.Upload(ctx, tree, "/x")
		if err != nil {
			refused++
			if code := protocol.CodeOf(err); code != protocol.InvalidArgument && code != protocol.FailedPrecondition && code != protocol.NotFound && code != protocol.Internal {
				t.Errorf("refused with %v", err)
			}
			continue
		}
		uploaded++
		blob, err := f.Conn.Blob(ctx, copied.Digest)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(blob)
		blob.Close()
		if err != nil || bytes.Contains(data, []byte("SECRET")) {
			t.Fatalf("what was uploaded holds what is outside of the tree (%v)", err)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d uploaded, %d refused; %d exchanges", uploaded, refused, exchanges.Load())
	if uploaded == 0 || exchanges.Load() < 100 {
		t.Errorf("%d trees were uploaded during %d exchanges: this shows nothing", uploaded, exchanges.Load())
	}
}

func TestABlobGoesWhenItIsOldAndOneThatIsUsedAgainStays(t *testing.T) {
	t.Parallel()
	const age = 6 * time.Second
	f := fleet.Start(t, fleet.Options{Workers: -1, BlobMaxAge: age})
	// A machine that others use too may stand still for so long that a try says nothing of the other blob.
	for try := 1; !blobsGoByAge(t, f, age, try); try++ {
		if try == 5 {
			t.Fatal("in no try was anything looked at in time")
		}
	}
	nc, err := nats.Connect(f.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(3*age, "nothing is left of either", func() error {
		stream, err := js.Stream(f.Context(time.Minute), "OBJ_"+protocol.BucketBlobs)
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("there are %d messages of %d bytes", stream.CachedInfo().State.Msgs, stream.CachedInfo().State.Bytes)
		}
		return err
	})
}

// blobsGoByAge uploads a tree that nobody uses again, and one that is uploaded again: while it is fresh,
// when nothing is sent, and when it no longer is. It says whether each was looked at in time.
func blobsGoByAge(t *testing.T, f *fleet.Fleet, age time.Duration, try int) (conclusive bool) {
	t.Helper()
	ctx := f.Context(time.Minute)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), strings.Repeat("x", 300_000+try), 0o644, time.Now())
	there := func(digest string) bool {
		found, err := f.Conn.HasBlob(ctx, digest)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	firstStored := time.Now() // or later
	first, err := f.Client.Upload(ctx, dir, "/x")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "f"), fmt.Sprint("other", try), 0o644, time.Now())
	otherStored := time.Now()
	other, err := f.Client.Upload(ctx, dir, "/x")
	if err != nil {
		t.Fatal(err)
	}
	uploads := 0
	again := func() protocol.Copy {
		copied, err := f.Client.Upload(ctx, dir, "/x", sdk.WithProgress(func(int64, int64) { uploads++ }))
		if err != nil {
			t.Fatal(err)
		}
		return copied
	}
	if copied := again(); copied != other {
		t.Errorf("the same tree is now %+v", copied)
	}
	if uploads > 0 && time.Since(otherStored) < age/2 {
		t.Errorf("what is stored was sent again, %d times", uploads)
	}
	conclusive = uploads == 0
	uploads = 0
	f.Eventually(age, "half of its life is over", func() error {
		if fresh, err := f.Conn.FreshBlob(ctx, other.Digest); fresh || err != nil {
			return fmt.Errorf("it is fresh: %w", err)
		}
		return nil
	})
	otherStored = time.Now()
	if copied := again(); copied != other || uploads == 0 {
		t.Error("what is old was not sent again")
	}
	f.Eventually(2*age, "the old one goes", func() error {
		if there(first.Digest) {
			return errors.New("it is there")
		}
		return nil
	})
	if took := time.Since(firstStored); took < age {
		t.Errorf("it went after %s", took)
	}
	if there(other.Digest) {
		return conclusive
	}
	if time.Since(otherStored) < age {
		t.Error("the one that was sent again went too")
	}
	return false
}

// blobStore opens the store of uploads by the client of NATS itself.
func blobStore(ctx context.Context, t *testing.T, f *fleet.Fleet) (jetstream.ObjectStore, error) {
	t.Helper()
	nc, err := nats.Connect(f.URL())
	if err != nil {
		return nil, err
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return js.ObjectStore(ctx, protocol.BucketBlobs)
}

// An upload outlives its age for as long as a sandbox waits with it.
func TestASandboxThatWaitsKeepsItsTrees(t *testing.T) {
	t.Parallel()
	const age = 12 * time.Second // half of it, but for one look, is what the machine may stand still
	f := fleet.Start(t, fleet.Options{Workers: -1, BlobMaxAge: age})
	ctx := f.Context(2 * time.Minute)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), "content", 0o644, time.Now())
	copied, err := f.Client.Upload(ctx, dir, "/x")
	if err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Copies = []protocol.Copy{copied}
	s, err := f.Client.Create(ctx, spec, sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	store, err := blobStore(ctx, t, f)
	if err != nil {
		t.Fatal(err)
	}
	stored := time.Now()
	f.Eventually(4*age, "the tree is stored anew, later than its life would have been", func() error {
		info, err := store.GetInfo(ctx, copied.Digest)
		if err == nil && info.ModTime.Before(stored.Add(age)) {
			err = fmt.Errorf("it was stored at %s", info.ModTime)
		}
		return err
	})
	f.Worker("w1", fleet.Role{})
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /x/f")); got != "content" {
		t.Errorf("the sandbox has %q", got)
	}
	f.Eventually(3*age, "what nobody waits with goes", func() error {
		if there, err := f.Conn.HasBlob(ctx, copied.Digest); err != nil || there {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// runMeasured runs a command to its end, and returns how many bytes it had in memory at most, as far as
// that was seen.
func runMeasured(t *testing.T, cmd *exec.Cmd) (peak int64) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil || peak == 0 {
				t.Fatalf("%s: %v, %d bytes in memory: %s", cmd, err, peak, out.Bytes())
			}
			return peak
		case <-time.After(20 * time.Millisecond):
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // it may have ended
			_, rest, _ := strings.Cut(string(status), "VmHWM:")
			var kib int64
			if n, _ := fmt.Sscanf(rest, "%d kB", &kib); n == 1 {
				peak = max(peak, kib<<10)
			}
		}
	}
}

func TestATreeOfAGigabyteIsCopiedInBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes three gigabytes")
	}
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(4 * time.Minute)
	dir := t.TempDir()
	const files, size = 8, 128 << 20
	for i := range files { // sparse: they take no room here
		name := filepath.Join(dir, fmt.Sprint(i))
		writeFile(t, name, fmt.Sprint(i), 0o644, time.Now())
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	cli := buildCLI(t)
	begin := time.Now()
	caller := runMeasured(t, exec.CommandContext(ctx, cli, "--nats", f.URL(), "sandbox", "create", "--id", "large", "--image", fleet.Image, "--copy", dir+":/large"))
	worker := w.PeakMemory()
	t.Logf("uploaded and created in %s; in memory at most: worker %d MiB, caller %d MiB", time.Since(begin).Round(time.Millisecond), worker>>20, caller>>20)
	if worker > 300<<20 || caller > 200<<20 {
		t.Errorf("the worker took %d MiB, the caller %d MiB", worker>>20, caller>>20)
	}
	s := f.Client.Sandbox("large")
	if got := mustExec(ctx, t, s, script("cd /large && cat * | wc -c && head -c 1 7")); got != "1073741824\n7" {
		t.Errorf("got %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
