package protocol

import (
	"path"
	"strconv"
	"strings"
)

// Limits on a tree that is copied into a sandbox. The uploader keeps within them, and the worker enforces them.
const (
	MaxTreeEntries = 1_000_000
	MaxTreeBytes   = Bytes(64 << 30)
	MaxTreeDepth   = 256  // nested directories
	MaxTreePath    = 4096 // bytes of an entry's path or a link's target
	MaxTreeName    = 255  // bytes of one path component
)

// Owners returns the ids that own everything in the copy, or -1, -1 to keep the ids in its tar stream. The default gid
// is the uid. ok is false if Owner is invalid.
func (c *Copy) Owners() (uid, gid int, ok bool) {
	if c.Owner == "" {
		return -1, -1, true
	}
	u, g, both := strings.Cut(c.Owner, ":")
	if !both {
		g = u
	}
	user, err := parseID(u)
	if err != nil {
		return 0, 0, false
	}
	group, err := parseID(g)
	return user, group, err == nil
}

// parseID parses a uid or gid in canonical decimal form. It rejects the largest value, which means "no id" to the
// kernel.
func parseID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 || strconv.FormatUint(n, 10) != s {
		return 0, strconv.ErrSyntax
	}
	return int(n), nil
}

// TreePathError describes what is wrong with an entry's path, or returns "" if it is valid.
func TreePathError(name string) string {
	clean := path.Clean(name)
	switch {
	case strings.ContainsRune(name, 0):
		return "has a NUL byte"
	case path.IsAbs(name), clean == "..", strings.HasPrefix(clean, "../"):
		return "points outside the tree"
	case len(name) > MaxTreePath:
		return "has a path that is too long"
	case strings.Count(clean, "/") >= MaxTreeDepth:
		return "is nested too deeply"
	}
	for part := range strings.SplitSeq(clean, "/") {
		if len(part) > MaxTreeName {
			return "has a name that is too long"
		}
	}
	return ""
}

// TreeLinkStays reports whether the target of a symbolic link is inside its tree. ".." is valid only at the
// beginning of the target. After a name, the text does not show where ".." leads, because the name may itself be
// a link.
func TreeLinkStays(name, text string) bool {
	if text == "" || len(text) > MaxTreePath || path.IsAbs(text) || strings.ContainsRune(text, 0) {
		return false
	}
	named := false
	for part := range strings.SplitSeq(text, "/") {
		switch {
		case part == ".." && named:
			return false
		case part != ".." && part != "." && part != "":
			named = true
		}
	}
	leads := path.Join(path.Dir(path.Clean(name)), text)
	return leads != ".." && !strings.HasPrefix(leads, "../")
}
