package integration

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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
	spec.Mounts = []protocol.Mount{{Source: dir, Target: "/mnt/dir"},
		{Source: filepath.Join(dir, "file"), Target: "/etc/a file"}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("mounts"))
	if err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s,
		script("cat /mnt/dir/file '/etc/a file'; ls /mnt/dir/below")); got != "contentcontent" {
		t.Errorf("the mounts show %q", got)
	}
	for _, attempt := range []string{
		"touch /mnt/dir/new", "echo x > /mnt/dir/file", "echo x > '/etc/a file'", "rm /mnt/dir/file",
		"touch /mnt/dir/below/new",
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
		{tree, "/not/there/yet"}, {filepath.Join(tree, "script"), "/opt/tool"}, {filepath.Join(tree, "empty"),
			"/opt/files/"},
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
	got := mustExec(ctx, t, s,
		script(`cd /not/there/yet && find . | sort | while IFS= read -r p; do [ -e "$p" ] || [ -L "$p" ] && stat -c '%n `+
			`%a %u %F' "$p"; done; stat -c '%n %Y' script sub/private; for l in link sub/up dangling; do readlink $l; `+
			`done; cat sub/-n*; ./script; /opt/tool; ls /opt/files`))
	for _, want := range []string{
		"./script 755 0 regular file\n", "./sub/private 600 0 regular file\n", "./empty 444 0 regular empty file\n",
		"./nothing 711 1234 directory\n",
		"script 1000000000\n", "sub/private 1000003600\n", "sub/private\n../script\nnot/there\n", "oddran\nran\nempty\n",
		"./link 777 1234 symbolic link\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "left out") {
		t.Error("an excluded file was copied")
	}
	// The sandbox may change its own copy.
	mustExec(ctx, t, s, script("echo more >> /not/there/yet/script && rm -r /not/there/yet/sub"))
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
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
		writeFile(t, filepath.Join(tree, fmt.Sprintf("d%d", i%10), fmt.Sprintf("f%03d", i)), string(part), 0o644,
			time.Now())
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
	t.Logf("50 MiB in %d files: first upload %s, second upload %s, create %s", files,
		uploaded.Round(time.Millisecond), repeated.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	got := mustExec(ctx, t, s,
		script("cd /tree && find . -type f | sed 's,.*/,,;s,^f0*,,;s,^$,0,' | sort -n | while read n; do cat "+
			"d$((n%10))/$(printf f%03d $n); done | sha256sum"))
	if want := hex.EncodeToString(sums.Sum(nil)); !strings.HasPrefix(got, want) {
		t.Errorf("the tree has the digest %q, want %s", got, want)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}

func TestS21_AFileIsCopiedToAFilePathAndMissingDirectoriesAreCreated(t *testing.T) {
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
	if err := errors.Join(os.Chmod(empty, fs.ModeSetgid|0o751), os.Chtimes(empty, at, at),
		os.Chown(filepath.Join(dir, "a"), 1234, 4321)); err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	for _, c := range []struct{ source, target, owner string }{
		{source: filepath.Join(dir, "a"), target: "/etc/app/one.conf"},
		{source: filepath.Join(dir, "b"), target: "/etc/app/two.conf", owner: "7:8"}, // beside the other file
		{source: filepath.Join(dir, "b"), target: "/top"},                            // in the root directory
		{source: filepath.Join(dir, "b"), target: "/bin/busybox.conf"},
		{source: empty, target: "/made/empty"},
		{source: empty, target: "/bin"}, // the image has /bin, which must stay as it is
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
		t.Error("one file for two targets was uploaded twice")
	}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	got := mustExec(ctx, t, s,
		script("cat /etc/app/one.conf /etc/app/two.conf /top /bin/busybox.conf; echo; for p in /etc/app "+
			"/etc/app/one.conf /etc/app/two.conf /made /made/empty /bin /owned /owned/empty; do stat -c '%n %a %u:%g' $p; "+
			"done; stat -c %Y /etc/app/one.conf /made/empty"))
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
	for what, target := range map[string]string{"a directory where a file is": "/bin/busybox",
		"a path through a file": "/bin/busybox/x"} {
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
	wantError(t, "a file where a directory is", err, protocol.FailedPrecondition, protocol.ReasonCopyFailed,
		"spec.copies[0]")
	becomesEmpty(f, w)
}

// If a mount covers a part of a copied tree, that part appears neither in the container nor among the files of the
// host.
func TestAMountHidesWhatACopyHasAtItsTarget(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	dir := t.TempDir()
	host, home, tree := filepath.Join(dir, "host"), filepath.Join(dir, "home"), filepath.Join(dir, "tree")
	for _, name := range []string{"one file", "fixed/f", "shared/f"} {
		writeFile(t, filepath.Join(host, name), "host", 0o666, time.Now())
	}
	writeFile(t, filepath.Join(home, ".ssh", "known_hosts"), "host key", 0o644, time.Now())
	for _, name := range []string{"sub/one file", "sub/beside", "fixed/f", "fixed/g", "shared/f", "shared/g",
		"memory/f", ".ssh/known_hosts", ".ssh/config"} {
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
	spec.Mounts = []protocol.Mount{{Source: filepath.Join(host, "one file"), Target: "/work/sub/one file"},
		{Source: filepath.Join(host, "fixed"), Target: "/work/fixed"},
		{Source: filepath.Join(host, "shared"), Target: "/work/shared", Writable: true}}
	spec.Tmpfs = []protocol.Tmpfs{{Target: "/work/memory"}}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	got := mustExec(ctx, t, s, script(`cd /work; find . -type f | sort | while read p; do echo $p $(cat "$p"); done`))
	want := "./.ssh/config copy\n./.ssh/known_hosts host key\n./fixed/f host\n./shared/f host\n./sub/beside " +
		"copy\n./sub/one file host\n"
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

// A worker resumes a create after the container has run. The worker must keep the changes that the command made to the
// copied files.
func TestAResumedCreateDoesNotCopyAgain(t *testing.T) {
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
	f.Eventually(10*time.Second, "the command has run", func() error {
		_, err := exec.Command("docker", "-H", host, "exec", container, "ls", "/ran").Output()
		return err
	})
	docker(t, host, "kill", container)
	w = w.Restart()
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /x/f")); got != "changed\n" {
		t.Errorf("the file contains %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}

// runMeasured runs a command to its end and returns its peak memory in bytes, sampled every 20 ms.
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
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // fails if the process has ended
			_, rest, _ := strings.Cut(string(status), "VmHWM:")
			var kib int64
			if n, _ := fmt.Sscanf(rest, "%d kB", &kib); n == 1 {
				peak = max(peak, kib<<10)
			}
		}
	}
}

// The tree is larger than the memory that the worker and the caller may take.
func TestALargeTreeIsCopiedInBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes more than a gigabyte")
	}
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(4 * time.Minute)
	dir := t.TempDir()
	const files, size = 8, 64 << 20
	for i := range files { // the files are sparse, so they take no space here
		name := filepath.Join(dir, fmt.Sprint(i))
		writeFile(t, name, fmt.Sprint(i), 0o644, time.Now())
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	cli := buildCLI(t)
	begin := time.Now()
	caller := runMeasured(t, exec.CommandContext(ctx, cli, append(f.Flags(), "sandbox", "create", "--id", "large",
		"--image", fleet.Image, "--copy", dir+":/large")...))
	worker := w.PeakMemory()
	t.Logf("uploaded and created in %s; peak memory: worker %d MiB, caller %d MiB",
		time.Since(begin).Round(time.Millisecond), worker>>20, caller>>20)
	if worker > 300<<20 || caller > 200<<20 {
		t.Errorf("the worker took %d MiB, the caller %d MiB", worker>>20, caller>>20)
	}
	s := f.Client.Sandbox("large")
	got := mustExec(ctx, t, s, script("cd /large && cat * | wc -c && head -c 1 7"))
	if got != fmt.Sprintf("%d\n7", files*size) {
		t.Errorf("got %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
