package supervise_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/files"
)

func paths(p *protocol.FilePage) (all []string) {
	for _, file := range p.Files {
		all = append(all, file.Path)
	}
	return all
}

func TestFiles_GlobFindsPaths(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		ctx, dir := fileContext(t), own(t, f)
		for _, name := range []string{"a.go", "b.txt", "src/c.go", "src/deep/d.go", "src/deep/.h.go", "vendor/e.go"} {
			put(t, f, dir+"/"+name, name)
		}
		for _, c := range []struct {
			r    protocol.FileGlob
			want string
		}{
			{protocol.FileGlob{Pattern: "*.go"}, "a.go"},
			{protocol.FileGlob{Pattern: "**/*.go"}, "a.go src/c.go src/deep/d.go vendor/e.go"},
			{protocol.FileGlob{Pattern: "**/*.go", Excludes: []string{"vendor"}, Hidden: true},
				"a.go src/c.go src/deep/.h.go src/deep/d.go"},
			{protocol.FileGlob{Pattern: "src/*/*.go"}, "src/deep/d.go"},
			{protocol.FileGlob{Pattern: "{a,b}.*"}, "a.go b.txt"},
			{protocol.FileGlob{Pattern: "none/**"}, ""},
		} {
			c.r.Path = dir
			p, err := f.Glob(ctx, c.r)
			if err != nil {
				t.Errorf("%s: %v", c.r.Pattern, err)
			} else if got := strings.Join(paths(p), " "); got != c.want {
				t.Errorf("%s: got %q, want %q", c.r.Pattern, got, c.want)
			}
		}
		first, err := f.Glob(ctx, protocol.FileGlob{Path: dir, Pattern: "**/*.go", Limit: 2})
		if err != nil || len(first.Files) != 2 || first.Next == "" {
			t.Fatalf("the first page is %+v, %v", first, err)
		}
		second, err := f.Glob(ctx, protocol.FileGlob{Path: dir, Pattern: "**/*.go", Limit: 2, Page: first.Next})
		if err != nil || strings.Join(paths(second), " ") != "src/deep/d.go vendor/e.go" {
			t.Errorf("the second page is %v, %v", second, err)
		}
		_, err = f.Glob(ctx, protocol.FileGlob{Path: dir, Pattern: "[a"})
		refusedWith(t, "a wrong pattern", err, protocol.InvalidArgument, "")
	})
}

func TestFiles_GrepFindsLines(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		ctx, dir := fileContext(t), own(t, f)
		put(t, f, dir+"/one", "first\nneedle here\r\nlast needle")
		put(t, f, dir+"/sub/two", strings.Repeat("x", 200_000)+"needle"+strings.Repeat("y", 5000)+"\nNEEDLE\n")
		put(t, f, dir+"/binary", "needle\x00needle")
		m, err := f.Grep(ctx, protocol.FileGrep{Path: dir, Expression: "needle"})
		if err != nil || len(m.Matches) != 3 || m.Stopped != "" || m.Files != 3 {
			t.Fatalf("found %+v, %v", m, err)
		}
		got := fmt.Sprintf("%s:%d:%d:%s", m.Matches[0].Path, m.Matches[0].Line, m.Matches[0].Column, m.Matches[0].Text)
		if got != "one:2:1:needle here" || m.Matches[1].Line != 3 || m.Matches[1].Column != 6 {
			t.Errorf("found %s and %+v", got, m.Matches[1])
		}
		long := m.Matches[2]
		if !long.Cut || len(long.Text) != protocol.DefaultFileLine || !strings.Contains(string(long.Text), "needle") ||
			long.Column != 200_001 || int(long.Offset) != 200_000-protocol.DefaultFileLine/4 {
			t.Errorf("a long line: %d bytes, column %d, offset %d, cut %v", len(long.Text), long.Column, long.Offset, long.Cut)
		}
		m, err = f.Grep(ctx, protocol.FileGrep{Path: dir, Expression: "^needle$", IgnoreCase: true,
			Include: []string{"sub/*"}})
		if err != nil || len(m.Matches) != 1 || m.Matches[0].Line != 2 {
			t.Errorf("without case: %+v, %v", m, err)
		}
		m, err = f.Grep(ctx, protocol.FileGrep{Path: dir, Expression: "needle", Limit: 1})
		if err != nil || len(m.Matches) != 1 || m.Stopped != "limit" {
			t.Errorf("with a limit: %+v, %v", m, err)
		}
		m, err = f.Grep(ctx, protocol.FileGrep{Path: dir, Expression: "NEEDLE", MaxBytes: 100_000})
		if err != nil || len(m.Matches) != 0 || m.Stopped != "max_bytes" || m.Bytes > 100_000 {
			t.Errorf("with a limit of bytes: %+v, %v", m, err)
		}
		m, err = f.Grep(ctx, protocol.FileGrep{Path: dir + "/one", Expression: "last"})
		if err != nil || len(m.Matches) != 1 || m.Matches[0].Path != "" {
			t.Errorf("one file: %+v, %v", m, err)
		}
		_, err = f.Grep(ctx, protocol.FileGrep{Path: dir, Expression: "(a"})
		refusedWith(t, "a wrong expression", err, protocol.InvalidArgument, "")
	})
}

