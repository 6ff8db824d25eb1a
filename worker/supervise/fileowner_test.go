package supervise_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
	"github.com/boxfleet/boxfleet/worker/files"
)

// owners returns "uid:gid mode" of paths.
func owners(t *testing.T, f *files.Session, paths ...string) (all []string) {
	t.Helper()
	stats, err := f.Stat(fileContext(t), protocol.FileStat{Paths: paths})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range stats.Files {
		if r.Error != nil {
			t.Fatalf("%s: %v", paths[i], r.Error)
		}
		all = append(all, fmt.Sprintf("%d:%d %o", r.File.UID, r.File.GID, r.File.Mode))
	}
	return all
}

// ownedBy checks the owners and modes of paths.
func ownedBy(t *testing.T, f *files.Session, want string, paths ...string) {
	t.Helper()
	for i, got := range owners(t, f, paths...) {
		if got != want {
			t.Errorf("%s has the owner and mode %s, want %s", paths[i], got, want)
		}
	}
}

// Owners work in the same way for every user of every profile.
func TestFiles_OwnersAreSetUnderEachProfile(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]option{
		"hardened": {}, "standard": {privileged: true, args: []string{"--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE"}},
	} {
		for _, user := range []string{"0", "65534"} {
			t.Run(name+" as "+user, func(t *testing.T) {
				t.Parallel()
				s := newSandbox(t, o)
				f, dir := s.fileSession(user), "/tmp/of"+user
				if _, err := f.Mkdir(fileContext(t), protocol.FileMkdir{Path: dir}); err != nil {
					t.Fatal(err)
				}
				writesWithOwner(t, f, dir)
				writesWithOwner(t, f, "/tmp") // where only the owner of a file may rename it
				makesWithOwner(t, f, dir)
				unpacksWithOwner(t, f, dir)
			})
		}
	}
}

func writesWithOwner(t *testing.T, f *files.Session, dir string) {
	t.Helper()
	mode := uint32(0o640)
	for name, r := range map[string]protocol.FileWrite{
		"new":      {Mode: &mode},
		"created":  {How: protocol.FileCreate, Mode: &mode},
		"appended": {How: protocol.FileAppend, Mode: &mode},
	} {
		r.Path, r.Owner = dir+"/"+name, "1000:10"
		info, err := f.Write(fileContext(t), r, strings.NewReader("text"))
		if err != nil || info.UID != 1000 || info.GID != 10 || info.Mode != 0o640 || info.Size != 4 {
			t.Errorf("%s: %+v, %v", r.Path, info, err)
		}
	}
	put(t, f, dir+"/old", "old")
	if _, err := f.Write(fileContext(t), protocol.FileWrite{Path: dir + "/old", Owner: "7"},
		strings.NewReader("new")); err != nil {
		t.Error(err)
	}
	ownedBy(t, f, "7:7 644", dir+"/old")
	if got := get(t, f, protocol.FileRead{Path: dir + "/old"}); got != "new" {
		t.Errorf("the file has %q", got)
	}
	p, err := f.List(fileContext(t), protocol.FileList{Path: dir, Hidden: true})
	if err != nil || strings.Contains(strings.Join(paths(p), " "), ".boxfleet") {
		t.Errorf("temporary files were left: %q, %v", paths(p), err)
	}
}

func makesWithOwner(t *testing.T, f *files.Session, dir string) {
	t.Helper()
	mode := uint32(0o700)
	info, err := f.Mkdir(fileContext(t), protocol.FileMkdir{Path: dir + "/a/b", Parents: true, Mode: &mode, Owner: "1000"})
	if err != nil || info.UID != 1000 || info.GID != 1000 || info.Mode != 0o700 {
		t.Errorf("made %+v, %v", info, err)
	}
}

