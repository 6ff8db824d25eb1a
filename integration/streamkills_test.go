package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// The tree that the outages interrupt. Half of each file can be compressed.
const (
	outageFiles = 200
	outageBytes = 128 << 10
)

// TestWatchesAndTreesSurviveOutagesOrFail kills NATS or the worker in the middle of a watch, and of copies of a tree
// that are compressed. With NATS, each goes on and ends exactly; with the worker, it may end with a typed error.
// Nothing is left open in the worker.
func TestWatchesAndTreesSurviveOutagesOrFail(t *testing.T) {
	t.Parallel()
	source, want := outageTree(t)
	for what, outage := range outages {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := fleet.Start(t, fleet.Options{Killable: true})
			ctx := f.Context(4 * time.Minute)
			b := filesOf(ctx, t, f, "outages", nil)
			b.round(ctx, t)
			sum := b.holdFile(ctx, t)
			before := usageOf(f.Processes("worker")[0])
			readers := b.hold(ctx, t)
			b.watchThrough(ctx, t, what, func() { outage(f) })
			release(t, what, readers, sum)

			s := strikes(f, outageFiles*outageBytes, outage)
			began := time.Now()
			_, err := b.Upload(ctx, source, "/var/up", sdk.WithProgress(s.carried), sdk.WithCompression(protocol.CompressAlways))
			wantSoon(t, "the upload", began, err)
			s.wantStruck(t, "the upload")
			if wantSurvived(t, "the upload", what, err); err != nil {
				if _, err := b.Upload(ctx, source, "/var/up", sdk.WithOverwrite()); err != nil {
					t.Fatal(err)
				}
			}
			got := b.sh(ctx, t, "cd /var/up && find . -type f | sort | xargs cat | sha256sum")
			if !strings.HasPrefix(got, want) {
				t.Errorf("after %v, the tree in the sandbox has the hash %s, want %s", err, got, want)
			}

			s = strikes(f, outageFiles*outageBytes, outage)
			target := filepath.Join(t.TempDir(), "down")
			began = time.Now()
			_, err = b.Download(ctx, "/var/up", target, sdk.WithProgress(s.carried),
				sdk.WithCompression(protocol.CompressAlways))
			wantSoon(t, "the download", began, err)
			s.wantStruck(t, "the download")
			if wantSurvived(t, "the download", what, err); err == nil {
				if got := hashOfTree(t, target); got != want {
					t.Errorf("the downloaded tree has the hash %s, want %s", got, want)
				}
			}
			wantNoMore(f, f.Processes("worker")[0], before)
		})
	}
}

// watchThrough watches a directory through an outage. The watch reports a change after it, or asks for a rescan. With
// its worker, it may end with a typed error.
func (b boxed) watchThrough(ctx context.Context, t *testing.T, what string, outage func()) {
	t.Helper()
	b.put(ctx, t, "/var/watched/first", "first")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for e, err := range b.Watch(ctx, "/var/watched") {
			switch {
			case err != nil:
				ended <- err
				return
			case e.Kind == protocol.FileWatching:
				close(watching)
			case e.Kind == protocol.FileRescan || e.Path == "second":
				ended <- nil
				return
			}
		}
		ended <- errors.New("the watch ended without an event and without an error")
	}()
	select {
	case <-watching:
	case err := <-ended:
		t.Fatalf("the watch ended with %v", err)
	}
	outage()
	began := time.Now()
	b.f.Eventually(noticedWithin, "a file is written after the outage", func() error {
		_, err := b.WriteFile(ctx, "/var/watched/second", []byte("second"))
		return err
	})
	select {
	case err := <-ended:
		wantSoon(t, "the watch", began, err)
		wantSurvived(t, "the watch", what, err)
	case <-time.After(2 * noticedWithin):
		t.Error("the watch neither reports the change nor ends")
	}
}

func wantTyped(t *testing.T, err error) {
	t.Helper()
	if typed := (*protocol.Error)(nil); err != nil && !errors.As(err, &typed) {
		t.Errorf("an error without a code: %v", err)
	}
}

// outageTree makes the tree, and returns its directory and its hash.
func outageTree(t *testing.T) (dir, hash string) {
	t.Helper()
	dir = t.TempDir()
	content, random := make([]byte, outageBytes), rand.NewChaCha8([32]byte{1})
	for i := range outageFiles {
		_, _ = random.Read(content[:outageBytes/2]) // never fails
		path := filepath.Join(dir, fmt.Sprint("d", i%10), fmt.Sprintf("f%03d", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, hashOfTree(t, dir)
}

// hashOfTree returns the hash of the contents of all files, in the order of their paths.
func hashOfTree(t *testing.T, dir string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "d*", "f*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	hash := sha256.New()
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(content)
	}
	return hex.EncodeToString(hash.Sum(nil))
}
