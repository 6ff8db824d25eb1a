package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	// maxWatched limits the memory for the directories of one watch.
	maxWatched = 65536
	// watchBuffer is the size of the buffer for the kernel's events, in bytes.
	watchBuffer = 64 << 10
	// maxReported and maxReportedBytes limit how many events, and how many bytes of paths, are in one reply.
	maxReported      = 256
	maxReportedBytes = protocol.MaxFileResult / 2

	watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
		unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

// watcher is the state of one watch.
type watcher struct {
	ctx      context.Context
	h        *helper
	r        *protocol.FileWatch
	top      string // absolute path of the watched directory
	fd       int    // descriptor of the inotify instance
	paths    map[int32]string
	watches  map[string]int32
	events   []protocol.FileEvent
	rescan   error // why events may be missing; reported once
	vanished bool  // the watched directory itself is gone

	// moving is a directory that was moved, until the next event says where to. Its watches stay meanwhile, so that no
	// change in it is lost if it stays below the watched directory.
	moving struct {
		cookie uint32 // 0: there is none
		rel    string
	}
}

// watch reports changes until ctx ends, or the directory is gone.
func (h *helper) watch(ctx context.Context, r *protocol.FileWatch) error {
	if err := checkPatterns("excludes", r.Excludes...); err != nil {
		return err
	}
	at, err := h.path("path", r.Path)
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return noWatch(err)
	}
	notices := os.NewFile(uintptr(fd), "inotify")
	defer notices.Close()
	defer context.AfterFunc(ctx, func() { notices.Close() })()
	w := &watcher{ctx: ctx, h: h, r: r, top: at, fd: fd, paths: map[int32]string{}, watches: map[string]int32{}}
	if err := w.begin(); err != nil {
		return err
	}
	buf := make([]byte, watchBuffer)
	for {
		if err := w.report(); err != nil {
			return err
		}
		if w.vanished {
			return failure(r.Path, unix.ENOENT)
		}
		n, err := notices.Read(buf)
		if err != nil {
			return failure(r.Path, err)
		}
		w.take(buf[:n])
	}
}

// noWatch is the error for a user who has reached the kernel's limits of inotify.
func noWatch(err error) error {
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonRescan,
		"the kernel's limit of watched directories for this user is reached, so changes cannot be reported: %v", err)
}

// begin watches the directories that exist.
func (w *watcher) begin() error {
	fd, err := openAt(unix.AT_FDCWD, w.top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return failure(w.r.Path, err)
	}
	if err := w.add(fd, ""); err != nil {
		unix.Close(fd)
		return err
	}
	if err := w.addBelow(fd, "", false); err != nil {
		return err
	}
	w.events = append(w.events, protocol.FileEvent{Kind: protocol.FileWatching})
	return nil
}

// addBelow watches the directories below a directory, and closes it. With created, it reports everything that it finds
// as created: these entries appeared before the watch began, so the kernel reports no events for them.
func (w *watcher) addBelow(fd int, rel string, created bool) error {
	if !w.r.Recursive {
		unix.Close(fd)
		return nil
	}
	walked := walk{ctx: w.ctx, hidden: true, depth: -1}
	walked.skipped = func(_ string, err error) { w.rescan = err }
	walked.descend = func(e *entry) bool { return !w.excluded(join(rel, e.rel)) }
	walked.visit = func(e *entry) error {
		at := join(rel, e.rel)
		if w.excluded(at) {
			return nil
		}
		directory := typeOf(e.stat.Mode) == protocol.FileDirectory
		if created {
			w.add1(protocol.FileCreated, at, directory, 0)
			if len(w.events) >= maxReported {
				if err := w.report(); err != nil {
					return err
				}
			}
		}
		if !directory {
			return nil
		}
		inner, err := openAt(e.dir, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			if err != unix.ENOENT {
				w.rescan = failure(at, err)
			}
			return nil
		}
		defer unix.Close(inner)
		return w.add(inner, at)
	}
	return walked.belowOpen(fd, rel)
}

func join(parent, rel string) string {
	if parent == "" {
		return rel
	}
	return parent + "/" + rel
}

func (w *watcher) excluded(rel string) bool { return matches(w.r.Excludes, rel) }

// add watches one open directory. If the kernel's limit is reached, the watch continues without the directory, and
// reports that a rescan is needed. For the first directory, that is an error.
func (w *watcher) add(fd int, rel string) error {
	if len(w.paths) >= maxWatched {
		w.rescan = tooLarge("more than %d directories are below the watched one", maxWatched)
		return nil
	}
	wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", fd), watchMask)
	switch {
	case err == unix.ENOSPC || err == unix.ENOMEM:
		if rel == "" {
			return noWatch(err)
		}
		w.rescan = noWatch(err)
		return nil
	case err != nil && rel == "":
		return failure(w.r.Path, err)
	case err != nil:
		w.rescan = failure(rel, err)
		return nil
	}
	w.forgetWatch(int32(wd))
	w.paths[int32(wd)], w.watches[rel] = rel, int32(wd)
	return nil
}

func (w *watcher) forgetWatch(wd int32) {
	if rel, known := w.paths[wd]; known {
		delete(w.paths, wd)
		if w.watches[rel] == wd {
			delete(w.watches, rel)
		}
	}
}

// forgetTree ends the watches of a directory that was moved away, and of the directories below it.
func (w *watcher) forgetTree(rel string) {
	for at, wd := range w.watches {
		if at == rel || strings.HasPrefix(at, rel+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // the directory may be gone
			w.forgetWatch(wd)
		}
	}
}

func (w *watcher) add1(kind protocol.FileEventKind, rel string, directory bool, cookie uint32) {
	e := protocol.FileEvent{Kind: kind, Path: rel, Cookie: cookie}
	if directory {
		e.Type = protocol.FileDirectory
	}
	w.events = append(w.events, e)
}

