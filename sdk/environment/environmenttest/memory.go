package environmenttest

import (
	"bytes"
	"context"
	"io"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

const (
	// stopTime is how long a command may run on after it was ended.
	stopTime = 2 * time.Second
	// defaultDir is the working directory.
	defaultDir = "/work"
)

// Config says what an environment in memory holds.
type Config struct {
	Files    map[string]string  // content by path; a relative path begins at Dir
	Commands map[string]Command // programs by name; one with the name of a program of [NewMemory] replaces it
	Env      map[string]string  // variables of all commands, besides HOME, PATH and PWD
	Dir      string             // working directory, absolute, which is made; default: /work
}

// Memory is an environment in memory. It is safe for concurrent use.
type Memory struct {
	files    *tree
	commands map[string]Command
	env      map[string]string
	dir      string
}

// NewMemory makes an environment in memory, for tests of programs that use an environment. It runs commands with an
// interpreter of the POSIX shell in this process, starts no programs, and reads and writes no file of this machine.
//
// Its programs are cat, env, ls, mkdir, mv, rm, sh and sleep, each with its most used options, and those of the Config.
// There are no links, permissions or signals, and processes in the background end with their command, so the
// environment does not have the capability POSIX. It is a Streamer.
//
// Errors: ErrInvalid naming "Dir", "Env" or "Files"; that of WriteFile for a file that cannot be written.
func NewMemory(c Config) (*Memory, error) {
	m := &Memory{files: newTree(), commands: builtin(), env: map[string]string{"HOME": "/work", "PATH": "/bin"},
		dir: c.Dir}
	if c.Dir == "" {
		m.dir = defaultDir
	}
	if err := environment.CheckPath("Dir", m.dir); err != nil {
		return nil, err
	}
	if !path.IsAbs(m.dir) {
		return nil, &environment.Error{Kind: environment.Invalid, Field: "Dir", Message: "must be absolute"}
	}
	if err := (environment.Options{Env: c.Env}).Check(); err != nil {
		return nil, err
	}
	maps.Copy(m.commands, c.Commands)
	maps.Copy(m.env, c.Env)
	m.dir = path.Clean(m.dir)
	if _, kind := m.files.makeDirectory(m.dir, true); kind != "" {
		return nil, fileError(kind, "make", m.dir)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		if err := m.WriteFile(context.Background(), name, []byte(c.Files[name])); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Describe implements [environment.Environment].
func (m *Memory) Describe() environment.Description {
	return environment.Description{Backend: "memory", Isolation: environment.IsolationNone,
		Capabilities: []environment.Capability{environment.Streams}}
}

// ExecuteStreaming implements [environment.Environment]. A command that goes on for two seconds after it was ended is
// left behind.
func (m *Memory) ExecuteStreaming(ctx context.Context, command string, o environment.Options) (
	events iter.Seq2[environment.Event, error]) {
	if err := environment.CheckCommand(command); err != nil {
		return environment.Fail(err)
	}
	return m.execute(ctx, o, func(ctx context.Context, c *Call) int { return runShell(ctx, c, command, "sh") })
}

// ExecuteCodeStreaming implements [environment.Environment]. The interpreter is a program of the environment: to have
// Python, add a program python3 to the Config.
func (m *Memory) ExecuteCodeStreaming(ctx context.Context, language, code string, o environment.Options) (
	events iter.Seq2[environment.Event, error]) {
	if err := environment.CheckCode(language, code); err != nil {
		return environment.Fail(err)
	}
	for _, name := range environment.Interpreters(language) {
		if run := m.commands[name]; run != nil {
			return m.execute(ctx, o, func(ctx context.Context, c *Call) int {
				c.Args, c.Stdin = []string{name, "-"}, strings.NewReader(code)
				return run(ctx, c)
			})
		}
	}
	if err := o.Check(); err != nil {
		return environment.Fail(err)
	}
	return environment.Fail(environment.Errorf(environment.NoLanguage,
		"the environment has none of the programs that run %s: %s", language,
		strings.Join(environment.Interpreters(language), ", ")))
}

// execute checks the options and runs a program.
func (m *Memory) execute(ctx context.Context, o environment.Options, run Command) (
	events iter.Seq2[environment.Event, error]) {
	if err := o.Check(); err != nil {
		return environment.Fail(err)
	}
	if o.User != "" {
		return environment.Fail(environment.Errorf(environment.Unsupported,
			"this environment cannot run a command as another user; leave the option User empty"))
	}
	return func(yield func(environment.Event, error) bool) {
		if ctx.Err() != nil {
			yield(environment.Event{}, environment.Wrap(environment.Cancelled, ctx.Err(), "nothing was run"))
			return
		}
		dir := m.path(o.Dir)
		at, kind := m.files.stat(dir)
		if kind == "" && !at.IsDir() {
			kind = environment.NotDirectory
		}
		if kind != "" {
			yield(environment.Event{}, &environment.Error{Kind: kind, Field: "dir", Message: "cannot run in " + dir})
			return
		}
		env := maps.Clone(m.env)
		maps.Copy(env, o.Env)
		follow(ctx, &Call{Args: []string{"sh"}, Env: env, Dir: dir, Memory: m}, o.Timeout, run, yield)
	}
}

// running is a program that runs.
type running struct {
	out    *pipe
	cancel context.CancelFunc
	code   chan int // has the exit code when the program has ended
}

func start(ctx context.Context, c *Call, run Command) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{out: newPipe(ctx), cancel: cancel, code: make(chan int, 1)}
	c.Stdin = strings.NewReader("")
	c.Stdout, c.Stderr = printer{r.out, environment.Stdout}, printer{r.out, environment.Stderr}
	go func() {
		code := exitFailure
		defer func() { r.code <- code }() // also if the program ends its goroutine, as with t.Fatal
		code = run(ctx, c)
	}()
	return r
}

// stop ends the program, and waits for its end.
func (r *running) stop() {
	r.cancel()
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case code := <-r.code:
		r.code <- code // for the next stop
	case <-timer.C:
	}
}

// follow runs a program and yields what it prints.
func follow(ctx context.Context, c *Call, timeout time.Duration, run Command,
	yield func(environment.Event, error) bool) {
	r := start(ctx, c, run)
	stopped := false
	defer func() {
		if !stopped { // the caller left the loop
			r.stop()
		}
	}()
	var due <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		due = timer.C
	}
	var last environment.Event
	var err error
	for err == nil && last.Result == nil {
		select {
		case <-r.out.ready:
		case <-due:
			err = &environment.TimeoutError{After: timeout}
		case <-ctx.Done():
			err = environment.Wrap(environment.Cancelled, ctx.Err(), "the command was ended")
		case code := <-r.code:
			r.code <- code
			last.Result = &environment.Result{ExitCode: code}
		}
		if err != nil || last.Result != nil {
			r.stop()
			stopped = true
		}
		for _, e := range r.out.take() {
			if !yield(e, nil) {
				return
			}
		}
	}
	if err == nil && ctx.Err() != nil {
		last, err = environment.Event{}, environment.Wrap(environment.Cancelled, ctx.Err(), "the command was ended")
	}
	yield(last, err)
}

