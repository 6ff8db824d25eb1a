package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestPatternsExcludeLikeAGitignore(t *testing.T) {
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
		{[]string{"build/**", "!build/keep"}, "build", true, false},
		{[]string{"build/**", "!build/keep"}, "build/keep", false, false},
		{[]string{"build/**", "!build/keep"}, "build/other", false, true},
		{[]string{"a{b,c}"}, "ab", false, false},
		{[]string{"a{b,c}"}, "a{b,c}", false, true},
		{[]string{`\{a}`}, "{a}", false, true},
		{[]string{"a[!b]c"}, "a/c", false, false},
		{[]string{"ends  "}, "ends", false, true},
	} {
		e, err := parseExclude(c.patterns)
		if err != nil {
			t.Errorf("%q: %v", c.patterns, err)
		} else if got := e.matches(c.name, c.dir); got != c.out {
			t.Errorf("%q, %s: left out %v, want %v", c.patterns, c.name, got, c.out)
		}
	}
	for _, bad := range []string{"[", "a/[", `\`, "/", "!", "a\x00", "[[:alpha:]]"} {
		if err := CheckExclude([]string{"fine", bad}); protocol.AsError(err) == nil ||
			protocol.AsError(err).Field != "exclude[1]" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPatternsExcludeWhatGitIgnores(t *testing.T) {
	git := gitIn(t, t.TempDir())
	names := []string{
		"a", "ab", "a{b,c}", "{a}", "axc", "#a", "!a", "a b", "a.log", "keep", "build/", "build/keep", "build/a.log",
		"build/deep/", "build/deep/keep",
		"sub/", "sub/build/", "sub/build/keep", "sub/a.log", "sub/{a}/", "sub/{a}/ab", "docs/", "docs/a", "docs/c",
		"docs/deep/", "docs/deep/a", "d/", "d/c",
	}
	git.make(t, names)
	for _, patterns := range [][]string{
		{"*.log"}, {"build"}, {"/build"}, {"build/"}, {"sub/build"}, {"*", "!keep"}, {"*", "!*/", "!keep"},
		{"*.log", "!/a.log"},
		{"build/**"}, {"build/**", "!build/keep"}, {"build/**", "!build/deep", "!build/deep/keep"},
		{"build/**/", "!build/deep/keep"}, {"build/*", "!build/keep"},
		{"build", "!build/keep"}, {"**/build/**"}, {"**"}, {"/**"}, {"**/"}, {"docs/**/a"}, {"**/a"}, {"***/a"}, {"a**"},
		{"a***b"}, {"docs/**", "!docs/**/"},
		{"a{b,c}"}, {"{a}"}, {`\{a}`}, {"{a,ab}"}, {"[{]a}"}, {"sub/{a}/"}, {"{a"}, {"a}"},
		{"[ab]?c"}, {"[!a]*"}, {"[^a]*"}, {"d[!x]c"}, {"docs[^x]c"}, {"?"}, {`\#a`}, {"#a"}, {`\!a`}, {"a b"}, {"keep  "},
		{""},
	} {
		e, err := parseExclude(patterns)
		if err != nil {
			t.Errorf("%q: %v", patterns, err)
			continue
		}
		if got, want := leftOut(e, names), git.ignored(t, patterns, names); !slices.Equal(got, want) {
			t.Errorf("%q leaves out %q\ngit ignores %q", patterns, got, want)
		}
	}
}

// leftOut returns the names that an exclusion leaves out, including the names below an excluded directory. In the
// parameter names, a directory ends with a slash and comes before its entries.
func leftOut(e exclusion, names []string) (out []string) {
	for _, name := range names {
		bare, dir := strings.CutSuffix(name, "/")
		inOne := slices.ContainsFunc(out, func(o string) bool {
			return strings.HasSuffix(o, "/") && strings.HasPrefix(name, o)
		})
		if inOne || e.matches(bare, dir) {
			out = append(out, name)
		}
	}
	return out
}

// gitTree is a git repository that ignores files only by its .gitignore.
type gitTree struct{ dir string }

// gitIn creates a repository with the git command, which every developer of this repository has.
func gitIn(t *testing.T, dir string) *gitTree {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatalf("this test needs git: %v", err)
	}
	g := &gitTree{dir}
	if out, err := g.command("init", "--quiet", "--template=").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v %s", err, out)
	}
	return g
}

func (g *gitTree) command(args ...string) *exec.Cmd {
	cmd := exec.Command("git", args...)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "HOME="+g.dir, "XDG_CONFIG_HOME="+g.dir, "GIT_CONFIG_GLOBAL="+os.DevNull,
		"GIT_CONFIG_NOSYSTEM=1")
	return cmd
}

func (g *gitTree) make(t *testing.T, names []string) {
	t.Helper()
	for _, name := range names {
		file := filepath.Join(g.dir, name)
		err := error(nil)
		if strings.HasSuffix(name, "/") {
			err = os.Mkdir(file, 0o755)
		} else {
			err = os.WriteFile(file, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// ignored returns the names that git ignores with these patterns.
func (g *gitTree) ignored(t *testing.T, patterns, names []string) (out []string) {
	t.Helper()
	text := []byte(strings.Join(patterns, "\n") + "\n")
	if err := os.WriteFile(filepath.Join(g.dir, ".gitignore"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	bare := strings.ReplaceAll(strings.Join(names, "\x00")+"\x00", "/\x00", "\x00")
	cmd := g.command("check-ignore", "--stdin", "-z")
	cmd.Stdin = strings.NewReader(bare)
	answer, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 1 { // exit code 1: git ignores no name
		t.Fatalf("git check-ignore: %v", err)
	}
	ignored := strings.Split(string(answer), "\x00")
	for _, name := range names {
		if slices.Contains(ignored, strings.TrimSuffix(name, "/")) {
			out = append(out, name)
		}
	}
	return out
}