func unpacksWithOwner(t *testing.T, f *files.Session, dir string) {
	t.Helper()
	entries := []file{
		{name: "d/", kind: '5', mode: 0o750, uid: 1000}, {name: "d/e/", kind: '5', mode: 0o500, uid: 1000},
		{name: "d/e/f", kind: '0', mode: 0o600, uid: 1000, data: []byte("inner")},
		{name: "d/f", kind: '0', mode: 0o600, uid: 1000, data: bytes.Repeat([]byte("x"), 300<<10)},
		{name: "d/l", kind: '2', link: "f", uid: 1000},
	}
	for i := range 300 {
		entries = append(entries, file{name: fmt.Sprintf("many/%d", i), kind: '0', mode: 0o644, uid: 1000})
	}
	tree := archive(entries)
	for name, r := range map[string]protocol.FileUnpack{"kept": {KeepOwner: true}, "given": {Owner: "1000"}} {
		r.Path = dir + "/" + name
		count, err := f.Unpack(fileContext(t), r, bytes.NewReader(tree))
		if err != nil || count.Entries != int64(len(entries)) {
			t.Fatalf("%s: %+v, %v", name, count, err)
		}
		ownedBy(t, f, "1000:1000 750", r.Path+"/d")
		ownedBy(t, f, "1000:1000 644", r.Path+"/many/0", r.Path+"/many/299")
	}
}

// As the owner, the whole tree is there with its modes.
func TestFiles_AnUnpackedTreeBelongsToItsOwner(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	unpacksWithOwner(t, s.fileSession("0"), "/tmp")
	f := s.fileSession("1000:1000")
	ownedBy(t, f, "1000:1000 500", "/tmp/kept/d/e")
	ownedBy(t, f, "1000:1000 600", "/tmp/kept/d/e/f", "/tmp/kept/d/f")
	if got := get(t, f, protocol.FileRead{Path: "/tmp/given/d/e/f"}); got != "inner" {
		t.Errorf("the inner file has %q", got)
	}
}

