package sdk

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/boxfleet/boxfleet/protocol"
)

// exclusion says which entries of a tree to leave out. If several patterns match an entry, the last pattern decides.
type exclusion []excludePattern

type excludePattern struct {
	glob    []string // one glob for each name in a path; "**" matches any number of directories
	include bool     // the pattern began with "!"
	dirs    bool     // the pattern ended with "/": it matches directories only
}

// CheckExclude checks the patterns of [WithExclude]. Its error is invalid_argument naming "exclude[i]". The patterns
// have the syntax of a .gitignore file:
//
//   - a pattern that has no slash, or only one at its end, matches a name at any depth: *.pyc, .venv
//   - any other pattern matches a path from the root of the tree: /bin, docs/*.pdf
//   - * and ? match within a name, [a-z] matches one character, ** matches any number of directories; a /** at the end
//     matches everything in a directory but not the directory itself
//   - a pattern with a slash at the end matches only directories, and so leaves out everything below them
//   - ! at the beginning includes again what an earlier pattern left out, unless a directory above is left out
//   - a backslash escapes the next character; spaces at the end, empty patterns and patterns that begin with # are
//     ignored
//
// Unlike git, a leading ./ and doubled slashes are ignored, and character classes such as [[:alpha:]] are refused.
func CheckExclude(patterns []string) error {
	_, err := parseExclude(patterns)
	return err
}

func parseExclude(patterns []string) (exclusion, error) {
	var e exclusion
	for i, text := range patterns {
		if text = trimSpaces(text); text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		p, ok := parsePattern(text)
		if !ok {
			return nil, protocol.Invalid(fmt.Sprintf("exclude[%d]", i), "is not a pattern: %.80q", text)
		}
		e = append(e, p)
	}
	return e, nil
}

// trimSpaces removes the spaces at the end. If a backslash escapes the first of these spaces, trimSpaces keeps all of
// them.
func trimSpaces(text string) string {
	trimmed := strings.TrimRight(text, " ")
	if strings.HasSuffix(trimmed, `\`) {
		return text
	}
	return trimmed
}

// classNames matches the beginning of a character class, which doublestar does not support.
var classNames = regexp.MustCompile(`\[[^]]*\[:`)

func parsePattern(text string) (p excludePattern, ok bool) {
	glob, include := strings.CutPrefix(text, "!")
	glob, dirs := strings.CutSuffix(glob, "/")
	if strings.Contains(glob, "/") {
		glob = path.Clean(strings.TrimPrefix(glob, "/"))
	} else {
		glob = "**/" + glob
	}
	if strings.HasSuffix(glob, "/") || glob == "." || strings.ContainsRune(glob, 0) || classNames.MatchString(glob) {
		return p, false
	}
	p = excludePattern{strings.Split(glob, "/"), include, dirs}
	for i, name := range p.glob {
		p.glob[i] = nameGlob(name)
	}
	return p, !slices.ContainsFunc(p.glob, func(name string) bool { return !doublestar.ValidatePattern(name) })
}

// nameGlob translates one name of a pattern into a glob of doublestar. { and } are literal. Several stars in a row mean
// the same as one star, unless the name consists only of stars.
func nameGlob(name string) string {
	if len(name) > 1 && strings.Trim(name, "*") == "" {
		return "**"
	}
	var b strings.Builder
	escaped, star := false, false
	for _, r := range name {
		if star && r == '*' {
			continue
		}
		if !escaped && (r == '{' || r == '}') {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
		escaped, star = r == '\\' && !escaped, r == '*' && !escaped
	}
	return b.String()
}

// matches reports whether to leave out an entry. name is the path of the entry in the tree.
func (e exclusion) matches(name string, dir bool) bool {
	out := false
	names := strings.Split(name, "/")
	for _, p := range e {
		if p.include == out && (dir || !p.dirs) && matchNames(p.glob, names) {
			out = !p.include
		}
	}
	return out
}

// matchNames compares a path with a glob name by name, so only ** matches across a slash.
func matchNames(glob, names []string) bool {
	if len(glob) == 0 || len(names) == 0 {
		return len(glob) == len(names)
	}
	if glob[0] == "**" {
		return len(glob) == 1 || matchNames(glob[1:], names) || matchNames(glob, names[1:])
	}
	return doublestar.MatchUnvalidated(glob[0], names[0]) && matchNames(glob[1:], names[1:])
}
