package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func TestExcludedFilesAreNotUploaded(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	dir, plain := t.TempDir(), t.TempDir()
	at := time.Unix(1_000_000_000, 0)
	for _, name := range []string{"src/main.go", "README"} {
		writeFile(t, filepath.Join(dir, name), name, 0o644, at)
		writeFile(t, filepath.Join(plain, name), name, 0o644, at)
	}
	for _, name := range []string{".git/HEAD", "src/deep/x.pyc", "src/deep/node_modules/a/b", "top.log"} {
		writeFile(t, filepath.Join(dir, name), "excluded", 0o644, at)
	}
	// An excluded file may be of a kind that cannot be copied.
	if err := os.Symlink("/etc", filepath.Join(dir, ".git", "out")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, plain} {
		mkdir(t, filepath.Join(d, "src", "deep"))
		for _, name := range []string{"src/deep", "src", "."} {
			if err := os.Chtimes(filepath.Join(d, name), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	patterns := []string{"/.git", "*.pyc", "**/node_modules/", "*.log", "!README"}
	with, err := f.Client.Upload(ctx, dir, "/x", sdk.WithExclude(patterns...))
	if err != nil {
		t.Fatal(err)
	}
	without, err := f.Client.Upload(ctx, plain, "/x")
	if err != nil {
		t.Fatal(err)
	}
	if with != without {
		t.Errorf("excluded files change the tree: %+v, %+v", with, without)
	}
	_, err = f.Client.Upload(ctx, dir, "/x", sdk.WithExclude("fine", "a["))
	wantError(t, "an invalid pattern", err, protocol.InvalidArgument, "", "exclude[1]")
}

func TestAnUnusedBlobIsRemovedByAgeAndAReusedOneStays(t *testing.T) {
	t.Parallel()
	const age = 6 * time.Second
	f := fleet.Start(t, fleet.Options{Workers: -1, BlobMaxAge: age})
	// On a busy machine the test may be paused for so long that an attempt proves nothing. Then try again.
	for try := 1; !blobsGoByAge(t, f, age, try); try++ {
		if try == 5 {
			t.Fatal("no try ran fast enough to be conclusive")
		}
	}
	nc, err := f.NATS("test")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	f.Eventually(3*age, "both blobs are removed", func() error {
		stream, err := js.Stream(f.Context(time.Minute), "OBJ_"+protocol.BucketBlobs)
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("%d messages of %d bytes are left", stream.CachedInfo().State.Msgs,
				stream.CachedInfo().State.Bytes)
		}
		return err
	})
}

// blobsGoByAge uploads two trees. It then uploads one of the trees two more times: while the stored tree is fresh,
// which sends nothing, and when the stored tree is older. blobsGoByAge reports whether every check ran in time.
func blobsGoByAge(t *testing.T, f *fleet.Fleet, age time.Duration, try int) (conclusive bool) {
	t.Helper()
	ctx := f.Context(time.Minute)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), strings.Repeat("x", 300_000+try), 0o644, time.Now())
	there := func(digest string) bool {
		found, err := f.Conn.HasBlob(ctx, "default", digest)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	firstStored := time.Now() // the tree was first stored at this time or later
	first, err := f.Client.Upload(ctx, dir, "/x")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "f"), fmt.Sprint("other", try), 0o644, time.Now())
	otherStored := time.Now()
	other, err := f.Client.Upload(ctx, dir, "/x")
	if err != nil {
		t.Fatal(err)
	}
	uploads := 0
	again := func() protocol.Copy {
		copied, err := f.Client.Upload(ctx, dir, "/x", sdk.WithProgress(func(int64, int64) { uploads++ }))
		if err != nil {
			t.Fatal(err)
		}
		return copied
	}
	if copied := again(); copied != other {
		t.Errorf("the same tree gives %+v", copied)
	}
	if uploads > 0 && time.Since(otherStored) < age/2 {
		t.Errorf("a stored tree was sent again, %d times", uploads)
	}
	conclusive = uploads == 0
	uploads = 0
	f.Eventually(age, "the tree is half its age", func() error {
		if fresh, err := f.Conn.FreshBlob(ctx, "default", other.Digest); fresh || err != nil {
			return fmt.Errorf("it is too young: %w", err)
		}
		return nil
	})
	otherStored = time.Now()
	if copied := again(); copied != other || uploads == 0 {
		t.Error("an old tree was not sent again")
	}
	f.Eventually(2*age, "the unused tree is removed", func() error {
		if there(first.Digest) {
			return errors.New("the tree still exists")
		}
		return nil
	})
	if took := time.Since(firstStored); took < age {
		t.Errorf("the unused tree was removed after %s", took)
	}
	if there(other.Digest) {
		return conclusive
	}
	if time.Since(otherStored) < age {
		t.Error("the second tree was removed, although it was sent again")
	}
	return false
}

// blobStore opens the store of uploads with a NATS client, without the SDK.
func blobStore(ctx context.Context, t *testing.T, f *fleet.Fleet) (jetstream.ObjectStore, error) {
	t.Helper()
	nc, err := f.NATS("test")
	if err != nil {
		return nil, err
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return js.ObjectStore(ctx, protocol.BucketBlobs)
}

// While a pending sandbox needs an upload, the fleet keeps the upload for longer than the maximum age of uploads.
func TestASandboxThatWaitsKeepsItsTrees(t *testing.T) {
	t.Parallel()
	const age = 12 * time.Second // the test fails only if the machine pauses for almost half of this time
	f := fleet.Start(t, fleet.Options{Workers: -1, BlobMaxAge: age})
	ctx := f.Context(2 * time.Minute)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), "content", 0o644, time.Now())
	copied, err := f.Client.Upload(ctx, dir, "/x")
	if err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Copies = []protocol.Copy{copied}
	s, err := f.Client.Create(ctx, spec, sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	store, err := blobStore(ctx, t, f)
	if err != nil {
		t.Fatal(err)
	}
	stored := time.Now()
	f.Eventually(4*age, "the tree is stored again after its original lifetime", func() error {
		info, err := store.GetInfo(ctx, protocol.DefaultTenant+"/"+copied.Digest)
		if err == nil && info.ModTime.Before(stored.Add(age)) {
			err = fmt.Errorf("it was stored at %s", info.ModTime)
		}
		return err
	})
	f.Worker("w1", fleet.Role{})
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /x/f")); got != "content" {
		t.Errorf("the sandbox has %q", got)
	}
	f.Eventually(3*age, "the tree is removed once no sandbox needs it", func() error {
		if there, err := f.Conn.HasBlob(ctx, "default", copied.Digest); err != nil || there {
			return fmt.Errorf("it still exists: %w", err)
		}
		return nil
	})
}
