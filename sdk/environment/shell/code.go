package shell

import (
	"context"
	"encoding/base64"
	"iter"
	"strings"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// noLanguage is what the script prints to stderr, with a random word, if no interpreter is found.
const noLanguage = "no-interpreter-"

// ExecuteCodeStreaming implements [environment.Environment]. The code travels as base64, and as a file if it is long.
func (e *Environment) ExecuteCodeStreaming(ctx context.Context, language, code string, o environment.Options) (
	events iter.Seq2[environment.Event, error]) {
	if err := environment.CheckCode(language, code); err != nil {
		return environment.Fail(err)
	}
	if err := o.Check(); err != nil {
		return environment.Fail(err)
	}
	return func(yield func(environment.Event, error) bool) {
		missing := noLanguage + newID()
		input, remove, err := e.codeInput(ctx, code)
		defer remove()
		if err != nil {
			yield(environment.Event{}, err)
			return
		}
		command := findInterpreter(environment.Interpreters(language), missing) + input
		for event, err := range e.execute(ctx, command, o) {
			if event.Stream == environment.Stderr && strings.HasPrefix(string(event.Data), missing) {
				yield(environment.Event{}, environment.Errorf(environment.NoLanguage,
					"the environment has none of the programs that run %s: %s", language,
					strings.Join(environment.Interpreters(language), ", ")))
				return
			}
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// findInterpreter returns a command that sets i to the path of the first program that exists. It reads PATH itself,
// because a shell would also find its own commands.
func findInterpreter(programs []string, missing string) string {
	return `i=
for n in ` + strings.Join(programs, " ") + `; do
	o=$IFS; IFS=:
	for d in $PATH; do [ -z "$i" ] && [ -f "$d/$n" ] && [ -x "$d/$n" ] && i=$d/$n; done
	IFS=$o
done
[ -n "$i" ] || { echo ` + missing + ` >&2; exit 127; }
unset n d o
`
}

// codeInput returns the end of a command that gives code to the interpreter "$i". The caller calls remove at the end.
func (e *Environment) codeInput(ctx context.Context, code string) (input string, remove func(), err error) {
	encoded := encode([]byte(code))
	if len(encoded) <= e.chunk()*4/3 {
		end := "end-" + newID()
		return "base64 -d <<'" + end + "' | \"$i\" -\n" + encoded + end + "\n", func() {}, nil
	}
	file := "/tmp/.boxfleet-" + newID()
	remove = func() { _ = e.RemoveFile(context.WithoutCancel(ctx), file) } // it may not exist
	return `"$i" - <` + file + "\n", remove, e.WriteFile(ctx, file, []byte(code))
}

// encode returns base64 in lines.
func encode(data []byte) string {
	const perLine = 57 // bytes that become a line of 76 characters
	var b strings.Builder
	for len(data) > 0 {
		n := min(perLine, len(data))
		b.WriteString(base64.StdEncoding.EncodeToString(data[:n]) + "\n")
		data = data[n:]
	}
	return b.String()
}
