package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// numbers is an endless reader whose bytes never repeat in step with a frame.
type numbers struct {
	at   int64
	left []byte
}

func (n *numbers) Read(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		if len(n.left) == 0 {
			sum := sha256.Sum256(fmt.Append(nil, n.at))
			n.left = bytes.Repeat(sum[:], 128)
			n.at++
		}
		c := copy(p[done:], n.left)
		n.left, done = n.left[c:], done+c
	}
	return done, nil
}

// TestFilesAndTreesTravel has limits of time, so it does not run beside other tests.
func TestFilesAndTreesTravel(t *testing.T) {
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(6 * time.Minute)
	b := filesOf(ctx, t, f, "travel", nil)
	f.Run(t, "a tree of 1,500 files", func(t *testing.T) { b.tree(ctx, t) })
	f.Run(t, "1 GB", func(t *testing.T) { b.gigabyte(ctx, t) })
	f.Run(t, "a slow reader", func(t *testing.T) { b.slowReader(ctx, t) })
	f.Run(t, "hostile names", func(t *testing.T) { b.names(ctx, t) })
	f.Run(t, "who may use files", func(t *testing.T) { b.rights(ctx, t) })
}

func (b boxed) tree(ctx context.Context, t *testing.T) {
	source := t.TempDir()
	for i := range 1500 {
		path := filepath.Join(source, fmt.Sprint("d", i%50), fmt.Sprint("f", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, bytes.Repeat([]byte{byte(i)}, i*7), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	up, err := b.Upload(ctx, source, "/tmp/tree", sdk.WithExclude("d49/"))
	if err != nil || up.Entries < 1470+49 {
		t.Fatalf("upload: %+v, %v", up, err)
	}
	upTook := time.Since(began)
	target := filepath.Join(t.TempDir(), "new")
	began = time.Now()
	down, err := b.Download(ctx, "/tmp/tree", target, sdk.WithExclude("d48/"))
	if err != nil || down.Skips > 0 {
		t.Fatalf("download: %+v, %v", down, err)
	}
	t.Logf("1,500 files travel up in %s and down in %s", upTook, time.Since(began))
	if upTook > 3*time.Second {
		t.Errorf("the upload took %s", upTook)
	}
	files := 0
	err = filepath.WalkDir(source, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(source, path)
		want, _ := os.ReadFile(path)
		got, err := os.ReadFile(filepath.Join(target, name))
		left := strings.HasPrefix(name, "d49/") || strings.HasPrefix(name, "d48/")
		info, _ := os.Stat(filepath.Join(target, name))
		if left != errors.Is(err, os.ErrNotExist) || !left && (!bytes.Equal(got, want) || info.Mode() != 0o640) {
			return fmt.Errorf("%s differs: %w", name, err)
		}
		files++
		return nil
	})
	if err != nil || files != 1500 {
		t.Errorf("%d files: %v", files, err)
	}
	// Nothing is replaced unless it is asked for.
	_, err = b.Upload(ctx, source, "/tmp/tree")
	wantReason(t, err, protocol.AlreadyExists, protocol.ReasonPathExists)
	if _, err = b.Upload(ctx, source, "/tmp/tree", sdk.WithOverwrite()); err != nil {
		t.Error(err)
	}
}

const gigabyte = 1 << 30

func (b boxed) gigabyte(ctx context.Context, t *testing.T) {
	worker := b.f.Processes("worker")[0]
	before := worker.PeakMemory()
	sum := sha256.New()
	began := time.Now()
	info, err := b.Write(ctx, "/var/gigabyte", io.TeeReader(io.LimitReader(&numbers{}, gigabyte), sum))
	if err != nil || info.Size != gigabyte {
		t.Fatalf("%+v, %v", info, err)
	}
	up := time.Since(began)
	began = time.Now()
	r, err := b.Read(ctx, "/var/gigabyte")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := sha256.New()
	heap := &heapWriter{Hash: got}
	if n, err := io.Copy(heap, r); err != nil || n != gigabyte {
		t.Fatalf("%d bytes, %v", n, err)
	}
	down := time.Since(began)
	if !bytes.Equal(got.Sum(nil), sum.Sum(nil)) {
		t.Error("other bytes came back")
	}
	grown := worker.PeakMemory() - before
	t.Logf("1 GB up in %s, down in %s; the worker's peak memory grew by %d MiB, this process's heap was %d MiB", up, down,
		grown>>20, heap.most>>20)
	if grown > 100<<20 || heap.most > 300<<20 {
		t.Error("memory is not bounded")
	}
	if _, err := b.Remove(ctx, "/var/gigabyte"); err != nil {
		t.Error(err)
	}
}

// heapWriter notes the largest heap of this process, which has the client and the NATS server.
type heapWriter struct {
	hash.Hash
	n, most int64
}

func (h *heapWriter) Write(p []byte) (int, error) {
	if h.n += int64(len(p)); h.n%(64<<20) < int64(len(p)) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		h.most = max(h.most, int64(m.HeapInuse))
	}
	return h.Hash.Write(p)
}

// slowReader opens readers that do not read, and checks that they keep neither others waiting nor memory.
func (b boxed) slowReader(ctx context.Context, t *testing.T) {
	if _, err := b.Write(ctx, "/var/large", io.LimitReader(&numbers{}, 64<<20)); err != nil {
		t.Fatal(err)
	}
	worker := b.f.Processes("worker")[0]
	before := worker.PeakMemory()
	var readers []*sdk.FileReader
	for range 20 {
		r, err := b.Read(ctx, "/var/large")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		readers = append(readers, r)
	}
	began := time.Now()
	for range 100 {
		if _, err := b.Stat(ctx, "/var/large"); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(began) / 100
	grown := worker.PeakMemory() - before
	t.Logf("beside 20 readers that do not read, a stat takes %s, and the worker's peak grew by %d MiB", took, grown>>20)
	if took > 20*time.Millisecond || grown > 250<<20 {
		t.Error("slow readers are felt")
	}
	got := sha256.New()
	want := sha256.New()
	_, _ = io.Copy(want, io.LimitReader(&numbers{}, 64<<20)) // never fails
	if _, err := io.Copy(got, readers[7]); err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("a reader that continues: %v", err)
	}
}

func (b boxed) names(ctx context.Context, t *testing.T) {
	names := []string{"new\nline", "-rf", "..x", " ", "a:b", "q\"'$(x)`", "ünï", "\xff\xfe",
		strings.Repeat("n", 255), "*?[x]"}
	source := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(source, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Upload(ctx, source, "/tmp/names"); err != nil {
		t.Fatal(err)
	}
	target := t.TempDir()
	if _, err := b.Download(ctx, "/tmp/names", target); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b.want(ctx, t, "/tmp/names/"+name, name)
		if got, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(got) != name {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	all, err := sdk.ReadAll(b.List(ctx, "/tmp/names", sdk.WithHidden()))
	if err != nil || len(all) != len(names) {
		t.Errorf("%d names are listed, %v", len(all), err)
	}
}

// rights checks that neither a viewer nor another tenant reads or writes files.
func (b boxed) rights(ctx context.Context, t *testing.T) {
	b.f.MayBeRefused()
	other, err := sdk.Connect(ctx, b.f.Options(sdk.Options{Tenant: "other"}))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = other.Sandbox(b.box.ID()).Files().ReadFile(ctx, "/etc/passwd")
	wantReason(t, err, protocol.NotFound, "")
	viewer, err := sdk.Connect(ctx, b.f.AsViewer(sdk.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer viewer.Close()
	files := viewer.Sandbox(b.box.ID()).Files()
	if _, err = files.ReadFile(ctx, "/etc/passwd"); protocol.CodeOf(err) != protocol.PermissionDenied {
		t.Errorf("a viewer reads: %v", err)
	}
	if _, err = files.WriteFile(ctx, "/tmp/x", nil); protocol.CodeOf(err) != protocol.PermissionDenied {
		t.Errorf("a viewer writes: %v", err)
	}
}

// An outage of NATS in the middle of a transfer changes nothing. An outage of the worker ends in the exact bytes or in
// an error with a code; a file that is replaced is then the old or the new one, never a part. Both leave nothing open.
func TestTransfersSurviveOutagesOrFailWhole(t *testing.T) {
	t.Parallel()
	for what, outage := range outages {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := fleet.Start(t, fleet.Options{Killable: true})
			ctx := f.Context(4 * time.Minute)
			b := filesOf(ctx, t, f, "outage", nil)
			b.round(ctx, t)
			sum := b.holdFile(ctx, t)
			before := usageOf(f.Processes("worker")[0])
			readers := b.hold(ctx, t)
			b.uploadThrough(ctx, t, what, outage)
			release(t, what, readers, sum)
			readers = b.hold(ctx, t)
			b.downloadThrough(ctx, t, what, outage)
			release(t, what, readers, sum)
			wantNoMore(f, f.Processes("worker")[0], before)
		})
	}
}

const throughBytes = 96 << 20 // size of the file that an outage interrupts

// throughSum is the hash of that file.
var throughSum = sync.OnceValue(func() []byte {
	sum := sha256.New()
	_, _ = io.Copy(sum, io.LimitReader(&numbers{}, throughBytes)) // never fails
	return sum.Sum(nil)
})

func (b boxed) uploadThrough(ctx context.Context, t *testing.T, what string, outage func(*fleet.Fleet)) {
	t.Helper()
	b.put(ctx, t, "/var/target/file", "before")
	s := strikes(b.f, throughBytes, outage)
	began := time.Now()
	_, err := b.Write(ctx, "/var/target/file", &struckReader{Reader: io.LimitReader(&numbers{}, throughBytes), strike: s})
	wantSoon(t, "the upload", began, err)
	s.wantStruck(t, "the upload")
	wantSurvived(t, "the upload", what, err)
	b.wantWholeOrOld(ctx, t, err)
}

func (b boxed) downloadThrough(ctx context.Context, t *testing.T, what string, outage func(*fleet.Fleet)) {
	t.Helper()
	if _, err := b.Write(ctx, "/var/source", io.LimitReader(&numbers{}, throughBytes)); err != nil {
		t.Fatal(err)
	}
	local := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(local, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := strikes(b.f, throughBytes, outage)
	began := time.Now()
	_, err := b.Download(ctx, "/var/source", local, sdk.WithProgress(s.carried))
	wantSoon(t, "the download", began, err)
	s.wantStruck(t, "the download")
	wantSurvived(t, "the download", what, err)
	got, readErr := os.ReadFile(local)
	sum := sha256.Sum256(got)
	if readErr != nil || err == nil && !bytes.Equal(sum[:], throughSum()) || err != nil && string(got) != "before" {
		t.Errorf("after %v, the file has %d bytes, %v", err, len(got), readErr)
	}
	if all, err := os.ReadDir(filepath.Dir(local)); err != nil || len(all) != 1 {
		t.Errorf("left are %v, %v", all, err)
	}
}

// wantSoon checks that a transfer ended soon after its outage.
func wantSoon(t *testing.T, what string, began time.Time, err error) {
	t.Helper()
	took := time.Since(began)
	t.Logf("%s ended after %s: %v", what, took, err)
	if took > noticedWithin {
		t.Errorf("%s ended after %s", what, took)
	}
}

// wantWholeOrOld checks the target of an upload that an outage may have ended with err.
func (b boxed) wantWholeOrOld(ctx context.Context, t *testing.T, err error) {
	t.Helper()
	b.f.Eventually(90*time.Second, "the file is whole, and no part is left", func() error {
		r, readErr := b.Read(ctx, "/var/target/file")
		if readErr != nil {
			return readErr
		}
		defer r.Close()
		got := sha256.New()
		n, readErr := io.Copy(got, r)
		if readErr != nil {
			return readErr
		}
		old := err != nil && n == int64(len("before"))
		if !old && (n != throughBytes || !bytes.Equal(got.Sum(nil), throughSum())) {
			t.Fatalf("after %v, the file has %d bytes", err, n)
		}
		page, readErr := b.ListPage(ctx, "/var/target", sdk.WithHidden())
		if readErr != nil || len(page.Items) != 1 {
			return fmt.Errorf("the directory has %+v, %w", page, readErr)
		}
		return nil
	})
}
