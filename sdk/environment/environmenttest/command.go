package environmenttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// Exit codes of programs.
const (
	exitFailure   = 1
	exitUsage     = 2
	exitNoProgram = 126 // the file is no program
	exitNotFound  = 127
)

// Command is a program of an environment in memory. It returns its exit code, 0 to 255, and should return soon when ctx
// ends.
type Command func(ctx context.Context, c *Call) int

// Call is one run of a program.
type Call struct {
	Args           []string // the program's name and its arguments
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            map[string]string
	Dir            string  // working directory
	Memory         *Memory // the environment, for its files
}

// Path returns the absolute path of an argument, for the files of [Call.Memory].
func (c *Call) Path(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(c.Dir, name)
}

// Failf prints a message after the program's name, and returns an exit code.
func (c *Call) Failf(code int, format string, args ...any) int {
	fmt.Fprintf(c.Stderr, c.Args[0]+": "+format+"\n", args...)
	return code
}

// builtin returns the programs that every environment in memory has.
func builtin() map[string]Command {
	return map[string]Command{"cat": cat, "env": env, "ls": ls, "mkdir": mkdir, "mv": mv, "rm": rm, "sh": sh,
		"sleep": sleep}
}

// options separates the options, single letters of known, from the other arguments.
func (c *Call) options(known string) (has map[rune]bool, rest []string, ok bool) {
	has = map[rune]bool{}
	for i, arg := range c.Args[1:] {
		if arg == "--" {
			return has, append(rest, c.Args[i+2:]...), true
		}
		if len(arg) < 2 || arg[0] != '-' {
			rest = append(rest, arg)
			continue
		}
		for _, letter := range arg[1:] {
			if !strings.ContainsRune(known, letter) {
				c.Failf(exitUsage, "the environment in memory does not know the option %s", arg)
				return nil, nil, false
			}
			has[letter] = true
		}
	}
	return has, rest, true
}

