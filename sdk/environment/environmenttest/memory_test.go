package environmenttest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/conformance"
	"github.com/boxfleet/boxfleet/sdk/environment/environmenttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newMemory(t *testing.T, c environmenttest.Config) *environmenttest.Memory {
	t.Helper()
	env, err := environmenttest.NewMemory(c)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func run(t *testing.T, env environment.Environment, command string) *environment.Result {
	t.Helper()
	result, err := environment.Execute(t.Context(), env, command, environment.Options{Timeout: 20 * time.Second})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return result
}

func TestConformance(t *testing.T) {
	t.Parallel()
	environmenttest.Run(t, newMemory(t, environmenttest.Config{}), conformance.Options{})
}

// These behaviours need the capability POSIX, which the environment in memory does not have. It has them nevertheless.
func TestBehavioursBeyondTheCapabilities(t *testing.T) {
	t.Parallel()
	env := posix{newMemory(t, environmenttest.Config{})}
	want := map[string]bool{"leaving the loop ends the command": true, "the end of the context ends the command": true,
		"chunks arrive while the command runs": true, "a timeout ends processes in the background": true,
		"a here-document works": true, "exec replaces the shell": true, "a trap runs at the end": true,
		"the outputs of commands at once are not mixed": true}
	for _, b := range conformance.Behaviours() {
		if !want[b.Name] {
			continue
		}
		delete(want, b.Name)
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			if o := conformance.Check(t.Context(), env, b, conformance.Options{}); o.State != conformance.Passed {
				t.Error(o.State, o.Err)
			}
		})
	}
	if len(want) > 0 {
		t.Errorf("the table does not have %v", want)
	}
}

// posix claims a capability.
type posix struct{ *environmenttest.Memory }

func (e posix) Describe() environment.Description {
	d := e.Memory.Describe()
	d.Capabilities = append(d.Capabilities, environment.POSIX)
	return d
}

func TestProgramsOfATest(t *testing.T) {
	t.Parallel()
	env := newMemory(t, environmenttest.Config{
		Files: map[string]string{"go.mod": "module m\n", "/etc/name": "box"},
		Env:   map[string]string{"GOOS": "plan9"},
		Commands: map[string]environmenttest.Command{
			"go": func(ctx context.Context, c *environmenttest.Call) int {
				content, err := c.Memory.ReadFile(ctx, c.Path("go.mod"))
				if err != nil {
					return c.Failf(3, "%v", err)
				}
				fmt.Fprintf(c.Stdout, "%q %s %s %s", c.Args, c.Dir, c.Env["GOOS"], content)
				return 0
			},
			"upper": func(_ context.Context, c *environmenttest.Call) int {
				text, err := io.ReadAll(c.Stdin)
				if err != nil {
					return c.Failf(1, "%v", err)
				}
				fmt.Fprint(c.Stdout, strings.ToUpper(string(text)))
				return 7
			},
			"python3": func(_ context.Context, c *environmenttest.Call) int {
				code, err := io.ReadAll(c.Stdin)
				fmt.Fprintf(c.Stdout, "%v %q %v", c.Args, code, err)
				return 0
			},
			"sleep": func(context.Context, *environmenttest.Call) int { return 9 },
		},
	})
	for _, step := range [][2]string{
		{"go test ./...", `["go" "test" "./..."] /work plan9 module m` + "\n"},
		{"mkdir a; cd a && go; echo $?", "3\n"},
		{"X=1; export X; GOOS=js /bin/go", `["/bin/go"] /work js module m` + "\n"},
		{"cat /etc/name | upper; echo $?", "BOX7\n"},
		{"echo text >f; upper <f; echo again >>f", "TEXT\n"},
		{"cat f", "text\nagain\n"},
		{"sleep 1; echo $?", "9\n"},
		{"export A='x y' B; echo \"$A\"; env | (read x; echo $x)", "x y\nA=x y\n"},
		{"command -v go && command -v upper; command -v nothing || echo none", "go\nupper\nnone\n"},
		{"echo 'echo sourced $0' >s; . ./s; sh s; ./s x", "sourced sh\nsourced s\nsourced ./s\n"},
		{"for f in *; do printf '%s ' $f; done; test -d a && [ -f s ]", "a f go.mod s "},
		{"f() { local v=1; echo $v; }; f; echo \"<$v>\"", "1\n<>\n"},
		{"mv f a; ls a; rm -r a; ls -1", "f\ngo.mod\ns\n"},
		{"exec go", `["go"] /work plan9 module m` + "\n"},
	} {
		if got := run(t, env, step[0]); string(got.Stdout) != step[1] {
			t.Errorf("%s: got %q, want %q; stderr %q", step[0], got.Stdout, step[1], got.Stderr)
		}
	}
	got, err := environment.ExecuteCode(t.Context(), env, "python", "print(1)\r\n", environment.Options{})
	if want := `[python3 -] "print(1)\r\n" <nil>`; err != nil || string(got.Stdout) != want {
		t.Errorf("got %s, %v, want %s", got.Stdout, err, want)
	}
}