// path returns an absolute and clean path.
func (m *Memory) path(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(m.dir, name)
}

// texts says what went wrong with a file.
var texts = map[environment.Kind]string{
	environment.NotFound:     "there is no such file or directory",
	environment.IsDirectory:  "it is a directory",
	environment.NotDirectory: "it, or a part of its path, is not a directory",
	environment.NotRegular:   "it is a device",
	environment.TooLarge:     "it is larger than ReadFile returns; use OpenFile",
	environment.Failed:       "this is not possible",
}

func fileError(kind environment.Kind, doing, name string) error {
	if kind == "" {
		return nil
	}
	// A path below a file does not exist. Only a write and a list need to know that it cannot.
	if kind == environment.NotDirectory && (doing == "read" || doing == "remove") {
		kind = environment.NotFound
	}
	return environment.Errorf(kind, "%s %s: %s", doing, name, texts[kind])
}

// checked returns the absolute path of an argument.
func (m *Memory) checked(ctx context.Context, doing, name string) (string, error) {
	if err := environment.CheckPath("path", name); err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", environment.Wrap(environment.Cancelled, ctx.Err(), doing+" "+name)
	}
	return m.path(name), nil
}

// ReadFile implements [environment.Environment].
func (m *Memory) ReadFile(ctx context.Context, name string) ([]byte, error) {
	at, err := m.checked(ctx, "read", name)
	if err != nil {
		return nil, err
	}
	content, kind := m.files.read(at)
	if kind == "" && len(content) > environment.MaxReadFile {
		kind = environment.TooLarge
	}
	if kind != "" {
		return nil, fileError(kind, "read", name)
	}
	return content, nil
}

// OpenFile implements [environment.Streamer].
func (m *Memory) OpenFile(ctx context.Context, name string) (io.ReadCloser, error) {
	at, err := m.checked(ctx, "read", name)
	if err != nil {
		return nil, err
	}
	content, kind := m.files.read(at)
	if kind != "" {
		return nil, fileError(kind, "read", name)
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// WriteFile implements [environment.Environment].
func (m *Memory) WriteFile(ctx context.Context, name string, content []byte) error {
	at, err := m.checked(ctx, "write", name)
	if err != nil {
		return err
	}
	if last := path.Base(name); strings.HasSuffix(name, "/") || last == "." || last == ".." {
		return fileError(environment.IsDirectory, "write", name)
	}
	return fileError(m.files.write(at, content), "write", name)
}

// WriteFileFrom implements [environment.Streamer].
func (m *Memory) WriteFileFrom(ctx context.Context, name string, content io.Reader) error {
	if _, err := m.checked(ctx, "write", name); err != nil {
		return err
	}
	all, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return m.WriteFile(ctx, name, all)
}

// RemoveFile implements [environment.Environment].
func (m *Memory) RemoveFile(ctx context.Context, name string) error {
	at, err := m.checked(ctx, "remove", name)
	if err != nil {
		return err
	}
	return fileError(m.files.remove(at, false), "remove", name)
}

// ListFiles implements [environment.Environment].
func (m *Memory) ListFiles(ctx context.Context, name string) ([]environment.File, error) {
	at, err := m.checked(ctx, "list", name)
	if err != nil {
		return nil, err
	}
	entries, kind := m.files.list(at)
	if kind != "" {
		return nil, fileError(kind, "list", name)
	}
	files := []environment.File{}
	for _, i := range entries {
		files = append(files, environment.File{Name: i.name, Type: i.kind()})
	}
	return files, nil
}
