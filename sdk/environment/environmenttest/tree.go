package environmenttest

import (
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

const (
	modeFile      = 0o644 // of a new file
	modeDirectory = fs.ModeDir | 0o755
	modeNull      = fs.ModeDevice | fs.ModeCharDevice | 0o666
)

// tree holds files in memory. Paths are absolute and clean.
type tree struct {
	mu   sync.Mutex
	root *node
}

// node is a file, a directory, or the null device.
type node struct {
	mode    fs.FileMode
	changed time.Time
	content []byte
	entries map[string]*node // of a directory
}

func newTree() *tree {
	return &tree{root: directory(map[string]*node{"dev": directory(map[string]*node{"null": {mode: modeNull}}),
		"tmp": directory(nil)})}
}

func directory(entries map[string]*node) *node {
	if entries == nil {
		entries = map[string]*node{}
	}
	return &node{mode: modeDirectory, changed: time.Now(), entries: entries}
}

// find returns the node at a path. Errors: NotFound, and NotDirectory if a part of the path is a file.
func (t *tree) find(name string) (*node, environment.Kind) {
	at := t.root
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if part == "" {
			continue
		}
		if at.entries == nil {
			return nil, environment.NotDirectory
		}
		if at = at.entries[part]; at == nil {
			return nil, environment.NotFound
		}
	}
	return at, ""
}

// makeDirectory returns the directory at a path, and makes it with those above if parents is set.
func (t *tree) makeDirectory(name string, parents bool) (*node, environment.Kind) {
	if found, kind := t.find(name); found != nil && found.entries == nil {
		return nil, environment.NotDirectory
	} else if found != nil || kind != environment.NotFound {
		return found, kind
	}
	above, kind := t.find(path.Dir(name))
	if parents {
		above, kind = t.makeDirectory(path.Dir(name), true)
	}
	switch {
	case kind != "":
		return nil, kind
	case above.entries == nil:
		return nil, environment.NotDirectory
	}
	made := directory(nil)
	above.entries[path.Base(name)] = made
	return made, ""
}

// regular returns a file, which it makes if create is set.
func (t *tree) regular(name string, create bool) (*node, environment.Kind) {
	found, kind := t.find(name)
	switch {
	case found != nil && found.entries != nil:
		return nil, environment.IsDirectory
	case found != nil && !found.mode.IsRegular():
		return nil, environment.NotRegular
	case found != nil || !create || kind != environment.NotFound:
		return found, kind
	}
	above, kind := t.find(path.Dir(name))
	switch {
	case kind != "":
		return nil, kind
	case above.entries == nil:
		return nil, environment.NotDirectory
	}
	found = &node{mode: modeFile, changed: time.Now()}
	above.entries[path.Base(name)] = found
	return found, ""
}

func (t *tree) read(name string) ([]byte, environment.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, kind := t.regular(name, false)
	if kind != "" {
		return nil, kind
	}
	return slices.Clone(found.content), ""
}

func (t *tree) write(name string, content []byte) environment.Kind {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, kind := t.find(name); found == nil && kind == environment.NotFound {
		if _, kind := t.makeDirectory(path.Dir(name), true); kind != "" {
			return kind
		}
	}
	found, kind := t.regular(name, true)
	if kind == "" {
		found.content, found.changed = slices.Clone(content), time.Now()
	}
	return kind
}

// remove removes a file, and a directory with all that is in it if all is set.
func (t *tree) remove(name string, all bool) environment.Kind {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, _ := t.find(name); found == nil || found.entries == nil || !all || name == "/" {
		if _, kind := t.regular(name, false); kind != "" {
			return kind
		}
	}
	above, kind := t.find(path.Dir(name))
	if kind == "" {
		delete(above.entries, path.Base(name))
	}
	return kind
}

// list returns the entries of a directory, sorted by name.
func (t *tree) list(name string) ([]info, environment.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, kind := t.find(name)
	switch {
	case kind != "":
		return nil, kind
	case found.entries == nil:
		return nil, environment.NotDirectory
	}
	all := []info{}
	for _, name := range slices.Sorted(maps.Keys(found.entries)) {
		all = append(all, found.entries[name].info(name))
	}
	return all, ""
}

func (t *tree) stat(name string) (info, environment.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, kind := t.find(name)
	if kind != "" {
		return info{}, kind
	}
	return found.info(path.Base(name)), ""
}

// move gives a file or a directory another name, and replaces a file of that name.
func (t *tree) move(from, to string) environment.Kind {
	t.mu.Lock()
	defer t.mu.Unlock()
	moved, kind := t.find(from)
	if kind != "" {
		return kind
	}
	if from == "/" || to == from || strings.HasPrefix(to, from+"/") || !moved.mode.IsRegular() && moved.entries == nil {
		return environment.Failed
	}
	if into, _ := t.find(to); into != nil && into.entries != nil {
		to = path.Join(to, path.Base(from))
	}
	if _, kind := t.regular(to, true); kind != "" {
		return kind
	}
	above, _ := t.find(path.Dir(to)) // regular has found it
	above.entries[path.Base(to)] = moved
	above, _ = t.find(path.Dir(from)) // it holds moved
	delete(above.entries, path.Base(from))
	return ""
}

// info describes a node as it was. It implements fs.FileInfo.
type info struct {
	name    string
	size    int64
	mode    fs.FileMode
	changed time.Time
}

func (n *node) info(name string) info { return info{name, int64(len(n.content)), n.mode, n.changed} }

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return i.changed }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }

func (i info) kind() environment.FileType {
	switch {
	case i.mode.IsDir():
		return environment.TypeDirectory
	case i.mode.IsRegular():
		return environment.TypeFile
	}
	return environment.TypeOther
}

// handle is a file that a command has opened.
type handle struct {
	t      *tree
	file   *node // nil for the null device
	at     int
	append bool
}

// open opens a file as a shell does for a redirection.
func (t *tree) open(name string, flag int) (*handle, environment.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, _ := t.find(name); found != nil && found.mode == modeNull {
		return &handle{t: t}, ""
	}
	file, kind := t.regular(name, flag&os.O_CREATE != 0)
	if kind != "" {
		return nil, kind
	}
	if flag&os.O_TRUNC != 0 {
		file.content = nil
	}
	return &handle{t: t, file: file, append: flag&os.O_APPEND != 0}, ""
}

func (h *handle) Read(p []byte) (int, error) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	if h.file == nil || h.at >= len(h.file.content) {
		return 0, io.EOF
	}
	n := copy(p, h.file.content[h.at:])
	h.at += n
	return n, nil
}

func (h *handle) Write(p []byte) (int, error) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	if h.file == nil {
		return len(p), nil
	}
	if h.append {
		h.at = len(h.file.content)
	}
	if missing := h.at + len(p) - len(h.file.content); missing > 0 {
		h.file.content = append(h.file.content, make([]byte, missing)...)
	}
	copy(h.file.content[h.at:], p)
	h.at += len(p)
	h.file.changed = time.Now()
	return len(p), nil
}

func (h *handle) Close() error { return nil }
