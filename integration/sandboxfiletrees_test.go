package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (b boxed) changeTrees(ctx context.Context, t *testing.T) {
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	check(b.Mkdir(ctx, "/tmp/tr/a/b", sdk.WithParents(), sdk.WithMode(0o750)))
	_, err := b.Mkdir(ctx, "/tmp/tr/a/b")
	wantReason(t, err, protocol.AlreadyExists, protocol.ReasonPathExists)
	b.put(ctx, t, "/tmp/tr/a/b/f", "content")
	check(b.Move(ctx, "/tmp/tr/a/b/f", "/tmp/tr/g"))
	check(b.Copy(ctx, "/tmp/tr/g", "/tmp/tr/a/b/f"))
	_, err = b.Copy(ctx, "/tmp/tr/a", "/tmp/tr/copy")
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonIsDirectory)
	check(b.Copy(ctx, "/tmp/tr/a", "/tmp/tr/copy", sdk.WithRecursive()))
	_, err = b.Copy(ctx, "/tmp/tr/g", "/tmp/tr/copy/b/f")
	wantReason(t, err, protocol.AlreadyExists, protocol.ReasonPathExists)
	check(b.Copy(ctx, "/tmp/tr/g", "/tmp/tr/copy/b/f", sdk.WithOverwrite()))
	b.want(ctx, t, "/tmp/tr/copy/b/f", "content")
	_, err = b.Remove(ctx, "/tmp/tr/a")
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonNotEmpty)
	count, err := b.Remove(ctx, "/tmp/tr/a", sdk.WithRecursive())
	if err != nil || count.Entries != 3 {
		t.Errorf("remove: %+v, %v", count, err)
	}
	_, err = b.Remove(ctx, "/tmp/tr/a")
	wantReason(t, err, protocol.NotFound, protocol.ReasonPathNotFound)
	check(b.Remove(ctx, "/tmp/tr/a", sdk.WithMissing()))
	if got := b.sh(ctx, t, "cd /tmp/tr && find . -type f | sort; stat -c %a copy/b"); got != "./copy/b/f\n./g\n750\n" {
		t.Errorf("left are %q", got)
	}
}

func (b boxed) failingSource(ctx context.Context, t *testing.T) {
	b.put(ctx, t, "/tmp/fa/file", "before")
	failure := errors.New("the source failed")
	_, err := b.Write(ctx, "/tmp/fa/file", io.MultiReader(bytes.NewReader(make([]byte, 3<<20)), iotest.ErrReader(failure)))
	if !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	_, err = b.Write(cancelled, "/tmp/fa/file", io.MultiReader(bytes.NewReader(make([]byte, 3<<20)), &atRead{cancel},
		bytes.NewReader(make([]byte, 64<<20))))
	if !errors.Is(err, context.Canceled) || protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("a cancelled write: %v", err)
	}
	b.f.Eventually(20*time.Second, "no part of the file is left", func() error {
		if got := b.sh(ctx, t, "ls -A /tmp/fa"); got != "file\n" {
			return fmt.Errorf("the directory has %q", got)
		}
		return nil
	})
	b.want(ctx, t, "/tmp/fa/file", "before")
}

func (b boxed) tars(ctx context.Context, t *testing.T) {
	b.put(ctx, t, "/tmp/ta/in/f", "content")
	b.sh(ctx, t, "cd /tmp/ta/in && ln -s /etc/passwd out && mkfifo fifo && mkdir skip && echo > skip/x")
	var archive bytes.Buffer
	count, err := b.Pack(ctx, "/tmp/ta/in", &archive, sdk.WithExclude("skip"))
	if err != nil || count.Skips != 1 || count.Skipped[0].Path != "fifo" {
		t.Fatalf("pack: %+v, %v", count, err)
	}
	var names []string
	r := tar.NewReader(bytes.NewReader(archive.Bytes()))
	for h, err := r.Next(); err == nil; h, err = r.Next() {
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"./", "f", "out"}) && !slices.Equal(names, []string{"./", "./f", "./out"}) {
		t.Errorf("the stream has %q", names)
	}
	if _, err := b.Unpack(ctx, "/tmp/ta/again", bytes.NewReader(archive.Bytes())); err != nil {
		t.Fatal(err)
	}
	if got := b.sh(ctx, t, "cat /tmp/ta/again/f; readlink /tmp/ta/again/out"); got != "content/etc/passwd\n" {
		t.Errorf("unpacked: %q", got)
	}
	_, err = b.Unpack(ctx, "/tmp/ta/again", bytes.NewReader(archive.Bytes()))
	wantReason(t, err, protocol.AlreadyExists, protocol.ReasonPathExists)
	var bad bytes.Buffer
	w := tar.NewWriter(&bad)
	// Writing to a buffer does not fail.
	_ = w.WriteHeader(&tar.Header{Name: "../out", Typeflag: tar.TypeReg})
	_ = w.Close()
	_, err = b.Unpack(ctx, "/tmp/ta/bad", &bad)
	wantReason(t, err, protocol.InvalidArgument, protocol.AsError(err).Reason)
	_, err = b.Pack(ctx, "/tmp/ta/none", io.Discard)
	wantReason(t, err, protocol.NotFound, protocol.ReasonPathNotFound)
	failure := errors.New("the writer failed")
	if _, err = b.Pack(ctx, "/tmp/ta/in", failingWriter{failure}); !errors.Is(err, failure) {
		t.Errorf("a writer that fails: %v", err)
	}
}

// compressed carries a tree in both directions with each kind of compression.
func (b boxed) compressed(ctx context.Context, t *testing.T) {
	source := t.TempDir()
	text, noise := strings.Repeat("the same line again\n", 100_000), make([]byte, 1<<20)
	_, _ = (&numbers{}).Read(noise) // returns no error
	for name, content := range map[string]string{"text": text, "noise": string(noise), "empty": ""} {
		if err := os.WriteFile(source+"/"+name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, when := range []sdk.FileCompression{protocol.CompressNever, protocol.CompressAuto, protocol.CompressAlways} {
		path, target := "/tmp/co/"+string(when), t.TempDir()
		began := time.Now()
		if _, err := b.Upload(ctx, source, path, sdk.WithCompression(when)); err != nil {
			t.Fatal(err)
		}
		up := time.Since(began)
		b.want(ctx, t, path+"/text", text)
		b.want(ctx, t, path+"/noise", string(noise))
		began = time.Now()
		if _, err := b.Download(ctx, path, target, sdk.WithCompression(when)); err != nil {
			t.Fatal(err)
		}
		t.Logf("compression %q: up in %s, down in %s", when, up, time.Since(began))
		if got, err := os.ReadFile(target + "/text"); err != nil || string(got) != text {
			t.Errorf("compression %q: %d bytes came down, %v", when, len(got), err)
		}
		_, err := b.Download(ctx, path, target, sdk.WithCompression(when), sdk.WithMaxBytes(1<<20))
		wantReason(t, err, protocol.ResourceExhausted, protocol.ReasonTooLarge) // the limit counts the expanded bytes
	}
	_, err := b.Upload(ctx, source, "/tmp/co/x", sdk.WithCompression("much"))
	wantReason(t, err, protocol.InvalidArgument, "")
}

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }
