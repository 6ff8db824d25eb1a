package environment_test

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// fieldOf returns the field that an invalid argument names, and fails the test for any other error.
func fieldOf(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var e *environment.Error
	if !errors.As(err, &e) || e.Kind != environment.Invalid || e.Field == "" {
		t.Fatalf("got %v, want an invalid field", err)
	}
	return e.Field
}

func TestX4_NamesOfVariablesAreCheckedAtFullLength(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"A", "_", "a1", "PATH", "_9"} {
		if err := environment.ValidateEnvKeys(map[string]string{name: ""}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "1A", "A B", "A=B", "A\n", "\nA", "A-B", "A;id", "É", "A\x00", "$(id)", "A.B"} {
		if err := environment.ValidateEnvKeys(map[string]string{"OK": "", name: ""}); fieldOf(t, err) != "env."+name {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := environment.BuildShellEnvPrefix(map[string]string{name: ""}); err == nil {
			t.Errorf("%q became part of a prefix", name)
		}
	}
}

func TestX3_LanguagesAreCheckedAtFullLength(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"python", "python3.12", "c", "node", "a_b-c"} {
		if err := environment.CheckLanguage(language); err != nil {
			t.Errorf("%q: %v", language, err)
		}
	}
	for _, language := range []string{"", "python\n", "\npython", "-c", "a b", "a/b", "..", ".", "$(id)", "a;b", "é",
		strings.Repeat("a", 65)} {
		if err := environment.CheckLanguage(language); fieldOf(t, err) != "language" {
			t.Errorf("%q: %v", language, err)
		}
	}
	if err := environment.CheckCode("sh", strings.Repeat("a", environment.MaxCode+1)); fieldOf(t, err) != "code" {
		t.Errorf("long code: %v", err)
	}
}

func TestX2_PathsAndCommandsWithNULAreRefused(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"a", "/", "-rf", "a\nb", "$(id)", "é", "'\"`",
		strings.Repeat("a", environment.MaxPath)} {
		if err := environment.CheckPath("path", path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, path := range []string{"", "a\x00b", "\xff", strings.Repeat("a", environment.MaxPath+1)} {
		if err := environment.CheckPath("path", path); fieldOf(t, err) != "path" {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, command := range []string{"", " \n\t", "a\x00", strings.Repeat("a", environment.MaxCommand+1)} {
		if err := environment.CheckCommand(command); fieldOf(t, err) != "command" {
			t.Errorf("%.20q: %v", command, err)
		}
	}
}

func TestABadOptionIsNamed(t *testing.T) {
	t.Parallel()
	for field, o := range map[string]environment.Options{
		"timeout": {Timeout: -time.Second}, "dir": {Dir: "a\x00"}, "user": {User: "a b"},
		"env.1": {Env: map[string]string{"1": ""}}, "env.A": {Env: map[string]string{"A": "\x00"}},
		"env": {Env: map[string]string{"A": strings.Repeat("a", 64<<10)}},
	} {
		if err := o.Check(); fieldOf(t, err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, user := range []string{"root", "0", "1000:1000", "box:box", "a-b.c_d"} {
		if err := (environment.Options{User: user}).Check(); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	for _, user := range []string{"-u", "a\n", ":a", "a:", "a:b:c", "$(id)"} {
		if err := (environment.Options{User: user}).Check(); fieldOf(t, err) != "user" {
			t.Errorf("%q: %v", user, err)
		}
	}
}

// TestAShellReadsThePrefixAsItWasMeant gives each value to a real shell.
func TestAShellReadsThePrefixAsItWasMeant(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "it's", "B": "$(id) `id` \"x\" \\", "C": "two\nlines\n", "D": "", "_e": "\xff\x01 é"}
	prefix, err := environment.BuildShellEnvPrefix(env)
	if err != nil || !strings.HasPrefix(prefix, `export A='it'\''s' && export B=`) {
		t.Fatalf("%q, %v", prefix, err)
	}
	if none, err := environment.BuildShellEnvPrefix(nil); none != "" || err != nil {
		t.Errorf("without variables: %q, %v", none, err)
	}
	out, err := exec.Command("sh", "-c", prefix+`printf '%s|' "$A" "$B" "$C" "$D" "$_e"`).Output()
	want := env["A"] + "|" + env["B"] + "|" + env["C"] + "|" + env["D"] + "|" + env["_e"] + "|"
	if err != nil || string(out) != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
}

func TestErrorsMatchTheirSentinels(t *testing.T) {
	t.Parallel()
	late := error(&environment.TimeoutError{After: time.Second})
	missing := error(environment.Wrap(environment.NotFound, errors.New("gone"), "read x"))
	switch {
	case !errors.Is(late, environment.ErrTimeout) || environment.KindOf(late) != environment.Timeout:
		t.Errorf("%v is no timeout", late)
	case !errors.Is(missing, environment.ErrNotFound) || !errors.Is(missing, fs.ErrNotExist):
		t.Errorf("%v does not match", missing)
	case errors.Is(missing, environment.ErrPermission) || errors.Is(missing, fs.ErrPermission):
		t.Errorf("%v matches another kind", missing)
	case !errors.Is(environment.Errorf(environment.Permission, ""), fs.ErrPermission):
		t.Error("a permission error does not match fs.ErrPermission")
	case environment.KindOf(context.Canceled) != environment.Cancelled || environment.KindOf(nil) != "":
		t.Error("the kind of other errors is wrong")
	case environment.KindOf(errors.New("x")) != environment.Failed:
		t.Error("an unknown error has no kind")
	}
}

func TestCollectKeepsWhatWasPrintedWithAnError(t *testing.T) {
	t.Parallel()
	lost := environment.Errorf(environment.Unavailable, "lost")
	for _, end := range []error{&environment.TimeoutError{After: time.Second}, lost} {
		result, err := environment.Collect(func(yield func(environment.Event, error) bool) {
			_ = yield(environment.Event{Stream: environment.Stdout, Data: []byte("out")}, nil) &&
				yield(environment.Event{Stream: environment.Stderr, Data: []byte("err")}, nil) && yield(environment.Event{}, end)
		})
		var late *environment.TimeoutError
		if errors.As(err, &late) {
			result = late.Result
		} else if !errors.Is(err, lost) {
			t.Error(err)
		}
		if string(result.Stdout) != "out" || string(result.Stderr) != "err" ||
			result.ExitCode != environment.UnknownExitCode {
			t.Errorf("%v: %+v", err, result)
		}
	}
	result, err := environment.Collect(func(func(environment.Event, error) bool) {})
	if !errors.Is(err, environment.ErrGarbled) || result.ExitCode != environment.UnknownExitCode {
		t.Errorf("no result: %+v, %v", result, err)
	}
}

func TestCollectCutsLongOutput(t *testing.T) {
	t.Parallel()
	chunk := make([]byte, 1<<20)
	result, err := environment.Collect(func(yield func(environment.Event, error) bool) {
		for range environment.MaxOutput/len(chunk) + 1 {
			if !yield(environment.Event{Stream: environment.Stdout, Data: chunk}, nil) {
				return
			}
		}
		yield(environment.Event{Result: &environment.Result{}}, nil)
	})
	if err != nil || len(result.Stdout) != environment.MaxOutput || !result.Truncated || result.ExitCode != 0 {
		t.Errorf("%d bytes, truncated %v, %v", len(result.Stdout), result.Truncated, err)
	}
}