// Nothing of the machine is seen or changed, not even what the interpreter does by itself.
func TestTheMachineIsNotTouched(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	// as the interpreter names its own
	fifo := filepath.Join(os.TempDir(), fmt.Sprintf("sh-interp-%d", time.Now().UnixNano()))
	for _, name := range []string{file, fifo} {
		if err := os.WriteFile(name, []byte("echo secret"), 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(name)
	}
	env := newMemory(t, environmenttest.Config{})
	try := func(command string) *environment.Result {
		got := run(t, env, strings.NewReplacer("FILE", file, "FIFO", fifo, "DIRECTORY", dir).Replace(command))
		if strings.Contains(string(got.Stdout)+string(got.Stderr), "secret") {
			t.Errorf("%s: %d %s %s", command, got.ExitCode, got.Stdout, got.Stderr)
		}
		return got
	}
	for _, command := range []string{"cat FILE", "cat <FILE", ". FILE", "source FILE", "sh FILE", "FILE", "exec FILE",
		"rm FILE",
		"echo x >FILE", "echo x >>FILE", "cat <FIFO", "TMPDIR=/tmp; cat <FIFO", "eval 'cat <FIFO'", "cd DIRECTORY",
		"test -e FILE", "[ -O FILE ]", "[ -O /dev/null ]", "test -x FILE", "command -v FILE", "type go", "command -v git",
		"kill -0 $$",
		"ls DIRECTORY", "mv FILE x", "git version", "cat <(echo x)"} {
		if got := try(command); got.ExitCode == 0 {
			t.Errorf("%s: %s", command, got.Stdout)
		}
	}
	for _, command := range []string{"echo $(<FILE) DIRECTORY/*", "echo x >FIFO", "eval 'cat <(echo x)'",
		"trap 'cat <(echo x)' EXIT; false", "cd ~root; pwd"} {
		try(command)
	}
	if got := run(t, env, "echo "+dir+"/f*"); string(got.Stdout) != dir+"/f*\n" {
		t.Errorf("it sees %s", got.Stdout)
	}
	for _, name := range []string{file, fifo} {
		if content, err := os.ReadFile(name); string(content) != "echo secret" {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
}

func TestAProgramThatDoesNotEndIsLeftBehind(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	env := newMemory(t, environmenttest.Config{Commands: map[string]environmenttest.Command{
		"hang": func(context.Context, *environmenttest.Call) int { <-release; return 0 }}})
	_, err := environment.Execute(t.Context(), env, "echo begun; hang",
		environment.Options{Timeout: 10 * time.Millisecond})
	close(release)
	var late *environment.TimeoutError
	if !errors.As(err, &late) || string(late.Result.Stdout) != "begun\n" {
		t.Errorf("got %v", err)
	}
}

// A program that calls t.Fatal ends its goroutine.
func TestAProgramThatEndsItsGoroutineEndsTheCommand(t *testing.T) {
	t.Parallel()
	env := newMemory(t, environmenttest.Config{Commands: map[string]environmenttest.Command{
		"fatal": func(context.Context, *environmenttest.Call) int { runtime.Goexit(); return 0 }}})
	if got := run(t, env, "echo begun; fatal"); got.ExitCode != 1 || string(got.Stdout) != "begun\n" {
		t.Errorf("%+v", got)
	}
}

// Input that nobody reads must not keep a goroutine or a pipe.
func TestInputThatIsNotReadLeavesNothing(t *testing.T) {
	t.Parallel()
	env := newMemory(t, environmenttest.Config{Files: map[string]string{"large": strings.Repeat("x", 1<<20)},
		Commands: map[string]environmenttest.Command{
			"ignore": func(context.Context, *environmenttest.Call) int { return 0 }}})
	for _, command := range []string{"ignore <large", "cat large | ignore", "ignore <<E\n$(cat large)\nE",
		"sh -c ignore <large"} {
		run(t, env, command)
	}
}

func TestABadConfigOfMemoryIsRefused(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]environmenttest.Config{
		"Dir": {Dir: "relative"}, "env.1": {Env: map[string]string{"1": ""}}, "path": {Files: map[string]string{"": "x"}},
	} {
		_, err := environmenttest.NewMemory(c)
		var e *environment.Error
		if !errors.As(err, &e) || e.Kind != environment.Invalid || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, err := environmenttest.NewMemory(environmenttest.Config{Files: map[string]string{"a": "", "a/b": ""}})
	if environment.KindOf(err) != environment.NotDirectory {
		t.Error(err)
	}
}

func TestTheNullDeviceOfMemoryIsRefused(t *testing.T) {
	t.Parallel()
	env := newMemory(t, environmenttest.Config{})
	_, err := env.ReadFile(t.Context(), "/dev/null")
	for doing, err := range map[string]error{"read": err, "write": env.WriteFile(t.Context(), "/dev/null", nil),
		"remove": env.RemoveFile(t.Context(), "/dev/null")} {
		if environment.KindOf(err) != environment.NotRegular {
			t.Errorf("%s: %v", doing, err)
		}
	}
	if got := run(t, env, "echo lost >/dev/null; cat /dev/null"); got.ExitCode != 0 || len(got.Stdout) > 0 {
		t.Errorf("%+v", got)
	}
}
