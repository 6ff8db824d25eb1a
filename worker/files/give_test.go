package files

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

const (
	stranger = 12345 // the owner that the tests ask for
	other    = 23456
)

// requireRoot skips a test that changes owners.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root changes the owners of files")
	}
}

// asking asks to set the owner of each file, and then replies.
func asking(give control.Give, fds ...int) func(c *packet.Conn) {
	return func(c *packet.Conn) {
		for _, fd := range fds {
			if c.SendMessage(&control.FileReply{Give: &give}, fd) != nil {
				return // the session has refused an earlier one
			}
			if give.Answer {
				if _, _, _, err := c.Receive(); err != nil {
					return
				}
			}
		}
		// Without the reply, the operation fails.
		_ = c.SendMessage(&control.FileReply{File: &protocol.FileInfo{}, Count: &protocol.FileCount{}}, -1)
		for err := error(nil); err == nil; { // until the session ends
			_, _, _, err = c.Receive()
		}
	}
}

// hostileFile is a file that a worker must not give away.
type hostileFile struct {
	name string
	path string // empty: nothing of it can be inspected afterwards
	fd   int
}

func hostileFiles(t *testing.T) (all []hostileFile) {
	t.Helper()
	dir := t.TempDir()
	add := func(name, path string, flags int) {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(name, err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		all = append(all, hostileFile{name, path, fd})
	}
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	add("a setuid file", file("setuid", 0o755|os.ModeSetuid), unix.O_RDWR)
	add("a setgid file", file("setgid", 0o755|os.ModeSetgid), unix.O_RDWR)
	linked := file("linked", 0o600)
	others := file("others", 0o600)
	shared := filepath.Join(dir, "shared")
	fifo, device, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "device"), filepath.Join(dir, "link")
	for _, err := range []error{os.Link(linked, linked+"2"), os.Chown(others, other, other), os.Mkdir(shared, 0o755),
		os.Chmod(shared, 0o755|os.ModeSetgid), unix.Mkfifo(fifo, 0o600), os.Symlink(linked, link),
		unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	add("a file with two names", linked, unix.O_RDWR)
	add("a file of another user", others, unix.O_RDWR)
	add("a setgid directory", shared, unix.O_RDONLY)
	add("a FIFO", fifo, unix.O_RDWR)
	add("a device", device, unix.O_RDWR)
	add("a link", link, unix.O_PATH|unix.O_NOFOLLOW)
	add("a file that is not opened", file("path", 0o600), unix.O_PATH)
	add("a file of /proc", "/proc/self/comm", unix.O_RDONLY)
	memory, err := unix.MemfdCreate("outside", unix.MFD_CLOEXEC) // it is in no mount of the container
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(memory); unix.Close(pair[0]); unix.Close(pair[1]) })
	return append(all, hostileFile{"a file that was not opened in the container", "", memory},
		hostileFile{"a socket", "", pair[0]})
}

// ownerOf returns the owner of a file.
func ownerOf(t *testing.T, path string) (uid int) {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return int(stat.Uid)
}

// The worker is root on the host. What a hostile container gets from it must be no more than its own root could do.
func TestAHostileHelperGetsNoOtherOwner(t *testing.T) {
	requireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, f := range hostileFiles(t) {
		s := facing(t, asking(control.Give{UID: stranger, GID: stranger}, f.fd))
		if _, err := s.Mkdir(ctx, protocol.FileMkdir{Path: "/x", Owner: "12345"}); err == nil {
			t.Errorf("%s: the operation succeeded", f.name)
		}
		var stat unix.Stat_t
		if err := unix.Fstat(f.fd, &stat); err != nil || stat.Uid == stranger {
			t.Errorf("%s was given away: %v", f.name, err)
		}
	}
}

// opened makes files of this process's user, which a worker may give away.
func opened(t *testing.T, names ...string) (paths []string, fds []int) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		paths, fds = append(paths, path), append(fds, fd)
	}
	return paths, fds
}

