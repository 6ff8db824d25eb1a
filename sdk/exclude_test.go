package sdk

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestExcludedIsWhatAGitignoreWouldIgnore(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		name     string
		dir, out bool
	}{
		{[]string{"*.pyc"}, "a.pyc", false, true},
		{[]string{"*.pyc"}, "deep/down/a.pyc", false, true},
		{[]string{"*.pyc"}, "a.py", false, false},
		{[]string{".venv"}, "sub/.venv", true, true},
		{[]string{"/bin"}, "bin", true, true},
		{[]string{"/bin"}, "cmd/bin", true, false},
		{[]string{"docs/*.pdf"}, "docs/a.pdf", false, true},
		{[]string{"docs/*.pdf"}, "docs/deep/a.pdf", false, false},
		{[]string{"docs/**/*.pdf"}, "docs/a.pdf", false, true},
		{[]string{"docs/**/*.pdf"}, "docs/deep/down/a.pdf", false, true},
		{[]string{"build/"}, "sub/build", true, true},
		{[]string{"build/"}, "sub/build", false, false},
		{[]string{"a/b/"}, "a/b", true, true},
		{[]string{"*", "!keep"}, "keep", false, false},
		{[]string{"*", "!keep"}, "other", false, true},
		{[]string{"!keep", "*"}, "keep", false, true},
		{[]string{"", "# nothing", "f"}, "# nothing", false, false},
		{[]string{`\#file`}, "#file", false, true},
		{[]string{`\!file`}, "!file", false, true},
		{[]string{`\*`}, "*", false, true},
		{[]string{`\*`}, "a", false, false},
		{[]string{"left out"}, "left out", true, true},
		{[]string{"[ab]?c"}, "axc", false, true},
	} {
		e, err := parseExclude(c.patterns)
		if err != nil {
			t.Errorf("%q: %v", c.patterns, err)
		} else if got := e.matches(c.name, c.dir); got != c.out {
			t.Errorf("%q, %s: left out %v, want %v", c.patterns, c.name, got, c.out)
		}
	}
	for _, bad := range []string{"[", "a/[", `\`, "/", "!", "a\x00", "{a"} {
		if err := CheckExclude([]string{"fine", bad}); protocol.AsError(err) == nil || protocol.AsError(err).Field != "exclude[1]" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
