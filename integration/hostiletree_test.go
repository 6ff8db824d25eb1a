package integration

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestATreeThatLeadsOutsideIsRefusedWithThePath(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Coordinators: 0})
	ctx := f.Context(time.Minute)
	for what, make := range map[string]func(path string) error{
		"an absolute link":                          func(p string) error { return os.Symlink("/etc/passwd", p) },
		"a link out of the tree":                    func(p string) error { return os.Symlink("../../x", p) },
		"a link that leaves through a subdirectory": func(p string) error { return os.Symlink("../sub/../../x", p) },
		"a pipe": func(p string) error { return syscall.Mkfifo(p, 0o600) },
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
	wantError(t, "a missing tree", err, protocol.NotFound, "", "")
	_, err = f.Client.Upload(ctx, t.TempDir(), "relative")
	wantError(t, "a relative target", err, protocol.InvalidArgument, "", "target")
}

// tarOf returns a tar stream and its digest.
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
		if err := f.Conn.PutBlob(ctx, "default", digest, bytes.NewReader(data)); err != nil {
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
		"an entry with ..": {hostile(tar.Header{Name: up + outside, Typeflag: tar.TypeReg}),
			protocol.InvalidArgument},
		"an absolute entry": {hostile(tar.Header{Name: outside, Typeflag: tar.TypeReg}),
			protocol.InvalidArgument},
		"a link with ..": {hostile(tar.Header{Name: "l", Linkname: up + "etc", Typeflag: tar.TypeSymlink}),
			protocol.InvalidArgument},
		"a link to the root": {hostile(tar.Header{Name: "l", Linkname: "/", Typeflag: tar.TypeSymlink},
			tar.Header{Name: "l" + outside, Typeflag: tar.TypeReg}), protocol.InvalidArgument},
		"a hard link": {hostile(tar.Header{Name: "h", Linkname: "/etc/shadow", Typeflag: tar.TypeLink}),
			protocol.InvalidArgument},
		"a hard link to a missing file": {hostile(tar.Header{Name: "h", Linkname: "nothing", Typeflag: tar.TypeLink}),
			protocol.FailedPrecondition},
		"a device": {hostile(tar.Header{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}),
			protocol.InvalidArgument},
		"not a tar stream": {upload([]byte("this is no tar stream"), sha("this is no tar stream")),
			protocol.InvalidArgument},
		"a wrong digest":        {upload(append(fine, 0), sha("something else")), protocol.InvalidArgument},
		"a tree never uploaded": {sha("never"), protocol.FailedPrecondition},
		"a truncated tree":      {upload(fine[:515], sha(string(fine[:515]))), protocol.InvalidArgument},
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
	twoNames := hostile(tar.Header{Name: "f", Typeflag: tar.TypeReg},
		tar.Header{Name: "d/g", Linkname: "f", Typeflag: tar.TypeLink})
	spec.Copies = []protocol.Copy{{Digest: fineDigest, Target: "/fine"}, {Digest: twoNames, Target: "/two"}}
	s, err := f.Client.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s,
		script("cat /fine/fine; stat -c ' %h' /two/f; [ /two/f -ef /two/d/g ] && echo one")); got != "hostile 2\none\n" {
		t.Errorf("got %q", got)
	}
}

// Another process keeps replacing directories and files by links and pipes during the upload of the tree.
func TestATreeSwappedDuringUploadNeverLeadsOutside(t *testing.T) {
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
	for name, to := range map[string]string{"a": outside, "b": filepath.Join(outside, "d"),
		"c": filepath.Join(outside, "d", "f")} {
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
			for range 2 { // exchange the two names, and then exchange them back
				if unix.Renameat2(unix.AT_FDCWD, filepath.Join(tree, name), unix.AT_FDCWD,
					filepath.Join(exchange, name), unix.RENAME_EXCHANGE) == nil {
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
			if code := protocol.CodeOf(err); code != protocol.InvalidArgument && code != protocol.FailedPrecondition &&
				code != protocol.NotFound && code != protocol.Internal {
				t.Errorf("refused with %v", err)
			}
			continue
		}
		uploaded++
		blob, err := f.Conn.Blob(ctx, "default", copied.Digest)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(blob)
		blob.Close()
		if err != nil || bytes.Contains(data, []byte("SECRET")) {
			t.Fatalf("the upload contains data from outside the tree (%v)", err)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d uploads, %d refused uploads, %d exchanges", uploaded, refused, exchanges.Load())
	if uploaded == 0 || exchanges.Load() < 100 {
		t.Errorf("%d trees were uploaded during %d exchanges: the test proves nothing", uploaded, exchanges.Load())
	}
}
