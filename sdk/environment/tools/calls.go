package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// all holds the tools by name.
var all = map[string]Tool{
	"shell": tool("shell", "Run a command with a POSIX shell. State such as cd and export does not last.",
		`"command":{"type":"string"},"timeout_seconds":{"type":"integer","minimum":1}`, []string{"command"}, runShell),
	"python": tool("python", "Run Python code. Variables do not last.", `"code":{"type":"string"}`,
		[]string{"code"}, runPython),
	"read": tool("read", "Read lines of a text file, with their numbers.",
		`"path":{"type":"string"},"from":{"type":"integer","minimum":1},"lines":{"type":"integer","minimum":1}`,
		[]string{"path"}, readLines),
	"write": tool("write", "Write a whole file. Missing directories are made.",
		`"path":{"type":"string"},"content":{"type":"string"}`, []string{"path", "content"}, writeFile),
	"edit": tool("edit", "Replace a text in a file. The text must occur exactly once, unless all is true.",
		`"path":{"type":"string"},"old":{"type":"string"},"new":{"type":"string"},"all":{"type":"boolean"}`,
		[]string{"path", "old", "new"}, editFile),
	"list": tool("list", "List a directory.", `"path":{"type":"string"}`, []string{"path"}, listDirectory),
	"glob": tool("glob", "Find files below a directory by name, such as *.go.",
		`"pattern":{"type":"string"},"path":{"type":"string"}`, []string{"pattern"}, findFiles),
	"grep": tool("grep", "Find lines that match an extended regular expression, below a directory.",
		`"expression":{"type":"string"},"path":{"type":"string"}`, []string{"expression"}, findLines),
}

type shellInput struct {
	Command string `json:"command"`
	Timeout int    `json:"timeout_seconds"`
}

func runShell(ctx context.Context, b *Box, in shellInput) (string, error) {
	o := environment.Options{Timeout: b.limits.Timeout, Dir: b.limits.Dir}
	if in.Timeout < 0 {
		return "", errors.New("timeout_seconds must not be negative")
	}
	if asked := time.Duration(in.Timeout) * time.Second; in.Timeout > 0 && asked < o.Timeout {
		o.Timeout = asked
	}
	return printed(environment.Execute(ctx, b.env, in.Command, o))
}

type pythonInput struct {
	Code string `json:"code"`
}

func runPython(ctx context.Context, b *Box, in pythonInput) (string, error) {
	return printed(environment.ExecuteCode(ctx, b.env, "python", in.Code,
		environment.Options{Timeout: b.limits.Timeout, Dir: b.limits.Dir}))
}

// printed tells a model how a command ended, and what it printed.
func printed(r *environment.Result, err error) (string, error) {
	var text strings.Builder
	if r != nil {
		text.Write(r.Stdout)
		if len(r.Stderr) > 0 {
			fmt.Fprintf(&text, "\n[stderr]\n%s", r.Stderr)
		}
		if err == nil && r.ExitCode != 0 {
			fmt.Fprintf(&text, "\n[exit code %d]", r.ExitCode)
		}
		if r.Truncated {
			text.WriteString("\n[the output was longer than is kept]")
		}
	}
	return text.String(), err
}

type readInput struct {
	Path  string `json:"path"`
	From  int    `json:"from"`
	Lines int    `json:"lines"`
}

func readLines(ctx context.Context, b *Box, in readInput) (string, error) {
	if in.From < 0 || in.Lines < 0 {
		return "", errors.New("from and lines must not be negative")
	}
	content, err := environment.ReadText(ctx, b.env, in.Path)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
	first := max(in.From, 1)
	if first > len(lines) {
		return "", fmt.Errorf("%s has %d lines", in.Path, len(lines))
	}
	count := b.limits.Lines
	if in.Lines > 0 {
		count = min(in.Lines, count)
	}
	const room = 100 // bytes for the line that says how to continue
	var text strings.Builder
	for n := first; n <= len(lines); n++ {
		line := fmt.Sprintf("%6d\t%s\n", n, lines[n-1])
		if n-first == count || n > first && text.Len()+len(line) > b.limits.Bytes-room {
			fmt.Fprintf(&text, "[cut here: %d of %d lines; continue with from %d]", n-first, len(lines), n)
			break
		}
		text.WriteString(line)
	}
	return text.String(), nil
}

