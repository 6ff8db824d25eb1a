package supervise_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/files"
)

// fileSession returns a session of a sandbox, which ends with the test.
func (s *sandbox) fileSession(user string) *files.Session {
	s.t.Helper()
	session, err := s.link.Files(fileContext(s.t), user, "/tmp")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(session.Close)
	return session
}

// fileContext returns a context that ends before a test that hangs does.
func fileContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// everywhere runs a test in an image with programs and in an empty image, as root and as nobody. The empty image has
// /tmp on a tmpfs, because it has no directory that nobody may write to.
func everywhere(t *testing.T, run func(t *testing.T, s *sandbox, f *files.Session)) {
	t.Helper()
	for name, image := range map[string]string{"busybox": busyboxImage, "empty": emptyImage} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := option{image: image}
			if image == emptyImage {
				o.args = []string{"--tmpfs", "/tmp:mode=1777,size=64m"}
			}
			s := newSandbox(t, o)
			for _, user := range []string{"0", "65534:65534"} {
				t.Run("user "+user, func(t *testing.T) { run(t, s, s.fileSession(user)) })
			}
		})
	}
}

// own returns a directory of the test's own.
func own(t *testing.T, f *files.Session) string {
	t.Helper()
	dir := fmt.Sprintf("/tmp/%s", newID())
	if _, err := f.Mkdir(fileContext(t), protocol.FileMkdir{Path: dir}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func put(t testing.TB, f *files.Session, path, text string) *protocol.FileInfo {
	t.Helper()
	info, err := f.Write(fileContext(t), protocol.FileWrite{Path: path, Parents: true}, strings.NewReader(text))
	if err != nil {
		t.Fatalf("write %q: %v", path, err)
	}
	return info
}

func get(t testing.TB, f *files.Session, r protocol.FileRead) string {
	t.Helper()
	reader, err := f.Read(fileContext(t), r)
	if err != nil {
		t.Fatalf("read %q: %v", r.Path, err)
	}
	defer reader.Close()
	data, err := io.ReadAll(reader)
	if err != nil {
		t.Fatalf("read %q: %v", r.Path, err)
	}
	return string(data)
}

// refusedWith checks the code and the reason of an error.
func refusedWith(t *testing.T, what string, err error, code protocol.Code, reason string) {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != code || e.Reason != reason {
		t.Errorf("%s: got %v, want %s (%s)", what, err, code, reason)
	}
}

func TestFiles_AreWrittenAndReadBack(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		dir := own(t, f)
		info := put(t, f, dir+"/a/b/file", "hello")
		if info.Size != 5 || info.Mode != 0o644 || info.Type != protocol.FileRegular {
			t.Errorf("the written file is %+v", info)
		}
		if got := get(t, f, protocol.FileRead{Path: dir + "/a/b/file"}); got != "hello" {
			t.Errorf("read %q", got)
		}
		if got := get(t, f, protocol.FileRead{Path: dir + "/a/b/file", Offset: 1, Length: 3}); got != "ell" {
			t.Errorf("a part: read %q", got)
		}
		if got := get(t, f, protocol.FileRead{Path: dir + "/a/b/file", Offset: 99}); got != "" {
			t.Errorf("beyond the end: read %q", got)
		}
		mode := uint32(0o4750)
		info, err := f.Write(fileContext(t), protocol.FileWrite{Path: dir + "/a/b/file", Mode: &mode},
			strings.NewReader("replaced"))
		if err != nil || info.Mode != 0o4750 {
			t.Errorf("replace with a mode: %+v, %v", info, err)
		}
		if info = put(t, f, dir+"/a/b/file", "again"); info.Mode != 0o4750 {
			t.Errorf("a replaced file has the mode %o, want that of the old one", info.Mode)
		}
		if _, err := f.Write(fileContext(t), protocol.FileWrite{Path: dir + "/a/b/file", How: protocol.FileAppend},
			strings.NewReader(" and again")); err != nil {
			t.Error(err)
		}
		if got := get(t, f, protocol.FileRead{Path: dir + "/a/b/file"}); got != "again and again" {
			t.Errorf("after an append: read %q", got)
		}
		_, err = f.Write(fileContext(t), protocol.FileWrite{Path: dir + "/a/b/file", How: protocol.FileCreate},
			strings.NewReader("x"))
		refusedWith(t, "create a file that exists", err, protocol.AlreadyExists, protocol.ReasonPathExists)
		if _, err := f.Write(fileContext(t), protocol.FileWrite{Path: dir + "/new", How: protocol.FileCreate},
			strings.NewReader("x")); err != nil {
			t.Error(err)
		}
		put(t, f, strings.TrimPrefix(dir, "/tmp/")+"/relative", "r")
		if got := get(t, f, protocol.FileRead{Path: dir + "/relative"}); got != "r" {
			t.Errorf("a relative path: read %q", got)
		}
	})
}

