package treetar

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// into returns a target of which no directory exists yet.
func into(root string) Target {
	t := Target{Root: root, UID: -1, GID: -1, MaxEntries: 1000, MaxBytes: 1 << 20}
	for dir := root; dir != "."; dir = path.Dir(dir) {
		t.Missing = append([]string{dir}, t.Missing...)
	}
	return t
}

func entries(t *testing.T, data []byte) (list []string) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		entry := fmt.Sprintf("%s %o %d:%d %d", h.Name, h.Mode, h.Uid, h.Gid, h.Size)
		if h.Typeflag == tar.TypeLink {
			entry += " = " + h.Linkname
		}
		list = append(list, entry)
	}
}

func directory(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}
}

func file(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size}
}

func symlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

func hardLink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

func TestAPlainTreeIsRewrittenBelowItsTarget(t *testing.T) {
	at := time.Unix(1_000_000_000, 0)
	global := tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}
	root := tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o750, Uid: 7, Gid: 8, ModTime: at}
	d := directory("d/", 0o750)
	f := tar.Header{
		Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o4755, Size: 3, Uid: 1000, Gid: 1001, Uname: "root", ModTime: at,
	}
	l := symlink("d/l", "../d/f")
	conf := tar.Header{Typeflag: tar.TypeReg, Name: ".", Size: 2, Mode: 0o600}
	type headers = []tar.Header
	existing := Target{Root: "tmp", UID: -1, MaxEntries: 9, MaxBytes: 9}
	owned := func(root string, missing ...string) Target {
		return Target{Root: root, Missing: missing, UID: 5, GID: 6, MaxEntries: 9, MaxBytes: 9}
	}
	for name, c := range map[string]struct {
		t    Target
		in   headers
		want string
	}{
		"a new target": {into("work/src"), headers{root, global, d, f, l}, "work/ 755 0:0 0, work/src/ 750 7:8 0, " +
			"work/src/d/ 750 0:0 0, work/src/d/f 4755 1000:1001 3, work/src/d/l 0 0:0 0"},
		"without an entry for its root": {into("work"), headers{d, f, l},
			"work/ 755 0:0 0, work/d/ 750 0:0 0, work/d/f 4755 1000:1001 3, work/d/l 0 0:0 0"},
		"an existing target": {existing, headers{root, global, d, f, l},
			"tmp/d/ 750 0:0 0, tmp/d/f 4755 1000:1001 3, tmp/d/l 0 0:0 0"},
		"for another owner":  {owned("a", "a"), headers{root, d, f}, "a/ 750 5:6 0, a/d/ 750 5:6 0, a/d/f 4755 5:6 3"},
		"an empty stream":    {into("a/b"), nil, "a/ 755 0:0 0, a/b/ 755 0:0 0"},
		"an empty directory": {into("a"), headers{root}, "a/ 750 7:8 0"},
		"a file":             {into("etc/x/conf"), headers{conf}, "etc/ 755 0:0 0, etc/x/ 755 0:0 0, etc/x/conf 600 0:0 2"},
		"a hard link": {into("a/b"), headers{file("f", 1), hardLink("d/g", "./f")},
			"a/ 755 0:0 0, a/b/ 755 0:0 0, a/b/f 0 0:0 1, a/b/d/g 0 0:0 0 = a/b/f"},
		"from git archive": {owned("work/src", "work", "work/src"), headers{global, root, d},
			"work/ 755 5:6 0, work/src/ 750 5:6 0, work/src/d/ 750 5:6 0"},
		"a file after a global header": {into("conf"), headers{global, conf}, "conf 600 0:0 2"},
		"only a global header":         {into("a"), headers{global}, "a/ 755 0:0 0"},
		"a link replaced by a directory": {into("a"), headers{l, directory("d/l/", 0), file("d/l/f", 0)},
			"a/ 755 0:0 0, a/d/l 0 0:0 0, a/d/l/ 0 0:0 0, a/d/l/f 0 0:0 0"},
	} {
		var out bytes.Buffer
		if err := Rewrite(bytes.NewReader(tarOf(t, c.in...)), &out, c.t); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := strings.Join(entries(t, out.Bytes()), ", "); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}

