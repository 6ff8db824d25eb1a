package protocol

import (
	"path"
	"strconv"
	"strings"
)

// Bounds of a tree that is copied into a sandbox. Who uploads one keeps them, and the worker checks.
const (
	MaxTreeEntries = 1_000_000
	MaxTreeBytes   = Bytes(64 << 30)
	MaxTreeDepth   = 256  // directories in one another
	MaxTreePath    = 4096 // bytes of an entry's path, and of a link's
	MaxTreeName    = 255  // bytes of one name
)

// Owners are the ids that everything in a copy belongs to; -1, -1 where those in its tar stream
// stay. A uid without a gid is its own group's.
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

// parseID reads a uid or a gid in its plain form. The kernel takes the largest for none.
func parseID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 || strconv.FormatUint(n, 10) != s {
		return 0, strconv.ErrSyntax
	}
	return int(n), nil
}

// TreePathError says what is wrong with the path of an entry of a tree, "" when nothing is.
func TreePathError(name string) string {
	clean := path.Clean(name)
	switch {
	case strings.ContainsRune(name, 0):
		return "has a NUL byte"
	case path.IsAbs(name), clean == "..", strings.HasPrefix(clean, "../"):
		return "leads out of the tree"
	case len(name) > MaxTreePath:
		return "has a path that is too long"
	case strings.Count(clean, "/") >= MaxTreeDepth:
		return "lies too deep"
	}
	for part := range strings.SplitSeq(clean, "/") {
		if len(part) > MaxTreeName {
			return "has a name that is too long"
		}
	}
	return ""
}

// TreeLinkStays says whether a symbolic link of a tree leads to something in the tree. Its text may
// go up only at its beginning: after a name, which may be that of a link, nobody can tell without
// following where ".." leads.
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
