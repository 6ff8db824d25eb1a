package hostfiles

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestS12_MountsStayBelowTheAllowList(t *testing.T) {
	dir := t.TempDir()
	allowed, state := filepath.Join(dir, "allowed"), filepath.Join(dir, "allowed", "state")
	outside := filepath.Join(dir, "outside")
	for _, d := range []string{allowed, state, outside, filepath.Join(allowed, "sub"), filepath.Join(dir, "allowedX")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(allowed, "engine.sock")
	for link, to := range map[string]string{
		"out": outside, "in": filepath.Join(allowed, "sub"), "socket": socket, "root": "/",
	} {
		if err := os.Symlink(to, filepath.Join(allowed, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := NewPolicy([]string{allowed}, []string{socket, state})
	if err != nil {
		t.Fatal(err)
	}
	for source, code := range map[string]protocol.Code{
		filepath.Join(allowed, "sub"):          "",
		filepath.Join(allowed, "in"):           "",
		allowed + "/sub/../sub":                "",
		allowed:                                protocol.PermissionDenied, // directory with the socket and the state
		filepath.Join(allowed, "out"):          protocol.PermissionDenied,
		filepath.Join(allowed, "root"):         protocol.PermissionDenied,
		socket:                                 protocol.PermissionDenied,
		filepath.Join(allowed, "socket"):       protocol.PermissionDenied,
		state:                                  protocol.PermissionDenied,
		outside:                                protocol.PermissionDenied,
		filepath.Join(dir, "allowedX"):         protocol.PermissionDenied,
		allowed + "/../outside":                protocol.PermissionDenied,
		"/":                                    protocol.PermissionDenied,
		"/dev/null":                            protocol.PermissionDenied,
		filepath.Join(allowed, "not-existing"): protocol.InvalidArgument,
	} {
		f, real, err := policy.open("spec.mounts[0]", source, false)
		if f != nil {
			f.Close()
		}
		if protocol.CodeOf(err) != code {
			t.Errorf("mount of %s: error %v, want code %q", source, err, code)
			continue
		}
		if code != "" {
			if field := protocol.AsError(err).Field; field != "spec.mounts[0].source" {
				t.Errorf("mount of %s: the error names the field %q, want spec.mounts[0].source", source, field)
			}
			continue
		}
		if real != filepath.Join(allowed, "sub") {
			t.Errorf("the mount of %s leads to %s, want %s", source, real, filepath.Join(allowed, "sub"))
		}
	}
}

// opens checks that opening a source read-only fails with this code, or succeeds if code is "".
func opens(t *testing.T, policy *Policy, what, source string, code protocol.Code) {
	t.Helper()
	f, _, err := policy.open("m", source, false)
	if f != nil {
		f.Close()
	}
	if protocol.CodeOf(err) != code {
		t.Errorf("%s: error %v, want code %q", what, err, code)
	}
}

func TestAnAllowListIsEmptyByDefaultAndNeverTheRoot(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	none, err := NewPolicy(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	opens(t, none, "without an allow-list", dir, protocol.PermissionDenied)
	for _, bad := range []string{
		"/", "relative", filepath.Join(dir, "not-existing"), filepath.Join(dir, "root"), dir + ":rx",
	} {
		if _, err := NewPolicy([]string{bad}, nil); protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("an allow-list with %s: error %v, want invalid_argument", bad, err)
		}
	}
}

// socketBeside makes an engine's socket in dir/hidden, a directory dir/shared, and a policy that allows dir/shared.
func socketBeside(t *testing.T) (policy *Policy, dir, socket string) {
	t.Helper()
	dir = t.TempDir()
	for _, d := range []string{"hidden", "shared/deep/down", "shared/fine", "shared/bound"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket = filepath.Join(dir, "hidden", "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	if policy, err = NewPolicy([]string{filepath.Join(dir, "shared")}, []string{socket}); err != nil {
		t.Fatal(err)
	}
	return policy, dir, socket
}

func TestS12_TheEnginesSocketIsRefusedByInode(t *testing.T) {
	policy, dir, socket := socketBeside(t)
	shared := filepath.Join(dir, "shared")
	opens(t, policy, "a directory without a link to the socket", shared, "")
	link := filepath.Join(shared, "deep", "down", "harmless")
	if err := os.Link(socket, link); err != nil {
		t.Fatal(err)
	}
	opens(t, policy, "a hard link to the socket", link, protocol.PermissionDenied)
	opens(t, policy, "a directory that contains a hard link to the socket", shared, protocol.PermissionDenied)
	opens(t, policy, "a directory next to the hard link", filepath.Join(shared, "fine"), "")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	opens(t, policy, "a directory whose hard link was removed", shared, "")
	policy, err := NewPolicy([]string{shared}, []string{socket, filepath.Join(shared, "to", "come")})
	if err != nil {
		t.Fatal(err)
	}
	opens(t, policy, "a directory with a forbidden path that does not exist yet", shared, protocol.PermissionDenied)
}

func TestS12_TheEnginesSocketIsRefusedThroughOtherMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	policy, dir, _ := socketBeside(t)
	bound, fine := filepath.Join(dir, "shared", "bound"), filepath.Join(dir, "shared", "fine")
	mount := func(source, target, kind string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	mount(filepath.Join(dir, "hidden"), bound, "", unix.MS_BIND)
	opens(t, policy, "the socket's directory", bound, protocol.PermissionDenied)
	mount(dir, bound, "", unix.MS_BIND)
	opens(t, policy, "a directory above the socket", bound, protocol.PermissionDenied)
	opens(t, policy, "a directory next to the socket", filepath.Join(bound, "shared", "fine"), "")
	mount("proc", fine, "proc", 0)
	opens(t, policy, "a file system of the kernel", fine, protocol.PermissionDenied)
}

func TestTheLongestEntryDecidesWhetherAMountMayBeWritable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may offer writable mounts")
	}
	dir := t.TempDir()
	fixed := filepath.Join(dir, "fixed")
	for _, d := range []string{filepath.Join(fixed, "open", "x"), filepath.Join(fixed, "y"), filepath.Join(dir, "x")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(fixed, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	policy, err := NewPolicy([]string{fixed + ":ro", dir + ":rw", filepath.Join(fixed, "open") + ":rw"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for source, mayWrite := range map[string]bool{
		dir: false, fixed: false, filepath.Join(fixed, "y"): false, filepath.Join(dir, "link"): false,
		filepath.Join(dir, "x"): true, filepath.Join(dir, "link", "open"): true, filepath.Join(fixed, "open", "x"): true,
	} {
		for _, writable := range []bool{false, true} {
			f, _, err := policy.open("m", source, writable)
			if f != nil {
				f.Close()
			}
			want := mayWrite || !writable
			if (err == nil) != want || err != nil && protocol.AsError(err).Field != "m.writable" {
				t.Errorf("mount of %s, writable %v: error %v, want success: %v", source, writable, err, want)
			}
		}
	}
	all, writable := policy.Advertised()
	if len(all) != 3 || len(writable) != 2 || all[0] != fixed {
		t.Errorf("Advertised returns %q and the writable entries %q", all, writable)
	}
}

func TestALinkThatAppearsAfterASourceWasResolvedIsRefused(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"allowed/a/b", "outside/b"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a := filepath.Join(dir, "allowed", "a")
	if err := errors.Join(os.Rename(a, a+"2"), os.Symlink(filepath.Join(dir, "outside"), a)); err != nil {
		t.Fatal(err)
	}
	// Open the path as it was resolved before its directory became a link.
	if f, err := openBelow(filepath.Join(dir, "allowed"), filepath.Join(a, "b")); err == nil {
		f.Close()
		t.Error("openBelow followed a link below the entry of the allow-list")
	}
	if f, err := openBelow(a, filepath.Join(a, "b")); err == nil {
		f.Close()
		t.Error("openBelow followed an entry of the allow-list that has become a link")
	}
}

// While a directory and a link are exchanged again and again, each call of open returns the directory or is denied.
func TestASourceThatIsReplacedWhileItIsResolvedIsDenied(t *testing.T) {
	dir := t.TempDir()
	allowed, outside := filepath.Join(dir, "allowed"), filepath.Join(dir, "outside")
	a, b := filepath.Join(allowed, "a"), filepath.Join(allowed, "b")
	if err := errors.Join(os.MkdirAll(a, 0o755), os.Mkdir(outside, 0o755), os.Symlink(outside, b)); err != nil {
		t.Fatal(err)
	}
	inside, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := NewPolicy([]string{allowed}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				// If an exchange fails, the next exchange may succeed. The test fails below if all exchanges fail.
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
	opened, refused := 0, 0
	for range 5000 {
		f, _, err := policy.open("spec.mounts[0]", a, false)
		if err != nil {
			refused++
			if e := protocol.AsError(err); e.Reason != protocol.ReasonMountDenied || e.Field != "spec.mounts[0].source" {
				t.Errorf("the source was refused with %v, want reason mount_denied and the field of the source", err)
			}
			continue
		}
		opened++
		if info, err := f.Stat(); err != nil || !os.SameFile(info, inside) {
			t.Errorf("another file than the directory was opened, error %v", err)
		}
		f.Close()
	}
	close(stop)
	<-stopped
	if opened == 0 || refused == 0 {
		t.Errorf("%d calls of open succeeded and %d were refused, want some of each", opened, refused)
	}
}

// A rename of a file elsewhere on the machine must not be taken for a change of the path.
func TestRenamesElsewhereDoNotPreventOpening(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"root/a", "elsewhere"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for from, to := filepath.Join(dir, "elsewhere"), filepath.Join(dir, "moved"); ; from, to = to, from {
			select {
			case <-stop:
				return
			default:
				if err := os.Rename(from, to); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	name := strings.Repeat("a/../", 50) + "a"
	for range 2000 {
		f, err := openPath(int(root.Fd()), name, unix.RESOLVE_IN_ROOT)
		if err != nil {
			t.Error(err)
			break
		}
		f.Close()
	}
	close(stop)
	<-stopped
}