func cat(ctx context.Context, c *Call) int {
	_, files, ok := c.options("u")
	if !ok {
		return exitUsage
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	code := 0
	for _, name := range files {
		from := c.Stdin
		if name != "-" {
			file, kind := c.Memory.files.open(c.Path(name), os.O_RDONLY)
			if kind != "" {
				code = c.Failf(exitFailure, "%s: %s", name, texts[kind])
				continue
			}
			from = file
		}
		if _, err := io.Copy(c.Stdout, from); err != nil {
			return c.Failf(exitFailure, "%s: %v", name, err)
		}
	}
	return code
}

func env(ctx context.Context, c *Call) int {
	inner, args := *c, c.Args[1:]
	inner.Env = maps.Clone(c.Env)
	if len(args) > 0 && args[0] == "-i" {
		inner.Env, args = map[string]string{}, args[1:]
	}
	for ; len(args) > 0; args = args[1:] {
		name, value, ok := strings.Cut(args[0], "=")
		if !ok {
			inner.Args = args
			return inner.run(ctx)
		}
		inner.Env[name] = value
	}
	for _, name := range slices.Sorted(maps.Keys(inner.Env)) {
		fmt.Fprintf(c.Stdout, "%s=%s\n", name, inner.Env[name])
	}
	return 0
}

// run runs the program of the arguments.
func (c *Call) run(ctx context.Context) int {
	name := c.Args[0]
	if dir := path.Dir(name); dir == "/bin" || dir == "/usr/bin" {
		name = path.Base(name)
	}
	if program := c.Memory.commands[name]; program != nil {
		return program(ctx, c)
	}
	if !strings.Contains(name, "/") {
		return c.Failf(exitNotFound, "not found; the Config of the environment has no program of this name")
	}
	script, kind := c.Memory.files.read(c.Path(name))
	switch kind {
	case "":
		return runShell(ctx, c, string(script), c.Args...)
	case environment.NotFound, environment.NotDirectory:
		return c.Failf(exitNotFound, "%s", texts[kind])
	}
	return c.Failf(exitNoProgram, "%s", texts[kind])
}

func ls(ctx context.Context, c *Call) int {
	has, names, ok := c.options("1aAp")
	if !ok {
		return exitUsage
	}
	if len(names) == 0 {
		names = []string{"."}
	}
	code := 0
	for _, name := range names {
		entries, kind := c.Memory.files.list(c.Path(name))
		switch {
		case kind == environment.NotDirectory:
			fmt.Fprintln(c.Stdout, name)
			continue
		case kind != "":
			code = c.Failf(exitFailure, "%s: %s", name, texts[kind])
			continue
		}
		if has['a'] {
			entries = append([]info{{name: ".", mode: fs.ModeDir}, {name: "..", mode: fs.ModeDir}}, entries...)
		}
		for _, e := range entries {
			mark := ""
			if has['p'] && e.IsDir() {
				mark = "/"
			}
			if has['a'] || has['A'] || !strings.HasPrefix(e.name, ".") {
				fmt.Fprintln(c.Stdout, e.name+mark)
			}
		}
	}
	return code
}

func mkdir(ctx context.Context, c *Call) int {
	has, names, ok := c.options("p")
	if !ok {
		return exitUsage
	}
	files, code := c.Memory.files, 0
	for _, name := range names {
		at := c.Path(name)
		if _, kind := files.stat(at); kind == "" && !has['p'] {
			code = c.Failf(exitFailure, "%s: it exists", name)
			continue
		}
		files.mu.Lock()
		_, kind := files.makeDirectory(at, has['p'])
		files.mu.Unlock()
		if kind != "" {
			code = c.Failf(exitFailure, "%s: %s", name, texts[kind])
		}
	}
	return code
}

func mv(ctx context.Context, c *Call) int {
	_, names, ok := c.options("f")
	const two = 2
	if !ok || len(names) != two {
		return c.Failf(exitUsage, "takes two names")
	}
	if kind := c.Memory.files.move(c.Path(names[0]), c.Path(names[1])); kind != "" {
		return c.Failf(exitFailure, "%s to %s: %s", names[0], names[1], texts[kind])
	}
	return 0
}

func rm(ctx context.Context, c *Call) int {
	has, names, ok := c.options("frR")
	if !ok {
		return exitUsage
	}
	code := 0
	for _, name := range names {
		kind := c.Memory.files.remove(c.Path(name), has['r'] || has['R'])
		if kind != "" && !(kind == environment.NotFound && has['f']) {
			code = c.Failf(exitFailure, "%s: %s", name, texts[kind])
		}
	}
	return code
}

func sh(ctx context.Context, c *Call) int {
	args := c.Args[1:]
	switch {
	case len(args) > 1 && args[0] == "-c":
		const script = 2 // sh -c SCRIPT [NAME ARGUMENT...]
		names := args[script:]
		if len(names) == 0 {
			names = c.Args[:1]
		}
		return runShell(ctx, c, args[1], names...)
	case len(args) == 0 || args[0] == "-":
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return c.Failf(exitFailure, "%v", err)
		}
		inner := *c
		inner.Stdin = strings.NewReader("")
		return runShell(ctx, &inner, string(text), c.Args[0])
	case strings.HasPrefix(args[0], "-"):
		return c.Failf(exitUsage, "the environment in memory does not know the option %s", args[0])
	}
	text, kind := c.Memory.files.read(c.Path(args[0]))
	if kind != "" {
		return c.Failf(exitNotFound, "%s: %s", args[0], texts[kind])
	}
	return runShell(ctx, c, string(text), args...)
}

func sleep(ctx context.Context, c *Call) int {
	var total time.Duration
	for _, arg := range c.Args[1:] {
		seconds, err := strconv.ParseFloat(strings.TrimSuffix(arg, "s"), 64)
		if err != nil || seconds < 0 || seconds > float64(1<<32) {
			return c.Failf(exitUsage, "takes seconds, got %q", arg)
		}
		total += time.Duration(seconds * float64(time.Second))
	}
	timer := time.NewTimer(total)
	defer timer.Stop()
	select {
	case <-timer.C:
		return 0
	case <-ctx.Done():
		return exitFailure
	}
}

// pathError makes the error that the interpreter prints.
func pathError(op, name string, kind environment.Kind) error {
	return &fs.PathError{Op: op, Path: name, Err: errors.New(texts[kind])}
}
