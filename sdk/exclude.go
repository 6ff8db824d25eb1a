package sdk

import (
	"fmt"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/boxfleet/boxfleet/protocol"
)

// exclusion says what of a tree is left out: the last pattern that matches decides.
type exclusion []excludePattern

type excludePattern struct {
	glob    string
	include bool // begins with "!"
	dirs    bool // ends with "/": directories only
}

// CheckExclude says whether patterns are well-formed: invalid_argument naming "exclude[i]". They are
// those of a .gitignore:
//
//   - a pattern without a slash, or with one only at its end, matches a name at any depth: *.pyc, .venv
//   - any other matches a path from the root of the tree on: /bin, docs/*.pdf
//   - * and ? match within a name, [a-z] one character, ** any number of directories
//   - a slash at the end matches directories only; what is in them is left out too
//   - ! at the beginning takes back what an earlier pattern left out, but for what is in a directory
//     that is left out
//   - a backslash takes the next character as it is; empty patterns, and those that begin with #,
//     say nothing
func CheckExclude(patterns []string) error {
	_, err := parseExclude(patterns)
	return err
}

func parseExclude(patterns []string) (exclusion, error) {
	var e exclusion
	for i, text := range patterns {
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		var p excludePattern
		p.glob, p.include = strings.CutPrefix(text, "!")
		p.glob, p.dirs = strings.CutSuffix(p.glob, "/")
		if strings.Contains(p.glob, "/") {
			p.glob = path.Clean(strings.TrimPrefix(p.glob, "/"))
		} else {
			p.glob = "**/" + p.glob
		}
		if strings.HasSuffix(p.glob, "/") || p.glob == "." || strings.ContainsRune(text, 0) || !doublestar.ValidatePattern(p.glob) {
			return nil, protocol.Invalid(fmt.Sprintf("exclude[%d]", i), "is not a pattern: %.80q", text)
		}
		e = append(e, p)
	}
	return e, nil
}

// matches says whether an entry is left out. name is its path in the tree.
func (e exclusion) matches(name string, dir bool) bool {
	out := false
	for _, p := range e {
		if p.include == out && (dir || !p.dirs) && doublestar.MatchUnvalidated(p.glob, name) {
			out = !p.include
		}
	}
	return out
}
