package files

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// maxDepth limits how deep a tree is walked. Each level has an open descriptor.
	maxDepth = 4096
	// maxRelative limits the paths of entries below the directory that is walked, in bytes.
	maxRelative = 16 << 10
	// batchAtTop is the number of names of a directory that are in memory at once. Each level below has half as many, and
	// at least batchLeast: so memory is bounded, whatever the tree looks like. A larger directory is read several times.
	batchAtTop = 16384
	batchLeast = 64
	readNamesN = 1024 // names that are read at once
)

// errStop ends a walk early.
var errStop = errors.New("stop")

// entry is a file that a walk visits. The directory is open during the visit only.
type entry struct {
	dir  int    // descriptor of the directory
	name string // name in the directory
	rel  string // path below the directory that is walked
	stat unix.Stat_t
}

// walk visits the entries below a directory in the order of their names. A directory comes before its content. A walk
// follows no link, because it opens each directory by its name in the directory above, without following links.
type walk struct {
	ctx      context.Context
	hidden   bool     // visit names that begin with a dot
	excludes []string // patterns of paths that are left out with all that is below them
	depth    int      // levels; -1: all
	after    string   // visit only paths that come after this one

	visit   func(*entry) error        // errStop ends the walk
	descend func(*entry) bool         // nil: walk all directories
	skipped func(rel string, e error) // a path that could not be visited
}

// checkPatterns refuses patterns that are not valid.
func checkPatterns(field string, patterns ...string) error {
	for _, p := range patterns {
		if !doublestar.ValidatePattern(p) {
			return protocol.Invalid(field, "the pattern %.200q is not valid", p)
		}
	}
	return nil
}

// matches reports whether a path matches one of the patterns, which are valid.
func matches(patterns []string, rel string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return doublestar.MatchUnvalidated(p, rel) })
}

// below walks the directory at a path. The path may lead through links.
func (w *walk) below(path string) error {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return failure(path, err)
	}
	return w.belowOpen(fd, path)
}

// belowOpen walks an open directory, and closes it.
func (w *walk) belowOpen(fd int, path string) error {
	var after []string
	if w.after != "" {
		after = strings.Split(w.after, "/")
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	err := w.directory(dir, "", 1, after)
	if errors.Is(err, errStop) {
		return nil
	}
	if by := (*refused)(nil); errors.As(err, &by) {
		err = by.error
	}
	return failure(path, err)
}

// refused is the error of a visit, which ends the walk. Other errors concern a directory, which is left out.
type refused struct{ error }

func (r *refused) Unwrap() error { return r.error }

// directory visits the entries of a directory. after has the parts of a path; entries up to it were visited before.
func (w *walk) directory(dir *os.File, rel string, level int, after []string) error {
	most := max(batchAtTop>>min(level-1, 20), batchLeast)
	from, including := "", true
	if len(after) > 0 {
		from = after[0]
	}
	for {
		names, more, err := namesAfter(w.ctx, dir, from, including, most)
		if err != nil {
			return err
		}
		for _, name := range names {
			var rest []string
			if len(after) > 0 && name == after[0] {
				rest = after[1:]
			}
			err := w.entry(int(dir.Fd()), name, rel, level, rest, len(after) > 0 && name == after[0])
			if err != nil {
				return err
			}
			from, including = name, false
		}
		if !more {
			return nil
		}
	}
}

// entry visits one entry and, if it is a directory, the entries below it.
func (w *walk) entry(dir int, name, parent string, level int, after []string, visited bool) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if !w.hidden && strings.HasPrefix(name, ".") {
		return nil
	}
	e := &entry{dir: dir, name: name, rel: name}
	if parent != "" {
		e.rel = parent + "/" + name
	}
	if matches(w.excludes, e.rel) {
		return nil
	}
	if err := unix.Fstatat(dir, name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err != unix.ENOENT { // it was removed meanwhile
			w.skip(e.rel, failure(e.rel, err))
		}
		return nil
	}
	if !visited {
		if err := w.visit(e); err != nil {
			return &refused{err}
		}
	}
	if typeOf(e.stat.Mode) != protocol.FileDirectory || w.depth >= 0 && level >= w.depth ||
		w.descend != nil && !w.descend(e) {
		return nil
	}
	return w.inside(e, level, after)
}

// inside walks an entry that is a directory.
func (w *walk) inside(e *entry, level int, after []string) error {
	if level >= maxDepth || len(e.rel) > maxRelative {
		w.skip(e.rel, tooLarge("the directory is nested too deeply"))
		return nil
	}
	fd, err := openAt(e.dir, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if err != unix.ENOENT { // it was removed meanwhile
			w.skip(e.rel, failure(e.rel, err))
		}
		return nil
	}
	inner := os.NewFile(uintptr(fd), e.name)
	defer inner.Close()
	err = w.directory(inner, e.rel, level+1, after)
	if by := (*refused)(nil); errors.As(err, &by) {
		return err
	}
	if errno := unix.Errno(0); errors.As(err, &errno) {
		w.skip(e.rel, failure(e.rel, errno))
		return nil
	}
	return err
}

func (w *walk) skip(rel string, err error) {
	if w.skipped != nil {
		w.skipped(rel, err)
	}
}

// namesAfter returns the first names of a directory after a name, sorted. more says that there are others.
func namesAfter(ctx context.Context, dir *os.File, after string, including bool, most int) (names []string, more bool,
	err error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, false, errnoOf(err)
	}
	cut := func() {
		slices.Sort(names)
		if len(names) > most {
			clear(names[most:])
			names, more = names[:most], true
		}
	}
	for ctx.Err() == nil {
		some, err := dir.Readdirnames(readNamesN)
		for _, name := range some {
			if name > after || including && name == after {
				names = append(names, name)
			}
		}
		if len(names) > 2*most {
			cut()
		}
		if errors.Is(err, io.EOF) {
			cut()
			return names, more, nil
		}
		if err != nil {
			return nil, false, errnoOf(err)
		}
	}
	return nil, false, ctx.Err()
}

// errnoOf returns the kernel's error without the path that package os adds.
func errnoOf(err error) error {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

// skips counts the paths that an operation left out, and keeps the first ones.
type skips struct {
	kept  []protocol.FileSkip
	count int64
	bytes int
}

// skipBytes limits the size of the paths and errors that are remembered about skipped files.
const skipBytes = 64 << 10

func (s *skips) add(rel string, err error) {
	s.count++
	e := protocol.AsError(failure(rel, err))
	if s.bytes += len(rel) + len(e.Message); len(s.kept) < protocol.MaxFileSkips && s.bytes <= skipBytes {
		s.kept = append(s.kept, protocol.FileSkip{Path: rel, Error: e})
	}
}
