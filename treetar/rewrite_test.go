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

// into is a target that does not exist yet.
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

func TestAPlainTreeIsRewrittenBelowItsTarget(t *testing.T) {
	at := time.Unix(1_000_000_000, 0)
	root := tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o750, Uid: 7, Gid: 8, ModTime: at}
	rest := []tar.Header{
		{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}},
		{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o750},
		{Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o4755, Size: 3, Uid: 1000, Gid: 1001, Uname: "root", ModTime: at},
		{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "../d/f"},
	}
	for name, c := range map[string]struct {
		t    Target
		in   []tar.Header
		want string
	}{
		"a new target":                   {into("work/src"), append([]tar.Header{root}, rest...), "work/ 755 0:0 0, work/src/ 750 7:8 0, work/src/d/ 750 0:0 0, work/src/d/f 4755 1000:1001 3, work/src/d/l 0 0:0 0"},
		"without an entry for its root":  {into("work"), rest[1:], "work/ 755 0:0 0, work/d/ 750 0:0 0, work/d/f 4755 1000:1001 3, work/d/l 0 0:0 0"},
		"an existing target":             {Target{Root: "tmp", UID: -1, MaxEntries: 9, MaxBytes: 9}, append([]tar.Header{root}, rest...), "tmp/d/ 750 0:0 0, tmp/d/f 4755 1000:1001 3, tmp/d/l 0 0:0 0"},
		"for another owner":              {Target{Root: "a", Missing: []string{"a"}, UID: 5, GID: 6, MaxEntries: 9, MaxBytes: 9}, append([]tar.Header{root}, rest[1:3]...), "a/ 750 5:6 0, a/d/ 750 5:6 0, a/d/f 4755 5:6 3"},
		"an empty stream":                {into("a/b"), nil, "a/ 755 0:0 0, a/b/ 755 0:0 0"},
		"an empty directory":             {into("a"), []tar.Header{root}, "a/ 750 7:8 0"},
		"a file":                         {into("etc/x/conf"), []tar.Header{{Typeflag: tar.TypeReg, Name: ".", Size: 2, Mode: 0o600}}, "etc/ 755 0:0 0, etc/x/ 755 0:0 0, etc/x/conf 600 0:0 2"},
		"a hard link":                    {into("a/b"), []tar.Header{{Typeflag: tar.TypeReg, Name: "f", Size: 1}, {Typeflag: tar.TypeLink, Name: "d/g", Linkname: "./f"}}, "a/ 755 0:0 0, a/b/ 755 0:0 0, a/b/f 0 0:0 1, a/b/d/g 0 0:0 0 = a/b/f"},
		"from git archive":               {Target{Root: "work/src", Missing: []string{"work", "work/src"}, UID: 5, GID: 6, MaxEntries: 9, MaxBytes: 9}, []tar.Header{rest[0], root, rest[1]}, "work/ 755 5:6 0, work/src/ 750 5:6 0, work/src/d/ 750 5:6 0"},
		"a file after a global header":   {into("conf"), []tar.Header{rest[0], {Typeflag: tar.TypeReg, Name: ".", Size: 2, Mode: 0o600}}, "conf 600 0:0 2"},
		"only a global header":           {into("a"), rest[:1], "a/ 755 0:0 0"},
		"a link replaced by a directory": {into("a"), []tar.Header{rest[3], {Typeflag: tar.TypeDir, Name: "d/l/"}, {Typeflag: tar.TypeReg, Name: "d/l/f"}}, "a/ 755 0:0 0, a/d/l 0 0:0 0, a/d/l/ 0 0:0 0, a/d/l/f 0 0:0 0"},
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
		tar.Header{Typeflag: tar.TypeDir, Name: "./"}, tar.Header{Typeflag: tar.TypeDir, Name: "a/"}, tar.Header{Typeflag: tar.TypeReg, Name: "a/file", Size: 3},
		tar.Header{Typeflag: tar.TypeReg, Name: "a/file.too"}, tar.Header{Typeflag: tar.TypeDir, Name: "a/dir/"}, tar.Header{Typeflag: tar.TypeReg, Name: "a/dir/deep/f"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "a"}, tar.Header{Typeflag: tar.TypeReg, Name: "end", Size: 1})
	var out bytes.Buffer
	target := into("work")
	target.Mounted = []string{"/work/a/file", "/work/a/dir", "/work/link", "/wor", "/elsewhere"}
	if err := Rewrite(bytes.NewReader(in), &out, target); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(entries(t, out.Bytes()), ", "), "work/ 0 0:0 0, work/a/ 0 0:0 0, work/a/file.too 0 0:0 0, work/end 0 0:0 1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Hidden entries are checked nevertheless.
	for _, bad := range []tar.Header{{Typeflag: tar.TypeSymlink, Name: "a/l", Linkname: "../../x"}, {Typeflag: tar.TypeChar, Name: "a/c"}} {
		target := into("work")
		target.Mounted = []string{"/work/a"}
		if err := Rewrite(bytes.NewReader(tarOf(t, bad)), io.Discard, target); protocol.AsError(err) == nil || protocol.AsError(err).Reason != protocol.ReasonCopyFailed {
			t.Errorf("%s: %v", bad.Name, err)
		}
	}
}