type writeInput struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func writeFile(ctx context.Context, b *Box, in writeInput) (string, error) {
	if err := environment.WriteText(ctx, b.env, in.Path, in.Content); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d bytes to %s", len(in.Content), in.Path), nil
}

type editInput struct {
	Path string `json:"path"`
	Old  string `json:"old"`
	New  string `json:"new"`
	All  bool   `json:"all"`
}

func editFile(ctx context.Context, b *Box, in editInput) (string, error) {
	if in.Old == "" || in.Old == in.New {
		return "", errors.New("old must not be empty, and must differ from new")
	}
	content, err := b.env.ReadFile(ctx, in.Path)
	if err != nil {
		return "", err
	}
	found := bytes.Count(content, []byte(in.Old))
	switch {
	case found == 0:
		return "", fmt.Errorf("%s does not have the text given as old; read the file and copy the text exactly", in.Path)
	case found > 1 && !in.All:
		return "", fmt.Errorf("%s contains the text given as old %d times; add lines around it, or set all", in.Path, found)
	}
	if err := b.env.WriteFile(ctx, in.Path, bytes.ReplaceAll(content, []byte(in.Old), []byte(in.New))); err != nil {
		return "", err
	}
	return fmt.Sprintf("replaced %d in %s", found, in.Path), nil
}

type listInput struct {
	Path string `json:"path"`
}

func listDirectory(ctx context.Context, b *Box, in listInput) (string, error) {
	files, err := b.env.ListFiles(ctx, in.Path)
	if err != nil {
		return "", err
	}
	var lines []string
	for _, f := range files {
		mark := map[environment.FileType]string{environment.TypeDirectory: "/", environment.TypeLink: "@",
			environment.TypeOther: "?"}[f.Type]
		lines = append(lines, plain(f.Name)+mark)
	}
	return b.bounded(lines, "entries"), nil
}

// plain shows a name in one line.
func plain(name string) string {
	if quoted := fmt.Sprintf("%q", name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// bounded joins lines up to the limit.
func (b *Box) bounded(lines []string, what string) string {
	switch {
	case len(lines) == 0:
		return "no " + what
	case len(lines) > b.limits.Matches:
		return fmt.Sprintf("%s\n[cut here: %d of %d %s]", strings.Join(lines[:b.limits.Matches], "\n"), b.limits.Matches,
			len(lines), what)
	}
	return strings.Join(lines, "\n")
}

type globInput struct {
	Pattern string `json:"pattern"`
	Path    string `json:"path"`
}

// start returns the directory where a search begins, in a form that no program takes for an option.
func (b *Box) start(path string) (string, error) {
	if path == "" {
		return ".", nil
	}
	if !strings.HasPrefix(path, "/") {
		path = "./" + path
	}
	return path, environment.CheckPath("path", path)
}

func findFiles(ctx context.Context, b *Box, in globInput) (string, error) {
	return b.search(ctx, in.Path, "files", func(dir string) string {
		return "find " + dir + " -name " + environment.Quote(in.Pattern)
	}, in.Pattern)
}

type grepInput struct {
	Expression string `json:"expression"`
	Path       string `json:"path"`
}

func findLines(ctx context.Context, b *Box, in grepInput) (string, error) {
	return b.search(ctx, in.Path, "lines", func(dir string) string {
		return "grep -rnE -e " + environment.Quote(in.Expression) + " " + dir
	}, in.Expression)
}

// search runs a program that prints what it finds in lines.
func (b *Box) search(ctx context.Context, path, what string, command func(dir string) string, pattern string) (
	string, error) {
	dir, err := b.start(path)
	switch {
	case err != nil:
		return "", err
	case pattern == "" || strings.ContainsRune(pattern, 0):
		return "", errors.New("the pattern must not be empty, and must not contain a NUL byte")
	}
	quoted := environment.Quote(dir)
	r, err := environment.Execute(ctx, b.env, "[ -e "+quoted+" ] || { echo "+quoted+": no such directory >&2; exit 3; }\n"+
		command(quoted), environment.Options{Timeout: b.limits.Timeout, Dir: b.limits.Dir})
	if err != nil {
		return "", err
	}
	if len(r.Stdout) == 0 && len(r.Stderr) > 0 {
		return "", errors.New(strings.TrimSpace(string(r.Stderr)))
	}
	var lines []string
	if found := strings.TrimSuffix(string(r.Stdout), "\n"); found != "" {
		lines = strings.Split(found, "\n")
	}
	return b.bounded(lines, what), nil
}