// The worker gives a hardened container's users no more than what its root could do with CHOWN.
func TestFiles_OwnersHaveLimits(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{args: []string{"--tmpfs", "/tmp:mode=1777,size=64m"}})
	s.mustSh("touch /tmp/roots && chmod 666 /tmp/roots && mkdir -m 777 /tmp/open")
	f, ctx := s.fileSession("65534"), fileContext(t)
	_, err := f.Write(ctx, protocol.FileWrite{Path: "/tmp/roots", How: protocol.FileAppend, Owner: "65534"},
		strings.NewReader("x"))
	refusedWith(t, "take a file of root", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	_, err = f.Mkdir(ctx, protocol.FileMkdir{Path: "/tmp/open", Parents: true, Owner: "65534"})
	refusedWith(t, "take a directory of root", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	ownedBy(t, f, "0:0 666", "/tmp/roots")
	ownedBy(t, f, "0:0 777", "/tmp/open")
	for _, bits := range []uint32{0o4755, 0o2755} {
		_, err = f.Write(ctx, protocol.FileWrite{Path: "/tmp/open/setuid", Owner: "0", Mode: &bits}, strings.NewReader("x"))
		refusedWith(t, "a mode with setuid or setgid", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
		_, err = f.Mkdir(ctx, protocol.FileMkdir{Path: "/tmp/open/set", Parents: true, Owner: "0", Mode: &bits})
		refusedWith(t, "a directory with setuid or setgid", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	}
	tree := archive([]file{{name: "d/", kind: '5', mode: 0o2755, uid: 7}, {name: "d/su", kind: '0', mode: 0o4755, uid: 7}})
	if _, err := f.Unpack(ctx, protocol.FileUnpack{Path: "/tmp/t", KeepOwner: true}, bytes.NewReader(tree)); err != nil {
		t.Error(err)
	}
	ownedBy(t, f, "7:7 755", "/tmp/t/d", "/tmp/t/d/su")
	linked := archive([]file{{name: "a", kind: '0', mode: 0o600, uid: 7}, {name: "b", kind: '1', link: "a", uid: 7}})
	_, err = f.Unpack(ctx, protocol.FileUnpack{Path: "/tmp/l", KeepOwner: true}, bytes.NewReader(linked))
	refusedWith(t, "a hard link", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	put(t, f, "/tmp/open/kept", "the same helper still works")
}

// On a directory of the host, owners are set as with the profile standard; a mount for reading only refuses them.
func TestFiles_OwnersOnDirectoriesOfTheHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := newSandbox(t, option{args: []string{"-v", dir + ":/host", "-v", dir + ":/locked:ro"}})
	f, ctx := s.fileSession("0"), fileContext(t)
	if _, err := f.Write(ctx, protocol.FileWrite{Path: "/host/given", Owner: "1000"}, strings.NewReader("x")); err != nil {
		t.Error(err)
	}
	ownedBy(t, f, "1000:1000 644", "/host/given")
	_, err := f.Mkdir(ctx, protocol.FileMkdir{Path: "/locked", Parents: true, Owner: "1000"})
	refusedWith(t, "a mount for reading only", err, protocol.FailedPrecondition, protocol.ReasonReadOnly)
	info, err := os.Stat(filepath.Join(dir, "given"))
	if err != nil || info.Size() != 1 {
		t.Errorf("the host's file: %v, %v", info, err)
	}
	ownedBy(t, f, "0:0 755", "/host")
}

// hostileHelper returns a session with the sandbox whose helper asks for a new owner of one open file.
func (s *sandbox) hostileHelper(file *os.File) *files.Session {
	s.t.Helper()
	container, err := os.OpenRoot(fmt.Sprintf("/proc/%d", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	start := func(context.Context) (*net.UnixConn, error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
			return nil, err
		}
		theirs := packet.New(connectionOf(s.t, pair[1]))
		go func() {
			defer theirs.Close()
			_, _, _, err := theirs.Receive()
			if err == nil { // without the packets, the operation fails in another way
				_ = theirs.SendMessage(&control.FileReply{Give: &control.Give{UID: 1000, GID: 1000}}, int(file.Fd()))
				_ = theirs.SendMessage(&control.FileReply{File: &protocol.FileInfo{}}, -1)
			}
			for err == nil { // until the session ends
				_, _, _, err = theirs.Receive()
			}
		}()
		return connectionOf(s.t, pair[0]), nil
	}
	f := files.New(files.Config{Start: start, Container: container})
	s.t.Cleanup(f.Close)
	return f
}

func connectionOf(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// The worker passes open files of the host to a supervisor. A hostile supervisor that passes them back must not get
// them for one of its users, nor a file on a mount for reading only.
func TestFiles_AFileOfTheHostIsNotGivenToTheContainer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newSandbox(t, option{args: []string{"-v", dir + ":/host", "-v", dir + ":/locked:ro"}})
	inside := fmt.Sprintf("/proc/%d/root", s.pid)
	for _, c := range []struct{ path, file, reason string }{
		{dir + "/a", dir + "/a", protocol.ReasonPathDenied},
		{inside + "/locked/a", dir + "/a", protocol.ReasonReadOnly},
		{inside + "/host/b", dir + "/b", ""},
	} {
		file, err := os.Open(c.path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.hostileHelper(file).Mkdir(fileContext(t), protocol.FileMkdir{Path: "/x", Owner: "1000"})
		file.Close()
		var stat unix.Stat_t
		if err := unix.Stat(c.file, &stat); err != nil {
			t.Fatal(err)
		}
		if given := c.reason == ""; given != (err == nil) || given != (stat.Uid == 1000) {
			t.Errorf("%s: it belongs to %d, %v", c.path, stat.Uid, err)
		}
		if e := protocol.AsError(err); e != nil && e.Reason != c.reason {
			t.Errorf("%s: got %v, want reason %s", c.path, err, c.reason)
		}
	}
}

// A directory that exists keeps its owner, and one that an operation makes gets the owner of its tree.
func TestFiles_ADirectoryThatWasMadeBelongsToTheOwnerOfItsTree(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]option{
		"hardened": {}, "standard": {privileged: true, args: []string{"--cap-add", "CHOWN"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSandbox(t, o)
			s.mustSh("mkdir /tmp/old")
			f, tree := s.fileSession("0"), archive([]file{{name: "f", kind: '0', mode: 0o600}})
			for _, path := range []string{"/tmp/old", "/tmp/new"} {
				if _, err := f.Unpack(fileContext(t), protocol.FileUnpack{Path: path, Owner: "1000"},
					bytes.NewReader(tree)); err != nil {
					t.Fatal(err)
				}
			}
			ownedBy(t, f, "0:0 755", "/tmp/old")
			ownedBy(t, f, "1000:1000 755", "/tmp/new")
		})
	}
}