func TestFiles_ABigFileComesBackUnchanged(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		dir := own(t, f)
		data := bytes.Repeat([]byte("0123456789abcdef-"), 1<<18)
		if _, err := f.Write(fileContext(t), protocol.FileWrite{Path: dir + "/big"}, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if got := get(t, f, protocol.FileRead{Path: dir + "/big"}); got != string(data) {
			t.Errorf("%d bytes came back as %d other bytes", len(data), len(got))
		}
		if got := get(t, f, protocol.FileRead{Path: "/proc/self/status"}); !strings.Contains(got, "Groups:") {
			t.Errorf("a file of /proc: read %q", got)
		}
	})
}

func TestFiles_AreDescribedAndListed(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		dir := own(t, f)
		names := []string{"-dash", ".hidden", "new\nline", "sub/deep/er", "sub/x", "\xff\xfe", "zed"}
		for _, name := range names {
			put(t, f, dir+"/"+name, name)
		}
		stats, err := f.Stat(fileContext(t), protocol.FileStat{Paths: []string{dir, dir + "/zed", dir + "/none",
			dir + "/zed/below", "", "/" + strings.Repeat("x", 5000), "nul\x00"}})
		if err != nil {
			t.Fatal(err)
		}
		want := []protocol.Code{"", "", protocol.NotFound, protocol.FailedPrecondition, protocol.InvalidArgument,
			protocol.InvalidArgument, protocol.InvalidArgument}
		for i, r := range stats.Files {
			var got protocol.Code
			if r.Error != nil {
				got = r.Error.Code
			}
			if got != want[i] || (r.File == nil) == (r.Error == nil) {
				t.Errorf("path %d: got %+v, want code %q", i, r, want[i])
			}
		}
		if zed := stats.Files[1].File; zed.Size != 3 || zed.Changed.Before(time.Now().Add(-time.Hour)) || zed.Inode == 0 {
			t.Errorf("the file is %+v", zed)
		}
		var all []string
		page := ""
		for {
			p, err := f.List(fileContext(t), protocol.FileList{Path: dir, Depth: -1, Hidden: true, Limit: 2, Page: page})
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range p.Files {
				all = append(all, file.Path)
			}
			if page = p.Next; page == "" {
				break
			}
		}
		wantAll := []string{"-dash", ".hidden", "new\nline", "sub", "sub/deep", "sub/deep/er", "sub/x", "zed", "\xff\xfe"}
		if !slices.Equal(all, wantAll) {
			t.Errorf("listed %q\nwant   %q", all, wantAll)
		}
		p, err := f.List(fileContext(t), protocol.FileList{Path: dir})
		if err != nil || len(p.Files) != 5 || p.Next != "" {
			t.Errorf("one level without hidden names: %+v, %v", p, err)
		}
		_, err = f.List(fileContext(t), protocol.FileList{Path: dir + "/zed"})
		refusedWith(t, "list a file", err, protocol.FailedPrecondition, protocol.ReasonNotDirectory)
		_, err = f.List(fileContext(t), protocol.FileList{Path: dir, Page: "%"})
		refusedWith(t, "a wrong page", err, protocol.InvalidArgument, "")
	})
}