// The owner is that of the request, whatever the helper says, and only for operations that have one.
func TestOnlyWhatTheOperationNamesIsGivenAway(t *testing.T) {
	requireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	forged := control.Give{UID: other, GID: other, Answer: true}
	mkdir := func(owner string) func(*Session) error {
		return func(s *Session) error {
			_, err := s.Mkdir(ctx, protocol.FileMkdir{Path: "/x", Owner: owner})
			return err
		}
	}
	unpack := func(r protocol.FileUnpack, bytes int) func(*Session) error {
		r.Path = "/x"
		return func(s *Session) error {
			_, err := s.Unpack(ctx, r, strings.NewReader(strings.Repeat("x", bytes)))
			return err
		}
	}
	for name, c := range map[string]struct {
		run  func(*Session) error
		want []int // owners of three files, each of which the helper asks for
	}{
		"a directory without an owner": {mkdir(""), []int{0, 0, 0}},
		"a directory":                  {mkdir("12345"), []int{stranger, 0, 0}},
		"a write": {func(s *Session) error {
			_, err := s.Write(ctx, protocol.FileWrite{Path: "/x", Owner: "12345:7"}, strings.NewReader(""))
			return err
		}, []int{stranger, 0, 0}},
		"an edit": {func(s *Session) error {
			_, err := s.Edit(ctx, protocol.FileEdit{Path: "/x", Old: []byte("x")})
			return err
		}, []int{0, 0, 0}},
		"a tree without owners": {unpack(protocol.FileUnpack{}, 5*tarEntry), []int{0, 0, 0}},
		"a tree with one entry": {unpack(protocol.FileUnpack{Owner: "12345"}, tarEntry+1), []int{stranger, 0, 0}},
		"a tree with an owner": {unpack(protocol.FileUnpack{Owner: "12345"}, 3*tarEntry),
			[]int{stranger, stranger, stranger}},
		"a tree that keeps its owner": {unpack(protocol.FileUnpack{KeepOwner: true}, 2*tarEntry), []int{other, other, 0}},
	} {
		paths, fds := opened(t, "a", "b", "c")
		s := facing(t, func(c *packet.Conn) {
			streamed(c, name)
			asking(forged, fds...)(c)
		})
		_ = c.run(s) // an operation fails if the helper asks for too much
		s.Close()
		var got []int
		for _, path := range paths {
			got = append(got, ownerOf(t, path))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the files belong to %d, want %d", name, got, c.want)
		}
	}
}

// streamed receives the stream of an upload.
func streamed(c *packet.Conn, operation string) {
	if !strings.HasPrefix(operation, "a tree") && operation != "a write" {
		return
	}
	for {
		if kind, _, _, err := c.Receive(); err != nil || kind == packet.End {
			return
		}
	}
}

// A helper that does not wait for an answer must not end its operation as if it had succeeded.
func TestAnOwnerThatTheWorkerRefusesEndsTheOperation(t *testing.T) {
	requireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	paths, fds := opened(t, "a")
	for name, give := range map[string]control.Give{
		"no user":  {UID: 1<<32 - 1, GID: 1},
		"no group": {UID: 1, GID: 1<<32 - 1},
	} {
		s := facing(t, func(c *packet.Conn) {
			streamed(c, "a tree")
			asking(give, fds...)(c)
		})
		_, err := s.Unpack(ctx, protocol.FileUnpack{Path: "/x", KeepOwner: true},
			strings.NewReader(strings.Repeat("x", tarEntry)))
		if e := protocol.AsError(err); e == nil || e.Code != protocol.InvalidArgument || e.Field != "owner" {
			t.Errorf("%s: got %v, want invalid_argument with the field owner", name, err)
		}
		s.Close()
	}
	if got := ownerOf(t, paths[0]); got != 0 {
		t.Errorf("the file was given to %d", got)
	}
}

// A worker that has lost its lease must not change the sandbox.
func TestNoOwnerIsSetWithoutALease(t *testing.T) {
	requireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	paths, fds := opened(t, "a")
	s := facing(t, asking(control.Give{Answer: true}, fds...))
	lost := protocol.Errorf(protocol.Unavailable, protocol.ReasonLeaseLost, "lost")
	calls := 0
	s.config.Lease = func() error {
		if calls++; calls > 1 { // the lease ends when the operation has begun
			return lost
		}
		return nil
	}
	if _, err := s.Mkdir(ctx, protocol.FileMkdir{Path: "/x", Owner: "12345"}); err != nil {
		t.Error(err) // the helper hides it
	}
	if got := ownerOf(t, paths[0]); got != 0 || calls != 2 {
		t.Errorf("after %d questions about the lease, the file belongs to %d", calls, got)
	}
}

// With a user namespace, an id in a request names another user than on the host.
func TestIDsOfAUserNamespaceAreNotTaken(t *testing.T) {
	for table, same := range map[string]bool{
		"         0          0 4294967295\n": true,
		"         0     100000      65536\n": false,
		"0 0 1000\n1000 1000 4294966295\n":   false,
		"":                                   false,
	} {
		if sameIDs([]byte(table)) != same {
			t.Errorf("%q: want %t", table, same)
		}
	}
}
