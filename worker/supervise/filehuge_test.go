package supervise_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/files"
)

const (
	// filesVariable is the environment variable with the number of files in the large directory. `make files` sets it.
	filesVariable = "BOXFLEET_TEST_FILES"
	usualFiles    = 100_000
	filesAtOnce   = 25_000 // that one command makes

	pagesRead     = 8        // of each kind: each page needs the names of the whole directory
	mostHelperKiB = 16 << 10 // memory of a helper
	mostPerPage   = 6 << 20  // bytes that the worker, which is this process, allocates for a page of at most 768 KiB
)

// A directory of any size is read in pages. The helper keeps a bounded part of its names in memory, and the worker no
// more than a page. One file in a thousand has another ending. The test counts what its process allocates, so it runs
// alone.
func TestFiles_AHugeDirectoryNeedsNoMemory(t *testing.T) {
	wide := usualFiles
	if set := os.Getenv(filesVariable); set != "" {
		n, err := strconv.Atoi(set)
		if err != nil {
			t.Fatal(err)
		}
		wide = n
	}
	s := newSandbox(t, option{})
	s.mustSh("mkdir -p /tmp/huge")
	f := s.fileSession("0")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	since, err := f.Changes(ctx, protocol.FileChanges{Path: "/tmp/huge"})
	if err != nil {
		t.Fatal(err)
	}
	watched := watchCount(ctx, t, f)
	began := time.Now()
	for at := 1; at <= wide; at += filesAtOnce {
		s.mustSh(fmt.Sprintf("cd /tmp/huge && seq %d %d | sed 's/000$/000.log/' | xargs touch", at,
			min(at+filesAtOnce-1, wide)))
	}
	t.Logf("%d files were made in %s", wide, time.Since(began))
	s.poll("a watch reports all files, or that events are missing", func() bool {
		return watched.rescans.Load() > 0 || watched.created.Load() == int64(wide)
	})
	read := func(what string, want int, page func(next string) (*protocol.FilePage, error)) {
		t.Helper()
		began, seen, pages, next := time.Now(), 0, 0, ""
		before := allocated()
		for more := true; more && pages < pagesRead; more = next != "" {
			p, err := page(next)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			seen, pages, next = seen+len(p.Files), pages+1, p.Next
		}
		each := (allocated() - before) / uint64(pages)
		t.Logf("%s: %d files in %d pages in %s, %d KiB allocated for each", what, seen, pages, time.Since(began), each>>10)
		if seen > pages*protocol.MaxFilePage || next == "" && seen != want || each > mostPerPage {
			t.Errorf("%s: got %d files of %d in %d pages, and %d KiB for each", what, seen, want, pages, each>>10)
		}
	}
	read("list", wide, func(next string) (*protocol.FilePage, error) {
		return f.List(ctx, protocol.FileList{Path: "/tmp/huge", Limit: protocol.MaxFilePage, Page: next})
	})
	read("glob", wide/1000, func(next string) (*protocol.FilePage, error) {
		return f.Glob(ctx, protocol.FileGlob{Path: "/tmp/huge", Pattern: "*.log", Limit: protocol.MaxFilePage, Page: next})
	})
	read("changes", wide+1, func(next string) (*protocol.FilePage, error) {
		return f.Changes(ctx, protocol.FileChanges{
			Path: "/tmp/huge", Since: since.Token, Limit: protocol.MaxFilePage, Page: next})
	})
	s.helpersAreSmall(mostHelperKiB)
}

// counted counts the events of a watch.
type counted struct{ created, rescans atomic.Int64 }

// watchCount watches the large directory until the test ends.
func watchCount(ctx context.Context, t *testing.T, f *files.Session) *counted {
	t.Helper()
	c := &counted{}
	ctx, cancel := context.WithCancel(ctx)
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Watch(ctx, protocol.FileWatch{Path: "/tmp/huge"}, func(events []protocol.FileEvent) error { // ends with ctx
			for _, e := range events {
				switch e.Kind {
				case protocol.FileWatching:
					close(began)
				case protocol.FileCreated:
					c.created.Add(1)
				case protocol.FileRescan:
					c.rescans.Add(1)
				}
			}
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	select {
	case <-began:
	case <-ended:
		t.Fatal("the watch ended")
	}
	return c
}

// allocated returns how many bytes this process has allocated. The garbage collector is off in these tests.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
