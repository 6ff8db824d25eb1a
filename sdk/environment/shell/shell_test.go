package shell_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/conformance"
	"github.com/boxfleet/boxfleet/sdk/environment/environmenttest"
	"github.com/boxfleet/boxfleet/sdk/environment/shell"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// withBusyBox returns a runner whose only programs are those of BusyBox.
func withBusyBox(t *testing.T, dir string) shell.Runner {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("no busybox: scripts/tools names the packages that the tests need")
	}
	bin := t.TempDir()
	if out, err := exec.Command(busybox, "--install", "-s", bin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
		argv := append([]string{filepath.Join(bin, "env"), "-i", "PATH=" + bin}, s.Argv()[1:]...)
		return shell.Process(ctx, dir, s.Text, argv...)
	}
}

// withDash returns a runner that gives each script to dash as one argument.
func withDash(t *testing.T, dir string) shell.Runner {
	t.Helper()
	dash, err := exec.LookPath("dash")
	if err != nil {
		t.Skip("no dash: scripts/tools names the packages that the tests need")
	}
	bin := t.TempDir()
	if err := os.Symlink(dash, filepath.Join(bin, "sh")); err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
		return shell.Process(ctx, dir, "", "env", "PATH="+bin+":"+os.Getenv("PATH"), "sh", "-c", s.Whole())
	}
}

func environmentOf(t *testing.T, c shell.Config) *shell.Environment {
	t.Helper()
	c.Description = environment.Description{Backend: "shell", Isolation: environment.IsolationNone}
	env, err := shell.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestConformanceOfBusyBox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	environmenttest.Run(t, environmentOf(t, shell.Config{Run: withBusyBox(t, dir), MaxScript: 8 << 20}),
		conformance.Options{Dir: dir})
}

// TestConformanceOfDash also shows that scripts of the default size fit into an argument.
func TestConformanceOfDash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	environmenttest.Run(t, environmentOf(t, shell.Config{Run: withDash(t, dir)}), conformance.Options{Dir: dir})
}

// changed returns a runner that changes the scripts and the output of another.
func changed(run shell.Runner, script func(string) string, out func(environment.Event) environment.Event) shell.Runner {
	return func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
		s.Text = script(s.Text)
		return func(yield func(environment.Event, error) bool) {
			for e, err := range run(ctx, s) {
				if !yield(out(e), err) {
					return
				}
			}
		}
	}
}

func same[T any](v T) T { return v }

func TestAProfileThatPrintsDoesNotChangeTheOutput(t *testing.T) {
	t.Parallel()
	for name, profile := range map[string]string{
		"lines": "echo Welcome!; echo warning >&2; ", "no newline": "printf 'Last login: '; printf x >&2; ",
		"much": "i=0; while [ $i -lt 3000 ]; do echo \"motd $i\"; i=$((i+1)); done; ", "bytes": `printf '\0\377boxfleet-'; `,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env := environmentOf(t, shell.Config{MaxScript: 8 << 20,
				Run: changed(withBusyBox(t, dir), func(s string) string { return profile + "\n" + s }, same)})
			result, err := environment.Execute(t.Context(), env, "echo out; echo err >&2; exit 3", environment.Options{})
			if err != nil || string(result.Stdout) != "out\n" || string(result.Stderr) != "err\n" || result.ExitCode != 3 {
				t.Errorf("%+v, %v", result, err)
			}
			if err := env.WriteFile(t.Context(), "file", []byte("a\x00b")); err != nil {
				t.Fatal(err)
			}
			if got, err := env.ReadFile(t.Context(), "file"); string(got) != "a\x00b" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if files, err := env.ListFiles(t.Context(), "."); len(files) != 1 || err != nil {
				t.Errorf("%v, %v", files, err)
			}
		})
	}
}

func TestAnAnswerThatIsNotBase64IsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := withBusyBox(t, dir)
	if err := environmentOf(t, shell.Config{Run: run, MaxScript: 8 << 20}).WriteFile(t.Context(), "file",
		[]byte(strings.Repeat("content ", 100))); err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(string) string{
		"an added word":   func(s string) string { return strings.Replace(s, "Y29u", "!Y29u", 1) },
		"a lost byte":     func(s string) string { return strings.Replace(s, "Y29u", "Y29", 1) },
		"a warning":       func(s string) string { return strings.Replace(s, "Y29u", "warning: x\nY29u", 1) },
		"nothing but end": func(s string) string { return strings.ReplaceAll(s, "=", "==") },
	} {
		env := environmentOf(t, shell.Config{MaxScript: 8 << 20,
			Run: changed(run, same, func(e environment.Event) environment.Event {
				if strings.Contains(string(e.Data), "Y29u") {
					e.Data = []byte(damage(string(e.Data)))
				}
				return e
			})})
		got, err := env.ReadFile(t.Context(), "file")
		if !errors.Is(err, environment.ErrGarbled) || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestAListThatIsNoListIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "name"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, answer := range []string{"fname", "xname\x00", "f\x00", "f../name\x00"} {
		env := environmentOf(t, shell.Config{MaxScript: 8 << 20, Run: changed(withBusyBox(t, dir), same,
			func(e environment.Event) environment.Event {
				e.Data = []byte(strings.Replace(string(e.Data), "fname\x00", answer, 1))
				return e
			})})
		if files, err := env.ListFiles(t.Context(), "."); !errors.Is(err, environment.ErrGarbled) {
			t.Errorf("%q: %v, %v", answer, files, err)
		}
	}
}

func TestAScriptThatIsCutDoesNotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := 0
	env := environmentOf(t, shell.Config{MaxScript: 8 << 20, Run: changed(withBusyBox(t, dir), func(s string) string {
		whole = len(s)
		return s
	}, same)})
	if _, err := environment.Execute(t.Context(), env, "echo >ran", environment.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ran")); err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < whole-1; cut += 17 {
		env := environmentOf(t, shell.Config{MaxScript: 8 << 20,
			Run: changed(withBusyBox(t, dir), func(s string) string { return s[:cut] }, same)})
		_, err := environment.Execute(t.Context(), env, "echo >ran", environment.Options{})
		if !errors.Is(err, environment.ErrUnavailable) {
			t.Errorf("cut at %d: %v", cut, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
			t.Fatalf("a script of which %d of %d bytes arrived ran its command", cut, whole)
		}
	}
}

func TestAShellThatCannotRunIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]shell.Runner{
		"no program": func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
			return shell.Process(ctx, "", s.Text, "/no/such/program")
		},
		"an error of its own": func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
			return shell.Process(ctx, "", s.Text, "sh", "-c", "echo no such host >&2; exit 255")
		},
		"no result": func(context.Context, shell.Script) iter.Seq2[environment.Event, error] {
			return func(func(environment.Event, error) bool) {}
		},
	} {
		_, err := environment.Execute(t.Context(), environmentOf(t, shell.Config{Run: run}), "echo ran",
			environment.Options{})
		if !errors.Is(err, environment.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "an error of its own" && !strings.Contains(err.Error(), "no such host") {
			t.Errorf("the error does not say why: %v", err)
		}
	}
}

func TestAConnectionThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context, s shell.Script) iter.Seq2[environment.Event, error] {
		return shell.Process(ctx, "", s.Text, "sleep", "60")
	}
	env := environmentOf(t, shell.Config{Run: hangs, Grace: time.Millisecond})
	env.SetKillTime(200 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := environment.Execute(ctx, env, "echo ran", environment.Options{})
	if !errors.Is(err, environment.ErrCancelled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestABadConfigIsRefused(t *testing.T) {
	t.Parallel()
	run := withDash(t, "")
	for field, c := range map[string]shell.Config{"Run": {}, "MaxScript": {Run: run, MaxScript: 1},
		"Grace": {Run: run, Grace: -1}} {
		_, err := shell.New(c)
		var e *environment.Error
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestALargeFileTravelsInBoundedMemory carries 24 MiB; with BOXFLEET_GIGABYTE=1 it carries 1 GiB and takes a minute.
func TestALargeFileTravelsInBoundedMemory(t *testing.T) {
	t.Parallel()
	size := int64(24 << 20)
	if os.Getenv("BOXFLEET_GIGABYTE") != "" {
		size = 1 << 30
	}
	dir := t.TempDir()
	env := environmentOf(t, shell.Config{Run: withBusyBox(t, dir), MaxScript: 8 << 20})
	if err := env.WriteFileFrom(t.Context(), "large", io.LimitReader(&pattern{}, size)); err != nil {
		t.Fatal(err)
	}
	r, err := env.OpenFile(t.Context(), "large")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	read, err := io.Copy(&pattern{t: t}, r)
	if err != nil || read != size {
		t.Errorf("read %d of %d bytes, %v", read, size, err)
	}
}

// pattern is an endless sequence of bytes, and checks one.
type pattern struct {
	t  *testing.T
	at uint32
}

func (p *pattern) next() byte {
	p.at++
	return byte(p.at * 2654435761 >> 24)
}

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = p.next()
	}
	return len(b), nil
}

func (p *pattern) Write(b []byte) (int, error) {
	for i, c := range b {
		if want := p.next(); c != want {
			p.t.Fatalf("byte %d of a chunk of %d differs", i, len(b))
		}
	}
	return len(b), nil
}
