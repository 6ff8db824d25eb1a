package supervise_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/files"
)

// swapping is a directory /tmp/w of a sandbox, in which the directory d and the link l change places all the time. The
// link leads to /tmp/outside, which nobody may change.
type swapping struct {
	t     *testing.T
	f     *files.Session
	tmp   string // the sandbox's /tmp, on the host
	swaps atomic.Int64
}

// swapped starts to swap. It ends with the test.
func swapped(t *testing.T) *swapping {
	s := newSandbox(t, option{args: []string{"--tmpfs", "/tmp:mode=1777,size=64m"}})
	w := &swapping{t: t, f: s.fileSession("0"), tmp: fmt.Sprintf("/proc/%d/root/tmp", s.pid)}
	s.mustSh(`mkdir -p /tmp/w/d /tmp/outside /tmp/src/d && ln -s ../outside /tmp/w/l
		echo untouched > /tmp/outside/precious && echo untouched > /tmp/outside/unseen
		for i in $(seq 100); do echo copied > /tmp/src/d/f$i; done; echo copied > /tmp/src/d/precious`)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if unix.Renameat2(unix.AT_FDCWD, w.tmp+"/w/d", unix.AT_FDCWD, w.tmp+"/w/l", unix.RENAME_EXCHANGE) == nil {
				w.swaps.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return w
}

// unchanged checks the directory outside, and the error of the operation: what it met may be no directory or be gone.
func (w *swapping) unchanged(op string, err error) {
	w.t.Helper()
	switch protocol.CodeOf(err) {
	case "", protocol.AlreadyExists, protocol.FailedPrecondition, protocol.NotFound, protocol.InvalidArgument:
	default:
		w.t.Errorf("%s: %v", op, err)
	}
	names, err := filepath.Glob(w.tmp + "/outside/*")
	precious, readErr := os.ReadFile(w.tmp + "/outside/precious")
	if err = errors.Join(err, readErr); err != nil || len(names) != 2 || string(precious) != "untouched\n" {
		w.t.Fatalf("%s changed the directory outside: it has %q, the file has %q, %v", op, names, precious, err)
	}
}

// again makes the directory in one step, after it was removed.
func (w *swapping) again() {
	w.t.Helper()
	if err := errors.Join(os.MkdirAll(w.tmp+"/next/d/e", 0o755), os.Symlink("../outside", w.tmp+"/next/l"),
		os.WriteFile(w.tmp+"/next/d/e/in", nil, 0o600), os.Rename(w.tmp+"/next", w.tmp+"/w")); err != nil {
		w.t.Fatal(err)
	}
}

// A directory that is replaced by a link while a tree is written to it, or removed, leads nowhere else.
func TestX12_ADestinationThatBecomesALinkLeadsNowhere(t *testing.T) {
	t.Parallel()
	var entries []file
	for i := range 50 {
		entries = append(entries, file{name: fmt.Sprintf("d/f%d", i), data: []byte("unpacked"), mode: 0o600, kind: '0'})
	}
	entries = append(entries, file{name: "d/precious", data: []byte("unpacked"), mode: 0o600, kind: '0'})
	tree := archive(entries)
	for op, run := range map[string]func(ctx context.Context, w *swapping) error{
		"copy": func(ctx context.Context, w *swapping) error {
			_, err := w.f.Copy(ctx, protocol.FileCopy{From: "/tmp/src", To: "/tmp/w", Recursive: true, Overwrite: true})
			return err
		},
		"move to another file system": func(ctx context.Context, w *swapping) error {
			from := "/dev/shm/" + newID()
			_, err := w.f.Copy(ctx, protocol.FileCopy{From: "/tmp/src", To: from, Recursive: true})
			if err != nil {
				w.t.Fatal(err)
			}
			_, err = w.f.Move(ctx, protocol.FileMove{From: from, To: "/tmp/w", Overwrite: true})
			return err
		},
		"unpack": func(ctx context.Context, w *swapping) error {
			_, err := w.f.Unpack(ctx, protocol.FileUnpack{Path: "/tmp/w", Overwrite: true}, bytes.NewReader(tree))
			return err
		},
		"remove": func(ctx context.Context, w *swapping) error {
			_, err := w.f.Remove(ctx, protocol.FileRemove{Path: "/tmp/w", Recursive: true})
			if err == nil {
				w.again()
			}
			return err
		},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			w, done := swapped(t), 0
			for range 30 {
				err := run(fileContext(t), w)
				w.unchanged(op, err)
				if err == nil {
					done++
				}
			}
			if t.Logf("%d of 30 succeeded, %d swaps", done, w.swaps.Load()); w.swaps.Load() == 0 {
				t.Error("nothing was swapped")
			}
		})
	}
}

// A directory that is replaced by a link while a tree is read shows nothing from elsewhere.
func TestX12_ASourceThatBecomesALinkShowsNothingElse(t *testing.T) {
	t.Parallel()
	w := swapped(t)
	for range 30 {
		ctx := fileContext(t)
		var out bytes.Buffer
		_, err := w.f.Pack(ctx, protocol.FilePack{Path: "/tmp/w"}, &out)
		w.unchanged("pack", err)
		p, err := w.f.Changes(ctx, protocol.FileChanges{Path: "/tmp/w", Since: "1"})
		w.unchanged("changes", err)
		to := "/tmp/" + newID()
		_, err = w.f.Copy(ctx, protocol.FileCopy{From: "/tmp/w/d", To: to, Recursive: true})
		w.unchanged("copy", err)
		copied, _ := w.f.Pack(ctx, protocol.FilePack{Path: to}, io.Discard) // it may be a link
		if bytes.Contains(out.Bytes(), []byte("unseen")) || strings.Contains(strings.Join(paths(p), " "), "unseen") {
			t.Fatalf("a walk left the directory: %q", paths(p))
		}
		info, err := os.Lstat(filepath.Join(w.tmp, filepath.Base(to)))
		if err == nil && info.IsDir() && copied != nil && copied.Entries > 1 {
			t.Fatal("a copy of a directory has what is elsewhere")
		}
	}
	if w.swaps.Load() == 0 {
		t.Error("nothing was swapped")
	}
}