func TestFiles_DirectoriesAreMadeMovedCopiedAndRemoved(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		ctx, dir := fileContext(t), own(t, f)
		_, err := f.Mkdir(ctx, protocol.FileMkdir{Path: dir + "/a/b"})
		refusedWith(t, "without parents", err, protocol.NotFound, protocol.ReasonPathNotFound)
		mode := uint32(0o1777)
		info, err := f.Mkdir(ctx, protocol.FileMkdir{Path: dir + "/a/b", Parents: true, Mode: &mode})
		if err != nil || info.Mode != mode || info.Type != protocol.FileDirectory {
			t.Errorf("made %+v, %v", info, err)
		}
		_, err = f.Mkdir(ctx, protocol.FileMkdir{Path: dir + "/a/b"})
		refusedWith(t, "mkdir again", err, protocol.AlreadyExists, protocol.ReasonPathExists)
		if _, err = f.Mkdir(ctx, protocol.FileMkdir{Path: dir + "/a/b", Parents: true}); err != nil {
			t.Errorf("mkdir again with parents: %v", err)
		}
		put(t, f, dir+"/a/b/file", "x")
		put(t, f, dir+"/other", "y")
		_, err = f.Mkdir(ctx, protocol.FileMkdir{Path: dir + "/other/sub", Parents: true})
		refusedWith(t, "mkdir below a file", err, protocol.FailedPrecondition, protocol.ReasonNotDirectory)

		_, err = f.Move(ctx, protocol.FileMove{From: dir + "/other", To: dir + "/a/b/file"})
		refusedWith(t, "move onto a file", err, protocol.AlreadyExists, protocol.ReasonPathExists)
		if _, err = f.Move(ctx, protocol.FileMove{From: dir + "/a", To: dir + "/moved"}); err != nil {
			t.Error(err)
		}
		if _, err = f.Move(ctx, protocol.FileMove{From: dir + "/other", To: dir + "/moved/b/file",
			Overwrite: true}); err != nil {
			t.Error(err)
		}
		_, err = f.Move(ctx, protocol.FileMove{From: dir + "/none", To: dir + "/x"})
		refusedWith(t, "move nothing", err, protocol.NotFound, protocol.ReasonPathNotFound)
		if _, err := f.Move(ctx, protocol.FileMove{From: dir + "/moved", To: "/dev/shm/" + newID()}); err != nil {
			t.Errorf("move to another file system: %v", err)
		} else if _, err := f.Read(ctx, protocol.FileRead{Path: dir + "/moved/b/file"}); err == nil {
			t.Error("the original is still there after a move to another file system")
		}

		put(t, f, dir+"/tree/one/file", "1")
		put(t, f, dir+"/tree/two", "22")
		_, err = f.Copy(ctx, protocol.FileCopy{From: dir + "/tree", To: dir + "/copy"})
		refusedWith(t, "copy a directory", err, protocol.FailedPrecondition, protocol.ReasonIsDirectory)
		count, err := f.Copy(ctx, protocol.FileCopy{From: dir + "/tree", To: dir + "/copy", Recursive: true})
		if err != nil || count.Entries != 4 || count.Bytes != 3 {
			t.Errorf("copied %+v, %v", count, err)
		}
		if got := get(t, f, protocol.FileRead{Path: dir + "/copy/one/file"}); got != "1" {
			t.Errorf("the copy has %q", got)
		}
		_, err = f.Copy(ctx, protocol.FileCopy{From: dir + "/tree", To: dir + "/copy", Recursive: true})
		refusedWith(t, "copy again", err, protocol.AlreadyExists, protocol.ReasonPathExists)
		if _, err = f.Copy(ctx, protocol.FileCopy{From: dir + "/tree", To: dir + "/copy", Recursive: true,
			Overwrite: true}); err != nil {
			t.Errorf("copy again with overwrite: %v", err)
		}
		_, err = f.Copy(ctx, protocol.FileCopy{From: dir + "/tree", To: dir + "/tree/one/in", Recursive: true})
		refusedWith(t, "copy into itself", err, protocol.InvalidArgument, "")

		_, err = f.Remove(ctx, protocol.FileRemove{Path: dir + "/tree"})
		refusedWith(t, "remove a full directory", err, protocol.FailedPrecondition, protocol.ReasonNotEmpty)
		if count, err = f.Remove(ctx, protocol.FileRemove{Path: dir + "/tree", Recursive: true}); err != nil ||
			count.Entries != 4 {
			t.Errorf("removed %+v, %v", count, err)
		}
		_, err = f.Remove(ctx, protocol.FileRemove{Path: dir + "/tree", Recursive: true})
		refusedWith(t, "remove again", err, protocol.NotFound, protocol.ReasonPathNotFound)
		if _, err = f.Remove(ctx, protocol.FileRemove{Path: dir + "/tree", Missing: true}); err != nil {
			t.Error(err)
		}
		_, err = f.Remove(ctx, protocol.FileRemove{Path: "/", Recursive: true})
		refusedWith(t, "remove the root", err, protocol.InvalidArgument, "")
	})
}

func TestFiles_TreesGoInAndOutAsTar(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		ctx, dir := fileContext(t), own(t, f)
		tree := archive([]file{
			{name: "d/", mode: 0o750, kind: tar.TypeDir},
			{name: "d/file", mode: 0o640, data: []byte("content"), kind: tar.TypeReg},
			{name: "d/link", link: "../outside", mode: 0o777, kind: tar.TypeSymlink},
			{name: "d/hard", link: "d/file", mode: 0o640, kind: tar.TypeLink},
			{name: "no/dir/entry", mode: 0o600, data: []byte("x"), kind: tar.TypeReg},
			{name: "closed/", mode: 0o500, kind: tar.TypeDir},
			{name: "closed/in", mode: 0o400, data: []byte("y"), kind: tar.TypeReg},
		})
		count, err := f.Unpack(ctx, protocol.FileUnpack{Path: dir + "/tree"}, bytes.NewReader(tree))
		if err != nil || count.Entries != 7 || count.Bytes != 9 {
			t.Fatalf("unpacked %+v, %v", count, err)
		}
		var out bytes.Buffer
		count, err = f.Pack(ctx, protocol.FilePack{Path: dir + "/tree", Excludes: []string{"no/**"}}, &out)
		if err != nil || count.Skips != 0 {
			t.Fatalf("packed %+v, %v", count, err)
		}
		var got []string
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, _ := io.ReadAll(r)
			got = append(got, fmt.Sprintf("%c %s %o %q %q", h.Typeflag, h.Name, h.Mode, h.Linkname, data))
		}
		want := []string{`5 ./ 755 "" ""`, `5 closed/ 500 "" ""`, `0 closed/in 400 "" "y"`, `5 d/ 750 "" ""`,
			`0 d/file 640 "" "content"`, `1 d/hard 640 "d/file" ""`, `2 d/link 777 "../outside" ""`, `5 no/ 755 "" ""`}
		want = slices.DeleteFunc(want, func(s string) bool { return strings.Contains(s, " no/") })
		if !slices.Equal(got, want) {
			t.Errorf("packed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		_, err = f.Unpack(ctx, protocol.FileUnpack{Path: dir + "/tree"}, bytes.NewReader(tree))
		refusedWith(t, "unpack again", err, protocol.AlreadyExists, protocol.ReasonPathExists)
		if _, err = f.Unpack(ctx, protocol.FileUnpack{Path: dir + "/file"}, bytes.NewReader(tree[:1600])); err == nil {
			t.Error("a stream that ends early was accepted")
		}
	})
}

func TestFiles_ATarStreamCannotLeaveItsDirectory(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		dir := own(t, f)
		put(t, f, dir+"/keep", "kept")
		for name, tree := range map[string][]file{
			"above":    {{name: "../keep", data: []byte("bad"), kind: tar.TypeReg}},
			"absolute": {{name: dir + "/keep", data: []byte("bad"), kind: tar.TypeReg}},
			"by a link": {{name: "l", link: "..", kind: tar.TypeSymlink},
				{name: "l/keep", data: []byte("bad"), kind: tar.TypeReg}},
			"by a far link": {{name: "l", link: dir, kind: tar.TypeSymlink},
				{name: "l/keep", data: []byte("bad"), kind: tar.TypeReg}},
			"hard link": {{name: "l", link: "../keep", kind: tar.TypeLink}},
			"a device":  {{name: "dev", kind: tar.TypeChar}},
			"a fifo":    {{name: "fifo", kind: tar.TypeFifo}},
			"no name":   {{name: "..", kind: tar.TypeDir}},
		} {
			_, err := f.Unpack(fileContext(t), protocol.FileUnpack{Path: dir + "/" + newID(), Overwrite: true},
				bytes.NewReader(archive(tree)))
			refusedWith(t, name, err, protocol.InvalidArgument, protocol.ReasonCopyFailed)
		}
		if got := get(t, f, protocol.FileRead{Path: dir + "/keep"}); got != "kept" {
			t.Errorf("a tar stream changed a file outside of its directory to %q", got)
		}
	})
}

func TestFiles_ServersInTheSandboxAreDialled(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.start(control.Start{Argv: []string{"sh", "-c", "busybox nc -l -p 7000 -e cat"}})
	var got []byte
	s.poll("the server", func() bool {
		conn, err := s.link.Dial(fileContext(t), "tcp", "localhost:7000")
		if err != nil {
			refusedWith(t, "nobody listens", err, protocol.Unavailable, protocol.ReasonConnectFailed)
			return false
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		got = make([]byte, 5)
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = io.ReadFull(conn, got)
		return err == nil
	})
	if string(got) != "hello" {
		t.Errorf("the server answered %q", got)
	}
	_, err := s.link.Dial(fileContext(t), "unix", "/no/such/socket")
	refusedWith(t, "no socket", err, protocol.NotFound, protocol.ReasonPathNotFound)
	_, err = s.link.Dial(fileContext(t), "tcp", "example.com:80")
	refusedWith(t, "a name", err, protocol.InvalidArgument, "")
	_, err = s.link.Dial(fileContext(t), "udp", "127.0.0.1:80")
	refusedWith(t, "another network", err, protocol.InvalidArgument, "")
}