func TestHostileTreesAreRefusedByTheEntry(t *testing.T) {
	dot := tar.Header{Typeflag: tar.TypeDir, Name: "./"}
	many := make([]tar.Header, 1001)
	for i := range many {
		many[i] = tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint(i)}
	}
	for name, bad := range map[string][]tar.Header{
		"absolute":                       {{Typeflag: tar.TypeReg, Name: "/etc/passwd"}},
		"upwards":                        {{Typeflag: tar.TypeReg, Name: "../x"}},
		"upwards from inside":            {{Typeflag: tar.TypeReg, Name: "a/../../x"}},
		"a directory upwards":            {{Typeflag: tar.TypeDir, Name: "../"}},
		"link out":                       {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../../etc"}},
		"link absolute":                  {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc"}},
		"link down and up again":         {{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "x/../../y"}},
		"link in place of the root":      {{Typeflag: tar.TypeSymlink, Name: ".", Linkname: "x"}},
		"entry through a link":           {{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: ".."}, {Typeflag: tar.TypeReg, Name: "d/l/f"}},
		"link through a link":            {{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: ".."}, {Typeflag: tar.TypeSymlink, Name: "d/l/m", Linkname: "../x"}},
		"hard link absolute":             {{Typeflag: tar.TypeLink, Name: "l", Linkname: "/etc/shadow"}},
		"hard link out":                  {{Typeflag: tar.TypeLink, Name: "d/l", Linkname: "d/../../etc/shadow"}},
		"hard link to the root":          {{Typeflag: tar.TypeLink, Name: "l", Linkname: "./"}},
		"hard link in place of the root": {{Typeflag: tar.TypeReg, Name: "f"}, {Typeflag: tar.TypeLink, Name: ".", Linkname: "f"}},
		"hard link to a link":            {{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: ".."}, {Typeflag: tar.TypeLink, Name: "m", Linkname: "d/./l"}},
		"hard link through a link":       {{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: ".."}, {Typeflag: tar.TypeLink, Name: "m", Linkname: "d/l/f"}},
		"device":                         {{Typeflag: tar.TypeChar, Name: "c"}},
		"block device":                   {{Typeflag: tar.TypeBlock, Name: "b"}},
		"fifo":                           {{Typeflag: tar.TypeFifo, Name: "p"}},
		"too many entries":               many,
		"too many bytes":                 {{Typeflag: tar.TypeReg, Name: "a", Size: 1 << 19}, {Typeflag: tar.TypeReg, Name: "b", Size: 1<<19 + 1}},
		"too deep":                       {{Typeflag: tar.TypeReg, Name: strings.Repeat("d/", protocol.MaxTreeDepth) + "f"}},
		"too long a path":                {{Typeflag: tar.TypeReg, Name: strings.Repeat("dddddddddddddddddddddddddddddddd/", 130) + "f"}},
		"too long a name":                {{Typeflag: tar.TypeReg, Name: strings.Repeat("n", 256)}},
		"an invalid owner":               {{Typeflag: tar.TypeReg, Name: "f", Uid: 1<<32 - 1}},
		"a file and another entry":       {{Typeflag: tar.TypeReg, Name: "."}, {Typeflag: tar.TypeReg, Name: "x"}},
		"a file after its root":          {dot, {Typeflag: tar.TypeReg, Name: "."}},
		"a directory after a file":       {{Typeflag: tar.TypeReg, Name: "."}, dot},
	} {
		err := Rewrite(bytes.NewReader(tarOf(t, bad...)), io.Discard, into("t"))
		if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonCopyFailed || e.Code != protocol.InvalidArgument {
			t.Errorf("%s: %v, want copy_failed", name, err)
		}
	}
}

// A sparse file can claim any size in a few bytes.
func TestASparseFileIsRefused(t *testing.T) {
	huge := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 512, Format: tar.FormatPAX, PAXRecords: map[string]string{"BOX.sparse.major": "1",
		"BOX.sparse.minor": "0", "BOX.sparse.name": "f", "BOX.sparse.realsize": "1000000000"}})
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
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonCopyFailed || !strings.Contains(e.Message, "sparse") {
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
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint(i), Size: size / files}); err != nil {
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
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Size: 2}))
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "b"}))
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeDir, Name: "./"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "d/l/x"}))
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "a"}, tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}))
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeReg, Name: ".", Uid: 1 << 20, PAXRecords: map[string]string{"BOX.a": "b"}}))
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
				if leads := path.Join(path.Dir(path.Clean(h.Name)), h.Linkname); path.IsAbs(h.Linkname) || leads != "in/here" && !strings.HasPrefix(leads, "in/here/") {
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
