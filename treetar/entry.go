package treetar

import (
	"archive/tar"
	"path"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// maxLinkBytes bounds the memory for the names of a tree's symbolic links.
const maxLinkBytes = 32 << 20

// accept returns the header that an entry gets below Root, or nil if the entry is not written. It refuses entries
// that could reach anything outside the tree.
func (w *rewriter) accept(h *tar.Header) (*tar.Header, error) {
	name := path.Clean(h.Name)
	if err := w.check(h, name); err != nil {
		return nil, err
	}
	e := &tar.Header{Typeflag: h.Typeflag, Name: path.Join(w.Root, name), Format: tar.FormatPAX}
	w.describe(e, h)
	delete(w.links, name) // a later entry replaces an earlier one of the same name
	switch h.Typeflag {
	case tar.TypeReg:
		if w.single = name == "."; w.single && w.begun {
			return nil, refuse("entry %.200q is a file, but an earlier entry made it a directory", h.Name)
		}
		e.Size = h.Size
	case tar.TypeDir:
		if name == "." {
			return nil, nil // Root exists, or makeMissing created it
		}
		e.Name += "/"
	case tar.TypeSymlink:
		return e, w.symlink(e, h, name)
	case tar.TypeLink:
		return e, w.hardLink(e, h, name)
	default:
		return nil, refuse("entry %.200q is neither a directory, a file nor a link", h.Name)
	}
	return e, nil
}

// check refuses names, owners and formats that no type of entry may have. name is the cleaned form of h.Name.
func (w *rewriter) check(h *tar.Header, name string) error {
	if why := protocol.TreePathError(h.Name); why != "" {
		return refuse("entry %.200q %s", h.Name, why)
	}
	if link := w.linkAbove(name); link != "" {
		return refuse("entry %.200q goes through the link %.200q", h.Name, link)
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
		return refuse("entry %.200q has the invalid owner %d:%d", h.Name, h.Uid, h.Gid)
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") { // a sparse file: a few bytes that expand to any size
			return refuse("entry %.200q is a sparse file", h.Name)
		}
	}
	return nil
}

// symlink completes the header of a symbolic link, which must lead to a place in the tree.
func (w *rewriter) symlink(e, h *tar.Header, name string) error {
	if name == "." || !protocol.TreeLinkStays(name, h.Linkname) {
		return refuse("link %.200q leads out of the tree, to %.200q", h.Name, h.Linkname)
	}
	if w.linkBytes += len(name); w.linkBytes > maxLinkBytes {
		return refuse("the tree has too many links")
	}
	w.links[name], e.Linkname = true, h.Linkname
	return nil
}

// hardLink completes the header of a hard link, which must name another entry of the tree and not go through a
// symbolic link.
func (w *rewriter) hardLink(e, h *tar.Header, name string) error {
	to := path.Clean(h.Linkname)
	if why := protocol.TreePathError(h.Linkname); why != "" || to == "." || name == "." {
		return refuse("hard link %.200q leads out of the tree, to %.200q", h.Name, h.Linkname)
	}
	if w.links[to] || w.linkAbove(to) != "" {
		return refuse("hard link %.200q goes through a link, to %.200q", h.Name, h.Linkname)
	}
	e.Linkname = path.Join(w.Root, to)
	return nil
}

// describe gives e the owner, mode and time of the uploaded entry h.
func (w *rewriter) describe(e, h *tar.Header) {
	e.Uid, e.Gid, e.Mode, e.ModTime = h.Uid, h.Gid, h.Mode&0o7777, h.ModTime
	if w.UID >= 0 {
		e.Uid, e.Gid = w.UID, w.GID
	}
}

// linkAbove returns the symbolic link of the tree that a name would go through, or "". The rewriter refuses such a
// name, because names alone do not show where the link leads, nor what ".." means below the link.
func (w *rewriter) linkAbove(name string) string {
	if len(w.links) == 0 {
		return ""
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if w.links[dir] {
			return dir
		}
	}
	return ""
}