func TestEntriesHiddenByAMountAreLeftOut(t *testing.T) {
	in := tarOf(t,
		directory("./", 0), directory("a/", 0), file("a/file", 3), file("a/file.too", 0), directory("a/dir/", 0),
		file("a/dir/deep/f", 0), symlink("link", "a"), file("end", 1))
	var out bytes.Buffer
	target := into("work")
	target.Mounted = []string{"/work/a/file", "/work/a/dir", "/work/link", "/wor", "/elsewhere"}
	if err := Rewrite(bytes.NewReader(in), &out, target); err != nil {
		t.Fatal(err)
	}
	want := "work/ 0 0:0 0, work/a/ 0 0:0 0, work/a/file.too 0 0:0 0, work/end 0 0:0 1"
	if got := strings.Join(entries(t, out.Bytes()), ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Entries that a mount hides are checked, too.
	for _, bad := range []tar.Header{symlink("a/l", "../../x"), {Typeflag: tar.TypeChar, Name: "a/c"}} {
		target := into("work")
		target.Mounted = []string{"/work/a"}
		if err := Rewrite(bytes.NewReader(tarOf(t, bad)), io.Discard, target); !refused(err) {
			t.Errorf("%s: %v", bad.Name, err)
		}
	}
}

// refused reports whether err is the refusal of a tree, and no other error.
func refused(err error) bool {
	e := protocol.AsError(err)
	return e != nil && e.Reason == protocol.ReasonCopyFailed && e.Code == protocol.InvalidArgument
}

func TestHostileTreesAreRefusedByTheEntry(t *testing.T) {
	dot := directory("./", 0)
	many := make([]tar.Header, 1001)
	for i := range many {
		many[i] = directory(fmt.Sprint(i), 0)
	}
	for name, bad := range map[string][]tar.Header{
		"absolute":                       {file("/etc/passwd", 0)},
		"upwards":                        {file("../x", 0)},
		"upwards from inside":            {file("a/../../x", 0)},
		"a directory upwards":            {directory("../", 0)},
		"link out":                       {symlink("l", "../../etc")},
		"link absolute":                  {symlink("l", "/etc")},
		"link down and up again":         {symlink("d/l", "x/../../y")},
		"link in place of the root":      {symlink(".", "x")},
		"entry through a link":           {symlink("d/l", ".."), file("d/l/f", 0)},
		"link through a link":            {symlink("d/l", ".."), symlink("d/l/m", "../x")},
		"hard link absolute":             {hardLink("l", "/etc/shadow")},
		"hard link out":                  {hardLink("d/l", "d/../../etc/shadow")},
		"hard link to the root":          {hardLink("l", "./")},
		"hard link in place of the root": {file("f", 0), hardLink(".", "f")},
		"hard link to a link":            {symlink("d/l", ".."), hardLink("m", "d/./l")},
		"hard link through a link":       {symlink("d/l", ".."), hardLink("m", "d/l/f")},
		"device":                         {{Typeflag: tar.TypeChar, Name: "c"}},
		"block device":                   {{Typeflag: tar.TypeBlock, Name: "b"}},
		"fifo":                           {{Typeflag: tar.TypeFifo, Name: "p"}},
		"too many entries":               many,
		"too many bytes":                 {file("a", 1<<19), file("b", 1<<19+1)},
		"too deep":                       {file(strings.Repeat("d/", protocol.MaxTreeDepth)+"f", 0)},
		"too long a path":                {file(strings.Repeat("dddddddddddddddddddddddddddddddd/", 130)+"f", 0)},
		"too long a name":                {file(strings.Repeat("n", 256), 0)},
		"an invalid owner":               {{Typeflag: tar.TypeReg, Name: "f", Uid: 1<<32 - 1}},
		"a file and another entry":       {file(".", 0), file("x", 0)},
		"a file after its root":          {dot, file(".", 0)},
		"a directory after a file":       {file(".", 0), dot},
	} {
		if err := Rewrite(bytes.NewReader(tarOf(t, bad...)), io.Discard, into("t")); !refused(err) {
			t.Errorf("%s: %v, want copy_failed", name, err)
		}
	}
}

// A sparse file can claim any size in a few bytes.
func TestASparseFileIsRefused(t *testing.T) {
	huge := tarOf(t, tar.Header{
		Typeflag: tar.TypeReg, Name: "f", Size: 512, Format: tar.FormatPAX, PAXRecords: map[string]string{
			"BOX.sparse.major": "1", "BOX.sparse.minor": "0", "BOX.sparse.name": "f", "BOX.sparse.realsize": "1000000000",
		},
	})
	huge = bytes.ReplaceAll(huge, []byte("BOX.sparse"), []byte("GNU.sparse"))
	for n := 0; n+512 <= len(huge); n += 512 { // the first block of the file is the map of its parts: zero parts
		if block := huge[n : n+512]; bytes.Equal(block, make([]byte, 512)) {
			copy(block, "0\n")
			break
		}
	}
	var out counting
	target := into("t")
	target.MaxBytes = 1 << 40
	err := Rewrite(bytes.NewReader(huge), &out, target)
	if !refused(err) || !strings.Contains(err.Error(), "sparse") {
		t.Errorf("%v, want a refusal of the sparse file", err)
	}
	if out > 1<<20 {
		t.Errorf("%d bytes were written", out)
	}
}

type counting int64

func (c *counting) Write(p []byte) (int, error) { *c += counting(len(p)); return len(p), nil }

// Memory does not grow with the tree.
func TestATreeOfAGigabyteIsRewrittenInBoundedMemory(t *testing.T) {
	const size, files = 1 << 30, 64
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		zeros := make([]byte, 1<<20)
		for i := range files {
			h := file(fmt.Sprint(i), size/files)
			if err := out.WriteHeader(&h); err != nil {
				w.CloseWithError(err)
				return
			}
			for range size / files / len(zeros) {
				_, _ = out.Write(zeros) // Close returns the error
			}
		}
		w.CloseWithError(out.Close())
	}()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	peak := uint64(0)
	var out counting
	target := into("t")
	target.MaxBytes = size
	err := Rewrite(r, writerFunc(func(p []byte) (int, error) {
		if int64(out)>>26 != (int64(out)+int64(len(p)))>>26 {
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapAlloc)
		}
		return out.Write(p)
	}), target)
	if err != nil || out < size {
		t.Fatalf("%d bytes, %v", out, err)
	}
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	} else {
		t.Logf("the heap grew by %d KiB", grown>>10)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func FuzzRewriteTree(f *testing.F) {
	f.Add(tarOf(f, file("a/b", 2)))
	f.Add(tarOf(f, symlink("a", "b")))
	f.Add(tarOf(f, directory("./", 0), symlink("d/l", ".."), file("d/l/x", 0)))
	f.Add(tarOf(f, file("a", 0), hardLink("b", "a")))
	records := map[string]string{"BOX.a": "b"}
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeReg, Name: ".", Uid: 1 << 20, PAXRecords: records}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		if Rewrite(bytes.NewReader(data), &out, into("in/here")) != nil {
			return
		}
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatalf("the output is not a tar stream: %v", err)
				}
				return
			}
			if clean := path.Clean(h.Name); clean != "in" && clean != "in/here" && !strings.HasPrefix(clean, "in/here/") {
				t.Fatalf("entry %q is outside the target", h.Name)
			}
			switch h.Typeflag {
			case tar.TypeSymlink, tar.TypeDir, tar.TypeReg:
			case tar.TypeLink:
				if !strings.HasPrefix(path.Clean(h.Linkname), "in/here/") {
					t.Fatalf("hard link %q leads out, to %q", h.Name, h.Linkname)
				}
			default:
				t.Fatalf("entry %q is of type %q", h.Name, h.Typeflag)
			}
			if h.Typeflag == tar.TypeSymlink {
				leads := path.Join(path.Dir(path.Clean(h.Name)), h.Linkname)
				if path.IsAbs(h.Linkname) || leads != "in/here" && !strings.HasPrefix(leads, "in/here/") {
					t.Fatalf("link %q leads out, to %q", h.Name, h.Linkname)
				}
			}
		}
	})
}

func tarOf(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}