// take handles the kernel's events.
func (w *watcher) take(buf []byte) {
	for len(buf) >= unix.SizeofInotifyEvent {
		raw := (*unix.InotifyEvent)(unsafe.Pointer(&buf[0]))
		end := unix.SizeofInotifyEvent + int(raw.Len)
		if end > len(buf) {
			return
		}
		name, _, _ := bytes.Cut(buf[unix.SizeofInotifyEvent:end], []byte{0})
		w.one(raw.Wd, raw.Mask, raw.Cookie, string(name))
		buf = buf[end:]
	}
}

// kinds translates the kernel's events. They are checked in this order.
var kinds = []struct {
	mask uint32
	kind protocol.FileEventKind
}{
	{unix.IN_CREATE, protocol.FileCreated},
	{unix.IN_DELETE, protocol.FileRemoved},
	{unix.IN_MOVED_FROM, protocol.FileMovedOut},
	{unix.IN_MOVED_TO, protocol.FileMovedIn},
	{unix.IN_MODIFY, protocol.FileModified},
	{unix.IN_ATTRIB, protocol.FileChanged},
}

func (w *watcher) one(wd int32, mask, cookie uint32, name string) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.overflow()
		return
	}
	arrived := w.moving.cookie != 0 && mask&unix.IN_MOVED_TO != 0 && cookie == w.moving.cookie
	if w.moving.cookie != 0 && !arrived && mask&unix.IN_MOVE_SELF == 0 {
		w.forgetTree(w.moving.rel) // it left the watched directory
		w.moving.cookie = 0
	}
	parent, known := w.paths[wd]
	switch {
	case !known:
		return
	case mask&unix.IN_IGNORED != 0:
		w.forgetWatch(wd)
		return
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		if parent == "" { // otherwise the directory above reports it too
			w.add1(protocol.FileRemoved, "", true, 0)
			w.vanished = true
		}
		return
	}
	rel := join(parent, name)
	directory := mask&unix.IN_ISDIR != 0
	if name == "" {
		rel, directory = parent, true
	}
	if rel != "" && w.excluded(rel) {
		return
	}
	for _, k := range kinds {
		if mask&k.mask == 0 {
			continue
		}
		w.merge(k.kind, rel, directory, cookie)
		break
	}
	if !directory || !w.r.Recursive || name == "" {
		return
	}
	switch {
	case mask&unix.IN_DELETE != 0:
		w.forgetTree(rel)
	case mask&unix.IN_MOVED_FROM != 0:
		w.moving.cookie, w.moving.rel = cookie, rel
	case arrived:
		w.renameTree(w.moving.rel, rel)
		w.moving.cookie = 0
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		w.enter(rel)
	}
}

// renameTree gives the watches of a moved directory, and of the directories below it, their new paths.
func (w *watcher) renameTree(from, to string) {
	for wd, at := range w.paths {
		if at == from || strings.HasPrefix(at, from+"/") {
			delete(w.watches, at)
			w.paths[wd] = to + at[len(from):]
		}
	}
	for wd, at := range w.paths {
		w.watches[at] = wd
	}
}

// merge adds an event, unless it repeats the last one: a file that is written causes many equal events.
func (w *watcher) merge(kind protocol.FileEventKind, rel string, directory bool, cookie uint32) {
	if last := len(w.events) - 1; last >= 0 && w.events[last].Kind == kind && w.events[last].Path == rel && cookie == 0 {
		return
	}
	w.add1(kind, rel, directory, cookie)
}

// enter watches a directory that has appeared, and the directories below it. It reports their entries as created.
func (w *watcher) enter(rel string) {
	fd, err := w.open(rel)
	if err != nil {
		return // it is gone again, or was replaced, which another event says
	}
	if err := w.add(fd, rel); err != nil {
		unix.Close(fd)
		return
	}
	if err := w.addBelow(fd, rel, true); err != nil {
		w.rescan = failure(rel, err)
	}
}

// open opens a directory below the watched one, step by step, without following links.
func (w *watcher) open(rel string) (int, error) {
	fd, err := openAt(unix.AT_FDCWD, w.top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	for name := range strings.SplitSeq(rel, "/") {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = openAt(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		unix.Close(fd)
		fd = next
	}
	return fd, err
}

// overflow handles the loss of events: it watches every directory again.
func (w *watcher) overflow() {
	w.rescan = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonRescan,
		"changes came faster than they were read, so the kernel dropped some of them")
	for wd := range w.paths {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // the directory may be gone
		w.forgetWatch(wd)
	}
	fd, err := openAt(unix.AT_FDCWD, w.top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		w.vanished = true
		return
	}
	if err := w.add(fd, ""); err != nil {
		unix.Close(fd)
		return
	}
	if err := w.addBelow(fd, "", false); err != nil && !errors.Is(err, context.Canceled) {
		w.rescan = err
	}
}

// report sends the events that wait.
func (w *watcher) report() error {
	if w.rescan != nil {
		w.events = append(w.events, protocol.FileEvent{Kind: protocol.FileRescan, Error: protocol.AsError(w.rescan)})
		w.rescan = nil
	}
	for len(w.events) > 0 {
		n := 1
		for size := len(w.events[0].Path); n < min(len(w.events), maxReported); n++ {
			if size += len(w.events[n].Path); size > maxReportedBytes {
				break
			}
		}
		some := w.events[:n]
		if err := w.h.answer(&control.FileReply{Events: &protocol.FileEvents{Events: some}}, nil); err != nil {
			return err
		}
		w.events = w.events[len(some):]
	}
	w.events = nil
	return nil
}
