package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// probe gives a check its environment. Its methods end the check when something is not as expected.
type probe struct {
	ctx context.Context
	env environment.Environment
	dir string // a directory for this check, which does not exist at first

	sample int // Options.Sample
}

// many returns how many calls a check makes at once: n, or fewer in a sample, but enough to overlap.
func (p *probe) many(n int) int {
	const enough = 10
	return max(n/max(p.sample, 1), min(n, enough))
}

// The methods of a probe panic with failure if the check fails, and with absent if the check cannot be made.
type (
	failure struct{ error }
	absent  struct{ error }
)

func (p *probe) fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// missing ends the check: the system in the environment lacks something.
func (p *probe) missing(what string) { panic(absent{errors.New(what)}) }

// path returns a path below the directory of the check.
func (p *probe) path(name string) string { return p.dir + "/" + name }

// run runs a command that must end by itself.
func (p *probe) run(command string, o environment.Options) *environment.Result {
	result, err := environment.Execute(p.ctx, p.env, command, o)
	if err != nil {
		p.fail("%.200s: %w", command, err)
	}
	return result
}

// prints runs a command that must succeed and print a text.
func (p *probe) prints(want, command string, o environment.Options) {
	result := p.run(command, o)
	p.exits(result, 0)
	p.same("stdout", result.Stdout, want)
}

func (p *probe) exits(result *environment.Result, code int) {
	if result.ExitCode != code {
		p.fail("exit code %d, want %d; stderr: %.300q", result.ExitCode, code, result.Stderr)
	}
}

func (p *probe) same(what string, got []byte, want string) {
	if string(got) == want {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	p.fail("%s has %d bytes, want %d; they differ at byte %d: %.60q, want %.60q", what, len(got), len(want), at, got[at:],
		want[at:])
}

// refused expects an error of the given kind.
func (p *probe) refused(err error, want *environment.Error) *environment.Error {
	var e *environment.Error
	switch {
	case err == nil:
		p.fail("no error, want %s", want.Kind)
	case !errors.Is(err, want):
		p.fail("got %v, want %s", err, want.Kind)
	case !errors.As(err, &e):
		p.fail("%v is not an *environment.Error", err)
	}
	return e
}

// names expects the error for an invalid argument, with this field.
func (p *probe) names(err error, field string) {
	if e := p.refused(err, environment.ErrInvalid); e.Field != field {
		p.fail("the error names %q, want %q: %v", e.Field, field, err)
	}
}

func (p *probe) write(file, content string) {
	if err := p.env.WriteFile(p.ctx, file, []byte(content)); err != nil {
		p.fail("write %q: %w", file, err)
	}
}

func (p *probe) holds(file, want string) {
	got, err := p.env.ReadFile(p.ctx, file)
	if err != nil {
		p.fail("read %q: %w", file, err)
	}
	p.same("the file", got, want)
}

func (p *probe) list(dir string) []environment.File {
	found, err := p.env.ListFiles(p.ctx, dir)
	if err != nil {
		p.fail("list %q: %w", dir, err)
	}
	return found
}

// lists expects the names in a directory.
func (p *probe) lists(dir string, want ...string) {
	var got []string
	for _, f := range p.list(dir) {
		got = append(got, f.Name)
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		p.fail("list %q: got %q, want %q", dir, got, want)
	}
}

// makeDir makes the directory of the check.
func (p *probe) makeDir() {
	p.write(p.path(".made"), "")
}

// isRoot reports whether commands run as root.
func isRoot(p *probe) bool {
	return string(bytes.TrimSpace(p.run("id -u", environment.Options{}).Stdout)) == "0"
}

// has ends the check if a program is missing.
func (p *probe) has(program string) {
	if p.run("command -v "+program+" >/dev/null 2>&1", environment.Options{}).ExitCode != 0 {
		p.missing("no program " + program)
	}
}

// language ends the check if an interpreter is missing.
func (p *probe) language(name string) {
	_, err := environment.ExecuteCode(p.ctx, p.env, name, "", environment.Options{})
	if errors.Is(err, environment.ErrNoLanguage) {
		p.missing("no interpreter for " + name)
	}
}

// eventually waits until a condition holds.
func (p *probe) eventually(what string, check func() bool) {
	const pause = 50 * time.Millisecond
	for !check() {
		select {
		case <-p.ctx.Done():
			p.fail("%s: it did not happen", what)
		case <-time.After(pause):
		}
	}
}

// beats is a command that appends to a file ten times a second until it is ended.
func beats(file string) string {
	return "while echo beat >>" + environment.Quote(file) + "; do sleep 0.1; done"
}

// stopped expects that a file does not grow any more. It compares the sizes before and after a pause in which a process
// that still runs would have made the file larger.
func (p *probe) stopped(file string) {
	const unchanged = 300 * time.Millisecond
	size := func() int {
		content, err := p.env.ReadFile(p.ctx, file)
		if err != nil {
			p.fail("read %q: %w", file, err)
		}
		return len(content)
	}
	before := size()
	select {
	case <-time.After(unchanged):
	case <-p.ctx.Done():
	}
	if after := size(); after != before {
		p.fail("a process of the command still runs: its file grew from %d to %d bytes", before, after)
	}
}

// slug makes a name for a row from data.
func slug(text string) string {
	const shown = 40
	quoted := fmt.Sprintf("%q", text)
	if len(quoted) > shown {
		quoted = quoted[:shown] + "…"
	}
	return strings.ReplaceAll(quoted, "%", "%%")
}
