package sdk

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// extractTo extracts a tar stream of these headers below a directory. A file's content is "new".
func extractTo(t *testing.T, dir string, keepLinks bool, headers ...tar.Header) (*extraction, error) {
	t.Helper()
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = 3
		}
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = w.Write([]byte("new"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := &extraction{ctx: t.Context(), root: root, keepLinks: keepLinks}
	return x, x.run(&stream)
}

// outside makes a directory with a target below it and a file beside the target, which must stay as it is.
func outside(t *testing.T) (target, secret string) {
	t.Helper()
	dir := t.TempDir()
	target, secret = filepath.Join(dir, "target"), filepath.Join(dir, "secret")
	if err := errors.Join(os.Mkdir(target, 0o755), os.WriteFile(secret, []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		content, err := os.ReadFile(secret)
		if err != nil || string(content) != "old" {
			t.Errorf("the file beside the target has %q, %v", content, err)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
			t.Errorf("beside the target are %v, %v", all, err)
		}
	})
	return target, secret
}

func TestNothingIsExtractedOutsideOfTheTarget(t *testing.T) {
	reg, dir, link, hard := byte(tar.TypeReg), byte(tar.TypeDir), byte(tar.TypeSymlink), byte(tar.TypeLink)
	for name, c := range map[string]struct {
		headers []tar.Header
		refused bool
	}{
		"a path with ..":        {[]tar.Header{{Name: "../secret", Typeflag: reg}}, true},
		"a hidden ..":           {[]tar.Header{{Name: "a/../../secret", Typeflag: reg}}, true},
		"an absolute path":      {[]tar.Header{{Name: "/etc/secret", Typeflag: reg}}, true},
		"a directory with ..":   {[]tar.Header{{Name: "../new/", Typeflag: dir}}, true},
		"the target itself":     {[]tar.Header{{Name: ".", Typeflag: reg}}, true},
		"a link for the target": {[]tar.Header{{Name: "./", Typeflag: link, Linkname: "x"}}, true},
		"a link out, left out": {[]tar.Header{{Name: "l", Typeflag: link, Linkname: ".."},
			{Name: "l/secret", Typeflag: reg}}, false}, // l becomes a directory
		"a hard link out":     {[]tar.Header{{Name: "h", Typeflag: hard, Linkname: "../secret"}}, true},
		"an absolute link":    {[]tar.Header{{Name: "h", Typeflag: hard, Linkname: "/etc/passwd"}}, true},
		"a directory as file": {[]tar.Header{{Name: "d/", Typeflag: dir}, {Name: "d", Typeflag: reg}}, true},
		"a name too long":     {[]tar.Header{{Name: string(bytes.Repeat([]byte("x"), 300)), Typeflag: reg}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			target, _ := outside(t)
			_, err := extractTo(t, target, false, c.headers...)
			if (err != nil) != c.refused {
				t.Errorf("got %v", err)
			}
			var typed *protocol.Error
			if err != nil && !errors.As(err, &typed) {
				t.Errorf("the error has no code: %v", err)
			}
		})
	}
}

// Kept links are made, but no entry is written through them.
func TestNoEntryIsWrittenThroughAKeptLink(t *testing.T) {
	target, secret := outside(t)
	_, err := extractTo(t, target, true,
		tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."},
		tar.Header{Name: "up/secret", Typeflag: tar.TypeReg})
	if e := protocol.AsError(err); e.Code != protocol.PermissionDenied || e.Reason != protocol.ReasonPathDenied {
		t.Errorf("through a directory: %v", err)
	}
	if _, err = extractTo(t, target, true,
		tar.Header{Name: "file", Typeflag: tar.TypeSymlink, Linkname: secret},
		tar.Header{Name: "file", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(target, "file")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the file did not replace the link: %v, %v", info, err)
	}
}

// A link that was in the target before leads nowhere else either.
func TestNoEntryIsWrittenThroughAnOldLink(t *testing.T) {
	target, secret := outside(t)
	if err := errors.Join(os.Symlink("..", filepath.Join(target, "up")),
		os.Symlink(secret, filepath.Join(target, "file"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"up/secret", "up/new/"} {
		h := tar.Header{Name: name, Typeflag: tar.TypeReg}
		if name == "up/new/" {
			h.Typeflag = tar.TypeDir
		}
		_, err := extractTo(t, target, false, h)
		if e := protocol.AsError(err); err == nil || e.Code != protocol.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := extractTo(t, target, false, tar.Header{Name: "file", Typeflag: tar.TypeReg}); err != nil {
		t.Error(err)
	}
}

func TestAnExtractionKeepsModesButNoPrivileges(t *testing.T) {
	target, _ := outside(t)
	at := time.Unix(1_000_000_000, 0)
	if err := syscall.Mkfifo(filepath.Join(target, "s"), 0o600); err != nil {
		t.Fatal(err)
	}
	x, err := extractTo(t, target, false,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o2555, ModTime: at},
		tar.Header{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o640, ModTime: at, Uid: 4242, Gid: 4242},
		tar.Header{Name: "s", Typeflag: tar.TypeReg, Mode: 0o6755}, // replaces a pipe, and does not write into it
		tar.Header{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "f"},
		tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "d/f"},
		tar.Header{Name: "dev", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 5},
		tar.Header{Name: "fifo", Typeflag: tar.TypeFifo},
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{
		"d": fs.ModeDir | 0o555, "d/f": 0o640, "s": 0o755, "d/l": fs.ModeSymlink | 0o777, "h": 0o640,
	} {
		info, err := os.Lstat(filepath.Join(target, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v; want %v", name, info, err, want)
			continue
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Getuid() {
			t.Errorf("%s belongs to %d", name, uid)
		}
	}
	for _, name := range []string{"d", "d/f"} {
		if info, err := os.Stat(filepath.Join(target, name)); err != nil || !info.ModTime().Equal(at) {
			t.Errorf("the time of %s: %v, %v", name, info, err)
		}
	}
	var skipped []string
	for _, s := range x.count.Skipped {
		skipped = append(skipped, s.Path)
	}
	if !slices.Equal(skipped, []string{"out", "dev", "fifo"}) || x.count.Skips != 3 || x.count.Entries != 6 {
		t.Errorf("left out %q: %+v", skipped, x.count)
	}
}

func TestAFileThatIsCutOffLeavesTheOldOne(t *testing.T) {
	target, _ := outside(t)
	if err := os.WriteFile(filepath.Join(target, "f"), []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	if err := w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 1000, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := &extraction{ctx: t.Context(), root: root}
	if err := x.run(&stream); protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("got %v", err)
	}
	all, err := os.ReadDir(target)
	content, readErr := os.ReadFile(filepath.Join(target, "f"))
	if err != nil || len(all) != 1 || readErr != nil || string(content) != "before" {
		t.Errorf("left are %v with %q: %v, %v", all, content, err, readErr)
	}
}

// The name of a link counts its levels from the target. In a directory that another link leads to, it has fewer levels.
func TestALinkBelowALinkDoesNotLeadOut(t *testing.T) {
	target, _ := outside(t)
	x, err := extractTo(t, target, false,
		tar.Header{Name: "s/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "a/b/d", Typeflag: tar.TypeSymlink, Linkname: "../../s"},
		tar.Header{Name: "a/b/d/out", Typeflag: tar.TypeSymlink, Linkname: "../../../secret"},
		tar.Header{Name: "a/b/d/hidden", Typeflag: tar.TypeSymlink, Linkname: "./../../../secret"},
		tar.Header{Name: "a/b/d/in", Typeflag: tar.TypeSymlink, Linkname: "file"},
		tar.Header{Name: "a/b/up", Typeflag: tar.TypeSymlink, Linkname: "../../s/file"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"s/out", "s/hidden"} {
		if to, err := os.Readlink(filepath.Join(target, name)); err == nil {
			t.Errorf("%s leads to %s", name, to)
		}
	}
	for _, name := range []string{"s/in", "a/b/up", "a/b/d"} {
		if _, err := os.Readlink(filepath.Join(target, name)); err != nil {
			t.Error(err)
		}
	}
	if x.count.Skips != 2 {
		t.Errorf("%d entries were left out, want 2", x.count.Skips)
	}
}

func TestAFileReplacesNoDevice(t *testing.T) {
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink("/dev/null", link)); err != nil {
		t.Fatal(err)
	}
	if err := mayBecomeFile(filepath.Join(dir, "new")); err != nil {
		t.Error(err)
	}
	for target, want := range map[string]string{fifo: protocol.ReasonNotRegular, link: protocol.ReasonNotRegular,
		"/dev/null": protocol.ReasonNotRegular, dir: protocol.ReasonIsDirectory} {
		if err := mayBecomeFile(target); err == nil || protocol.AsError(err).Reason != want {
			t.Errorf("%s: got %v, want reason %s", target, err, want)
		}
	}
}
