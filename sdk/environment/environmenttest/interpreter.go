package environmenttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// Programs of the interpreter that do what its own commands would do with files of this machine.
const (
	which       = "\x00which"       // command -v and type
	unsupported = "\x00unsupported" // what cannot be done in memory
)

// runShell runs a script; args are the values of $0, $1 and so on. It returns the exit code.
func runShell(ctx context.Context, c *Call, script string, args ...string) int {
	file, err := parse(script, args[0])
	if err != nil {
		return c.Failf(exitUsage, "%v", err)
	}
	vars := &variables{Environ: expand.ListEnviron(environ(c.Env)...)}
	runner, err := interp.New(interp.Env(vars), func(r *interp.Runner) error {
		r.Dir = c.Dir // interp.Dir would look for it on this machine
		return nil
	}, interp.Params(append([]string{"--"}, args[1:]...)...), interp.StdIO(stdin(c.Stdin), c.Stdout, c.Stderr),
		interp.CallHandler(c.call), interp.ExecHandlers(c.exec), interp.OpenHandler(c.open),
		interp.ReadDirHandler2(c.readDir), interp.StatHandler(c.stat), interp.AccessHandler(c.access))
	if err != nil {
		return c.Failf(exitFailure, "%v", err)
	}
	runner.Reset()
	vars.begun = true
	err = runner.Run(ctx, file)
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case ctx.Err() != nil:
		return exitFailure
	}
	return c.Failf(exitFailure, "%v", err)
}

// stdin returns nil for an empty input: the interpreter would copy any other reader.
func stdin(from io.Reader) io.Reader {
	if r, ok := from.(*strings.Reader); ok && r.Len() == 0 {
		return nil
	}
	return from
}

func environ(env map[string]string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// variables hides TMPDIR while a runner is made: the runner opens files that have the names of its own FIFOs in that
// directory on this machine.
type variables struct {
	expand.Environ
	begun bool
}

// Get implements expand.Environ.
func (v *variables) Get(name string) expand.Variable {
	if name == "TMPDIR" && !v.begun {
		return expand.Variable{Set: true, Kind: expand.String, Str: "/dev/null/none"}
	}
	return v.Environ.Get(name)
}

// parse parses a script. The parser makes a line feed of CR LF, even within quotes, so that CR is another character
// while it parses.
func parse(script, name string) (*syntax.File, error) {
	hidden := '\uE000' // of the private use area
	for strings.ContainsRune(script, hidden) {
		hidden++
	}
	text := strings.ReplaceAll(script, "\r", string(hidden))
	file, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(text), name)
	if err != nil {
		return nil, err
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Lit:
			n.Value = strings.ReplaceAll(n.Value, string(hidden), "\r")
		case *syntax.SglQuoted:
			n.Value = strings.ReplaceAll(n.Value, string(hidden), "\r")
		}
		return true
	})
	return file, nil
}

// call replaces commands of the interpreter that would use this machine.
func (c *Call) call(ctx context.Context, args []string) ([]string, error) {
	switch {
	case args[0] == "command" && len(args) > 1 && args[1] == "-v":
		return append([]string{which, ""}, args[2:]...), nil
	case args[0] == "type":
		return append([]string{which, " is a program"}, args[1:]...), nil
	case (args[0] == "." || args[0] == "source") && len(args) > 1:
		text, kind := c.Memory.files.read(c.at(ctx).Path(args[1]))
		if kind != "" {
			return []string{unsupported, args[0], args[1] + ": " + texts[kind]}, nil
		}
		return []string{"eval", string(text)}, nil
	case args[0] == "export" || args[0] == "readonly" || args[0] == "local":
		return declare(args)
	case (args[0] == "test" || args[0] == "[") && (slices.Contains(args, "-O") || slices.Contains(args, "-G")):
		return []string{unsupported, args[0], "files in memory have no owner"}, nil
	}
	return args, nil
}

// declare makes of a declaration a command for eval, which parses Bash: as a command of the POSIX shell the interpreter
// does not know it.
func declare(args []string) ([]string, error) {
	text := args[0]
	for _, arg := range args[1:] {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || strings.HasPrefix(arg, "-") || environment.ValidateEnvKeys(map[string]string{name: ""}) != nil {
			text += " " + environment.Quote(arg)
			continue
		}
		quoted, err := syntax.Quote(value, syntax.LangBash)
		if err != nil {
			return []string{unsupported, args[0], err.Error()}, nil // the value has a byte that cannot be quoted
		}
		text += " " + name + "=" + quoted
	}
	return []string{"eval", text}, nil
}

// at returns the call of a program that the interpreter runs now.
func (c *Call) at(ctx context.Context) *Call {
	h := interp.HandlerCtx(ctx)
	inner := &Call{Args: c.Args, Stdin: h.Stdin, Stdout: h.Stdout, Stderr: h.Stderr, Dir: h.Dir, Memory: c.Memory,
		Env: map[string]string{}}
	if h.Stdin == nil {
		inner.Stdin = strings.NewReader("")
	}
	for name, v := range h.Env.Each {
		if v.Exported && v.Kind == expand.String {
			inner.Env[name] = v.Str
		}
	}
	return inner
}

func (c *Call) exec(interp.ExecHandlerFunc) interp.ExecHandlerFunc {
	return func(ctx context.Context, args []string) error {
		inner := c.at(ctx)
		inner.Args = args
		code := 0
		switch {
		case args[0] == which:
			code = inner.which(args[1], args[2:])
		case args[0] == unsupported:
			inner.Args = args[1:2]
			code = inner.Failf(exitUsage, "%s", args[2])
		case c.Memory.commands[args[0]] == nil && interp.IsBuiltin(args[0]):
			return interp.HandlerCtx(ctx).Builtin(ctx, args) // exec and command lead here
		default:
			code = inner.run(ctx)
		}
		if code != 0 {
			return interp.ExitStatus(uint8(code))
		}
		return nil
	}
}

// which prints the names that are programs.
func (c *Call) which(suffix string, names []string) int {
	code := 0
	for _, name := range names {
		if c.Memory.commands[name] == nil && !interp.IsBuiltin(name) {
			code = exitFailure
			continue
		}
		fmt.Fprintln(c.Stdout, name+suffix)
	}
	return code
}

func (c *Call) open(ctx context.Context, name string, flag int, _ os.FileMode) (io.ReadWriteCloser, error) {
	file, kind := c.Memory.files.open(c.at(ctx).Path(name), flag)
	if kind != "" {
		return nil, pathError("open", name, kind)
	}
	return file, nil
}

func (c *Call) readDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	found, kind := c.Memory.files.list(c.at(ctx).Path(name))
	if kind != "" {
		return nil, pathError("read", name, kind)
	}
	var entries []fs.DirEntry
	for _, i := range found {
		entries = append(entries, fs.FileInfoToDirEntry(i))
	}
	return entries, nil
}

func (c *Call) stat(ctx context.Context, name string, _ bool) (fs.FileInfo, error) {
	found, kind := c.Memory.files.stat(c.at(ctx).Path(name))
	if kind == environment.NotFound || kind == environment.NotDirectory {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return found, nil
}

func (c *Call) access(ctx context.Context, name string, mode interp.AccessMode) error {
	found, kind := c.Memory.files.stat(c.at(ctx).Path(name))
	switch {
	case kind != "":
		return pathError("access", name, kind)
	case mode&interp.AccessExec != 0 && found.mode&0o111 == 0:
		return fs.ErrPermission
	}
	return nil
}