func TestFiles_AreEdited(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		ctx, path := fileContext(t), own(t, f)+"/file"
		mode := uint32(0o640)
		_, err := f.Write(ctx, protocol.FileWrite{Path: path, Mode: &mode}, strings.NewReader("a b a \xff"))
		if err != nil {
			t.Fatal(err)
		}
		edit := func(r protocol.FileEdit) (*protocol.FileEdited, error) {
			r.Path = path
			return f.Edit(ctx, r)
		}
		_, err = edit(protocol.FileEdit{Old: []byte("none"), New: []byte("x")})
		refusedWith(t, "no match", err, protocol.FailedPrecondition, protocol.ReasonNoMatch)
		_, err = edit(protocol.FileEdit{Old: []byte("a"), New: []byte("x")})
		refusedWith(t, "several matches", err, protocol.FailedPrecondition, protocol.ReasonSeveralMatches)
		e, err := edit(protocol.FileEdit{Old: []byte("a"), New: []byte("long"), All: true})
		if err != nil || e.Replaced != 2 || e.File.Mode != mode {
			t.Errorf("all: %+v, %v", e, err)
		}
		if _, err = edit(protocol.FileEdit{Old: []byte("\xff")}); err != nil {
			t.Error(err)
		}
		if got := get(t, f, protocol.FileRead{Path: path}); got != "long b long " {
			t.Errorf("the file has %q", got)
		}
		_, err = edit(protocol.FileEdit{New: []byte("x")})
		refusedWith(t, "nothing to replace", err, protocol.InvalidArgument, "")
		path += ".none"
		_, err = edit(protocol.FileEdit{Old: []byte("x")})
		refusedWith(t, "no file", err, protocol.NotFound, protocol.ReasonPathNotFound)
	})
}

func TestFiles_ChangesAreListedSinceAToken(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		ctx, dir := fileContext(t), own(t, f)
		put(t, f, dir+"/old", "x")
		put(t, f, dir+"/gone/file", "x")
		var p *protocol.FilePage
		var err error
		s.poll("a tick of the kernel's clock", func() bool { // changes of the same tick are listed again
			p, err = f.Changes(ctx, protocol.FileChanges{Path: dir})
			if err != nil || len(p.Files) != 0 || p.Token == "" {
				t.Fatalf("the first call: %+v, %v", p, err)
			}
			again, err := f.Changes(ctx, protocol.FileChanges{Path: dir, Since: p.Token})
			return err == nil && len(again.Files) == 0
		})
		put(t, f, dir+"/.new", "y")
		if _, err := f.Remove(ctx, protocol.FileRemove{Path: dir + "/gone/file"}); err != nil {
			t.Fatal(err)
		}
		var all []string
		r := protocol.FileChanges{Path: dir, Since: p.Token, Limit: 1}
		for {
			p, err := f.Changes(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, paths(p)...)
			if r.Page = p.Next; r.Page == "" {
				break
			}
		}
		if want := []string{".", ".new", "gone"}; !slices.Equal(all, want) {
			t.Errorf("changed: %q, want %q", all, want)
		}
		_, err = f.Changes(ctx, protocol.FileChanges{Path: dir, Since: "yesterday"})
		refusedWith(t, "a wrong token", err, protocol.InvalidArgument, "")
	})
}

// watched collects the events of a watch.
type watched struct {
	mu     sync.Mutex
	events []protocol.FileEvent
	ended  chan error
	cancel context.CancelFunc
}

func watchFiles(t *testing.T, f *files.Session, r protocol.FileWatch) *watched {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w := &watched{ended: make(chan error, 1), cancel: cancel}
	began := make(chan struct{})
	go func() {
		w.ended <- f.Watch(ctx, r, func(events []protocol.FileEvent) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.events) == 0 {
				close(began)
			}
			w.events = append(w.events, events...)
			return nil
		})
	}()
	t.Cleanup(cancel)
	select {
	case <-began:
	case err := <-w.ended:
		t.Fatalf("watch: %v", err)
	}
	return w
}

// saw reports whether an event of a kind came for a path.
func (w *watched) saw(kind protocol.FileEventKind, path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e protocol.FileEvent) bool { return e.Kind == kind && e.Path == path })
}

func TestFiles_ChangesAreWatched(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *sandbox, f *files.Session) {
		ctx, dir := fileContext(t), own(t, f)
		put(t, f, dir+"/top/old/file", "x")
		put(t, f, dir+"/top/no/file", "x")
		w := watchFiles(t, f, protocol.FileWatch{Path: dir + "/top", Recursive: true, Excludes: []string{"no"}})
		if !w.saw(protocol.FileWatching, "") {
			t.Error("the first event does not say that the watch has begun")
		}
		put(t, f, dir+"/top/no/more", "x")
		put(t, f, dir+"/top/a/b/c/file", "x")
		s.poll("a file in new directories", func() bool {
			return w.saw(protocol.FileCreated, "a") && w.saw(protocol.FileCreated, "a/b/c") &&
				(w.saw(protocol.FileMovedIn, "a/b/c/file") || w.saw(protocol.FileCreated, "a/b/c/file"))
		})
		if _, err := f.Move(ctx, protocol.FileMove{From: dir + "/top/old", To: dir + "/top/a/new"}); err != nil {
			t.Fatal(err)
		}
		append1 := protocol.FileWrite{Path: dir + "/top/a/new/file", How: protocol.FileAppend}
		if _, err := f.Write(ctx, append1, strings.NewReader("y")); err != nil {
			t.Fatal(err)
		}
		s.poll("a change in a moved directory", func() bool {
			return w.saw(protocol.FileMovedOut, "old") && w.saw(protocol.FileMovedIn, "a/new") &&
				w.saw(protocol.FileModified, "a/new/file")
		})
		if _, err := f.Remove(ctx, protocol.FileRemove{Path: dir + "/top/a", Recursive: true}); err != nil {
			t.Fatal(err)
		}
		s.poll("removals", func() bool {
			return w.saw(protocol.FileRemoved, "a/new/file") && w.saw(protocol.FileRemoved, "a")
		})
		if _, err := f.Remove(ctx, protocol.FileRemove{Path: dir + "/top", Recursive: true}); err != nil {
			t.Fatal(err)
		}
		refusedWith(t, "the watched directory is gone", <-w.ended, protocol.NotFound, protocol.ReasonPathNotFound)
		if w.saw(protocol.FileMovedIn, "no/more") {
			t.Error("an excluded directory was watched")
		}
	})
}

func TestFiles_LostEventsOfAWatchAreReported(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	f := s.fileSession("")
	dir := own(t, f)
	release := make(chan struct{})
	ended := make(chan error, 1)
	began := make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	rescan := false
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() {
		ended <- f.Watch(ctx, protocol.FileWatch{Path: dir}, func(events []protocol.FileEvent) error {
			once.Do(func() { close(began) })
			<-release // the watcher does not read, until the kernel's queue is full
			mu.Lock()
			defer mu.Unlock()
			rescan = rescan || slices.ContainsFunc(events, func(e protocol.FileEvent) bool {
				return e.Kind == protocol.FileRescan && e.Error != nil && e.Error.Reason == protocol.ReasonRescan
			})
			return nil
		})
	}()
	<-began
	r := s.exec(control.Start{Cwd: dir, Argv: []string{"sh", "-c",
		"seq 1 20000 | xargs touch; seq 1 20000 | xargs rm"}})
	if code(r) != "0" {
		t.Fatalf("the writer ended with %+v", r)
	}
	close(release)
	s.poll("a rescan", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the watch ended: %v", err)
		default:
		}
		mu.Lock()
		defer mu.Unlock()
		return rescan
	})
	put(t, f, dir+"/after", "x")
	cancel()
	refusedWith(t, "the end of the watch", <-ended, protocol.Cancelled, protocol.ReasonCancelRequested)
}
