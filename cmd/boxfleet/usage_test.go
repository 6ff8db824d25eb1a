package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// call runs the program to its end.
func call(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func TestWrongUsageEndsWithCode2AndNamesTheMistake(t *testing.T) {
	clean(t)
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	named := filepath.Join(t.TempDir(), "named.yaml")
	write(t, named, "id: a\nimage: x\n")
	twice := filepath.Join(t.TempDir(), "twice.yaml")
	write(t, twice, "image: x\npids: 1\n---\nimage: x\ncpu: -1\n")
	write(t, spec, "image: x\nenv:\n  A: 1\nmemroy: 512m\n")
	for line, want := range map[string]string{
		"nonsense":                                         "nonsense",
		"sandbox":                                          "missing subcommand; see boxfleet sandbox --help",
		"sandbox nonsense":                                 "nonsense",
		"sandbox get":                                      "SANDBOX",
		"sandbox get a b":                                  `"b"`,
		"sandbox get a.b":                                  "a.b",
		"sandbox create":                                   "--image is missing",
		"sandbox create --image x --cpu many":              "--cpu",
		"sandbox create --image x --memory 1q":             "--memory",
		"sandbox create --image x --env A":                 "--env",
		"sandbox create --image x --env 1A=b":              "spec.env.1A",
		"sandbox create --image x --mount /a":              "--mount",
		"sandbox create --image x --mount /a:/b:rx":        "--mount",
		"sandbox create --image x --id a.b":                "--id",
		"sandbox create --image x --nonsense":              "--nonsense",
		"sandbox create --image x --name --read-only":      "the name may be missing",
		"sandbox create -f " + spec:                        "spec.memroy: " + spec + ": line 4, column 1",
		"sandbox create -f /nonexistent":                   "/nonexistent",
		"fs ls web:/etc":                                   "two arguments of boxfleet fs ls: write web /etc",
		"fs cat web:/etc/hosts":                            "two arguments of boxfleet fs cat: write web /etc/hosts",
		"fs ls web /a /b":                                  `unexpected argument "/b"`,
		"forward web":                                      "PORT is missing",
		"forward web http":                                 "must be PORT, LOCAL:PORT or LOCAL:/path",
		"forward a.b 80":                                   "SANDBOX",
		"forward web 80 --service a.b":                     "--service",
		"wait web --port 0":                                "--port",
		"wait web --http 80":                               "--http",
		"wait web --port 80 --http 80/":                    "exclude each other",
		"wait web x --port 80":                             "leave out EXEC",
		"wait web --port 80 --contains x":                  "--contains",
		"sandbox create --image x --mount cache:/x":        "spec.mounts[0].source",
		"sandbox create --image x --tmpfs /x:":             "--tmpfs",
		"sandbox create --image x --copy-exclude *.o":      "--copy-exclude",
		"sandbox create --image x --copy-owner 1000":       "--copy-owner",
		"sandbox create --image x --on-delete-timeout 5m":  "--on-delete-timeout",
		"run --image x -f - -i -- cat":                     "--file - and --stdin",
		"sandbox extend web":                               "DURATION is missing",
		"sandbox extend web 1.5x":                          "DURATION: must be a duration such as 90s",
		"sandbox extend we.b 1h":                           "we.b",
		"sandbox extend web 1h 2h":                         `"2h"`,
		"sandbox delete":                                   "SANDBOX",
		"sandbox delete a --label k=v":                     `"a"`,
		"exec a":                                           "COMMAND is missing",
		"exec a --":                                        "COMMAND is missing",
		"exec a.b ls":                                      "a.b",
		"exec a -o xml ls -o json":                         "output",
		"exec -- ls":                                       "SANDBOX",
		"exec a --timeout 5 -- ls":                         `--timeout: must be a duration such as 90s or 1h30m, got "5"`,
		"run --image x --cpu x ls":                         `--cpu: must be a number, got "x"`,
		"completion":                                       "missing subcommand",
		"completion tcsh":                                  "unknown command",
		"help nonsense":                                    "unknown command",
		"help sandbox nonsense":                            "unknown command",
		"exec --tiemout 1s a ls":                           "did you mean --timeout?",
		"sandbx list":                                      "did you mean `boxfleet sandbox`?",
		"sandbox lsit":                                     "did you mean `boxfleet sandbox list`?",
		"stop web":                                         "did you mean `boxfleet sandbox stop`?",
		"ps --state raedy":                                 "did you mean ready?",
		"rm":                                               "SANDBOX is missing",
		"rm a b.c":                                         "b.c",
		"logs web --since soon":                            "--since: must be a time",
		"logs web --since -5m":                             "--since: must be a time",
		"logs web --tail -1":                               "--tail: must not be negative",
		"execs logs web x --tail -2":                       "--tail: must not be negative",
		"run --image x":                                    "COMMAND is missing",
		"exec a --cwd relative -- ls":                      "spec.cwd",
		"run -f " + named + " -- ls":                       "id is for sandbox create and apply",
		"apply":                                            "--file",
		"apply -f " + spec:                                 "spec.memroy",
		"apply a -f x":                                     `"a"`,
		"spec":                                             "spec --help",
		"spec validate":                                    "--file",
		"spec validate -f " + spec:                         "spec.memroy",
		"spec validate -f " + twice:                        "\n  spec.cpu: " + twice + ": line 5, column 6: must be 0.01",
		"spec render -f " + spec:                           "spec.memroy",
		"spec render --offline":                            "spec.image",
		"run -- ls":                                        "spec.image",
		"ping -o xml":                                      "output",
		"ping --wait -1s":                                  "--wait: must not be negative, got -1s",
		"exec a --timeout -1s -- ls":                       "timeout",
		"ping --config /nonexistent":                       "/nonexistent",
		"coordinator":                                      "--nats",
		"worker --nats nats://127.0.0.1:1 --slots several": "worker.slots",
		"up --listen 127.0.0.1:99999":                      "up.listen",
	} {
		t.Run(line, func(t *testing.T) {
			code, stdout, stderr := call(t.Context(), "", strings.Fields(line)...)
			if code != exitUsage || !strings.Contains(stderr, want) || stdout != "" {
				t.Errorf("want exit code 2 and %q on stderr\ngot %d, stdout %q, stderr %q", want, code, stdout, stderr)
			}
		})
	}
}

// fullDisk is a writer that always fails.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	clean(t)
	for _, line := range []string{"version", "version -o json", "spec example"} {
		var stderr strings.Builder
		if code := run(t.Context(), strings.Fields(line), strings.NewReader(""), fullDisk{}, &stderr); code != exitFailure ||
			!strings.Contains(stderr.String(), "boxfleet: ") && !strings.Contains(stderr.String(), "error") {
			t.Errorf("%s: got %d, %q", line, code, stderr.String())
		}
	}
}

func TestStdinOfADetachedExecIsBounded(t *testing.T) {
	clean(t)
	code, _, stderr := call(t.Context(), strings.Repeat("x", protocol.MaxStdin+1), "exec", "a", "--detach", "-i", "--",
		"cat")
	if code != exitUsage || !strings.Contains(stderr, "stdin") {
		t.Errorf("got %d, %q", code, stderr)
	}
}

func TestWithoutAFleetClientsEndWithAnError(t *testing.T) {
	clean(t)
	for line, want := range map[string]int{
		"ping --nats nats://127.0.0.1:1":                  exitFailure,
		"exec a --nats nats://127.0.0.1:1 -- ls":          exitNotRun,
		"ping --wait 300ms --nats nats://127.0.0.1:1":     exitFailure,
		"sandbox extend a 1.5h --nats nats://127.0.0.1:1": exitFailure,
	} {
		code, _, stderr := call(t.Context(), "", strings.Fields(line)...)
		if code != want || !strings.Contains(stderr, "unavailable") {
			t.Errorf("%s: want %d, got %d, %q", line, want, code, stderr)
		}
		code, _, stderr = call(t.Context(), "", append([]string{"-o", "json"}, strings.Fields(line)...)...)
		if code != want || !strings.HasPrefix(stderr, `{"error":{"code":"unavailable"`) {
			t.Errorf("%s as JSON: want %d, got %d, %q", line, want, code, stderr)
		}
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Short == "" || !c.HasSubCommands() && c.Example == "" {
			t.Errorf("%s: short help %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newProgram(nil, io.Discard, io.Discard).root())
	code, stdout, _ := call(t.Context(), "", "exec", "--help")
	if code != 0 || !strings.Contains(stdout, "Examples:") {
		t.Errorf("got %d, %q", code, stdout)
	}
}

// boxfleetLine matches the command lines of boxfleet in an example. Each match ends at a shell operator.
var boxfleetLine = regexp.MustCompile(`boxfleet [^|&<>()\n]*`)

// quoted matches the words of a command line. A part of a word may be in single quotes.
var quoted = regexp.MustCompile(`('[^']*'|[^\s'])+`)

func TestEveryExampleCanBeCopied(t *testing.T) {
	clean(t)
	var examples []string
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		examples = append(examples, boxfleetLine.FindAllString(
			strings.ReplaceAll(c.Example, "$(", "x ("), -1)...)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newProgram(nil, io.Discard, io.Discard).root())
	if len(examples) < 50 {
		t.Errorf("found only %d examples", len(examples))
	}
	for _, line := range examples {
		var args []string
		for _, word := range quoted.FindAllString(line, -1)[1:] {
			args = append(args, strings.ReplaceAll(word, "'", ""))
		}
		root := newProgram(nil, io.Discard, io.Discard).root()
		cmd, _, err := root.Find(args)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		cmd.RunE = func(*cobra.Command, []string) error { return nil }
		root.SetArgs(args)
		root.SetOut(io.Discard)
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// documentOf returns the document that these flags describe.
func documentOf(t *testing.T, args ...string) (*spec.Document, error) {
	t.Helper()
	var flags specFlags
	cmd := &cobra.Command{}
	flags.add(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return flags.document(os.Stdin, nil)
}

func TestSpecFromYAMLAndFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	write(t, file,
		"image: one\ncommand: [sleep, \"1\"]\nenv: {A: 1, B: yes}\nmemory: 512m\ncpu: 0.5\nidle_ttl: 10m\n"+
			"mounts:\n- {source: /srv, target: /data}\n")
	d, err := documentOf(t, "-f", file, "--image", "two", "--env", "B=2", "--cpu", "2", "--mount", "/x:/y:ro")
	if err != nil {
		t.Fatal(err)
	}
	s := d.Spec
	if s.Image != "two" || s.Env["A"] != "1" || s.Env["B"] != "2" || s.Memory != 512<<20 || s.CPU != 2 ||
		s.IdleTTL.String() != "10m0s" ||
		len(s.Mounts) != 2 || s.Mounts[0].Source != "/srv" || s.Mounts[1].Target != "/y" || len(s.Command) != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestP9_AnErrorInASpecNamesItsLineAndColumn(t *testing.T) {
	for text, want := range map[string]string{
		"image: x\nimagee: y":           "spec.imagee: FILE: line 2, column 1: is not a known field",
		"image: x\nmounts:\n- sauce: /": "spec.mounts[0].sauce: FILE: line 3, column 3",
		"image: x\n---\nimage: y":       "FILE: line 3, column 1: there is more than one document",
		"image: [x":                     "FILE: line 1",
	} {
		file := filepath.Join(t.TempDir(), "spec.yaml")
		write(t, file, text)
		_, err := readSpec(file, nil)
		want = strings.ReplaceAll(want, "FILE", file)
		if err == nil || !strings.Contains(err.Error(), want) || codeOf(err) != exitUsage {
			t.Errorf("%q: want %q, got %v", text, want, err)
		}
	}
}

func TestAnEmptyFlagOverridesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	write(t, file, "image: one\nread_only: true\ncpu: 2\nuser: app\ngrace: 1s\npids: 99\n")
	d, err := documentOf(t, "-f", file, "--read-only=false", "--cpu", "0", "--user", "", "--stop-grace", "2s")
	if err != nil {
		t.Fatal(err)
	}
	if s := d.Spec; s.ReadOnly || s.CPU != 0 || s.User != "" || s.Grace.String() != "2s" || s.PIDs != 99 {
		t.Errorf("got %+v", s)
	}
}

func TestAFlagSetsTheTimeoutOfTheOnDeleteCommandInTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	write(t, file, "image: one\non_delete: {command: [sync, now], timeout: 1m}\n")
	d, err := documentOf(t, "-f", file, "--on-delete-timeout", "5m")
	if err != nil || d.Spec.OnDelete.Timeout.String() != "5m0s" ||
		!slices.Equal(d.Spec.OnDelete.Command, []string{"sync", "now"}) {
		t.Errorf("got %+v, %v", d, err)
	}
	if _, err = documentOf(t, "-f", file, "--on-delete-timeout", "5h"); err == nil || strings.Contains(err.Error(), file) {
		t.Errorf("the error of a wrong flag must not blame the file: %v", err)
	}
}

func TestServicesFromFlagsOverrideThoseOfTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	write(t, file, `image: one
required_services: {db: {image: postgres, memory: 1g, env: {A: 1, B: 1}}, web: {image: httpd, user: app}}
optional_services: {cache: {image: redis}}
`)
	document := func(args ...string) (*spec.Document, error) {
		return documentOf(t, append([]string{"-f", file}, args...)...)
	}
	_, err := document("--service", "web=nginx:1=x", "--service", "new=n", "--optional-service", "extra=e",
		"--service-env", "db.B=2",
		"--service-env", "db.C=x.y=z", "--service-env", "cache.D=", "--service-env", "new.E=5", "--copy", "/a:new:/b")
	if err == nil || protocol.AsError(err).Field != "spec.required_services.web.image" {
		t.Errorf("an invalid image reference: %v", err)
	}
	d, err := document("--service", "web=nginx:1", "--service", "new=n", "--optional-service", "extra=e", "--service-env",
		"db.B=2",
		"--service-env", "db.C=x.y=z", "--service-env", "cache.D=", "--service-env", "new.E=5", "--copy", "/a:new:/b")
	if err != nil {
		t.Fatal(err)
	}
	want := protocol.SandboxSpec{Image: "one",
		RequiredServices: protocol.Services{"db": {Image: "postgres", Memory: 1 << 30,
			Env: map[string]string{"A": "1", "B": "2", "C": "x.y=z"}},
			"web": {Image: "nginx:1"}, "new": {Image: "n", Env: map[string]string{"E": "5"}}},
		OptionalServices: protocol.Services{"cache": {Image: "redis", Env: map[string]string{"D": ""}},
			"extra": {Image: "e"}},
		Copies: []protocol.Copy{{Target: "/b", Service: "new"}}}
	if diff := spec.Difference(d.Spec, want); diff != nil {
		t.Errorf("differs in %v: %+v", diff, d.Spec)
	}
	for _, wrong := range [][]string{
		{"--service", "db"}, {"--service", "=x"}, {"--service", "db="}, {"--service", "a=b", "--service", "a=c"},
		{"--optional-service", "x"},
		{"--service-env", "db=x"}, {"--service-env", "db.A"}, {"--service-env", "nobody.A=1"}, {"--service-env", ".A=1"},
		{"--service-env", "db.=1"},
		{"--service", "cache=x"}, {"--copy", "/a:nobody:/b"}, {"--copy", "/a:"}, {"--copy", "/a::/b"},
	} {
		if _, err := document(wrong...); codeOf(err) != exitUsage {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// --grace sets the grace period of the exec. The sandbox's spec also has a field grace.
func TestTheFlagsOfAnExecDoNotChangeTheSandboxsSpec(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	write(t, file, "image: one\ngrace: 7s\n")
	var box specFlags
	var exec execFlags
	cmd := &cobra.Command{}
	box.add(cmd)
	exec.add(cmd)
	if err := cmd.ParseFlags([]string{"-f", file, "--grace", "1s"}); err != nil {
		t.Fatal(err)
	}
	if d, err := box.document(os.Stdin, nil); err != nil || d.Spec.Grace.String() != "7s" {
		t.Errorf("got %v, %v", d, err)
	}
}

func TestTheExampleAndTheSchemaCanBePrinted(t *testing.T) {
	clean(t)
	_, example, _ := call(t.Context(), "", "spec", "example")
	code, stdout, stderr := call(t.Context(), example, "spec", "validate", "-f", "-")
	if code != 0 || stdout != "stdin: document 1 is valid: web\n" {
		t.Errorf("validate what example prints: %d, %q, %s", code, stdout, stderr)
	}
	code, stdout, stderr = call(t.Context(), example, "spec", "render", "-f", "-", "--offline")
	if code != 0 || !strings.Contains(stdout, "source: ./src\n") {
		t.Errorf("render what example prints: %d, %q, %s", code, stdout, stderr)
	}
	unmasked := strings.ReplaceAll(stdout, protocol.Masked, "abc") // the value of a sensitive variable is not shown
	if code, again, stderr := call(t.Context(), unmasked, "spec", "render", "-f", "-", "--offline"); code != 0 ||
		len(again) != len(stdout) {
		t.Errorf("render what render prints: %d, %q, %s", code, again, stderr)
	}
	code, stdout, stderr = call(t.Context(), "", "spec", "example", "-o", "json")
	if !json.Valid([]byte(stdout)) {
		t.Errorf("the example as JSON: %d, %q, %s", code, stdout, stderr)
	}
	if code, stdout, stderr := call(t.Context(), stdout, "spec", "validate", "-f", "-"); code != 0 ||
		stdout != "stdin: document 1 is valid: web\n" {
		t.Errorf("validate what example prints as JSON: %d, %q, %s", code, stdout, stderr)
	}
	if code, stdout, _ := call(t.Context(), "", "spec", "schema"); code != 0 || !strings.Contains(stdout, `"$schema"`) {
		t.Errorf("schema: %d, %.80q", code, stdout)
	}
}

func TestUploadPathsAreRelativeToTheSpecFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "spec.yaml")
	text := "image: one\ncopies: [a/b:/b, /c:/c]\n"
	write(t, file, text)
	for name, want := range map[string]string{file: dir + "/a/b", "-": "a/b"} {
		d, err := readSpec(name, strings.NewReader(text))
		if err != nil || d.Copies[0].Source != want || d.Copies[1].Source != "/c" {
			t.Errorf("%s: got %+v, %v", name, d, err)
		}
	}
}

func TestFilesCopiedIntoADirectoryKeepTheirNames(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "")
	write(t, filepath.Join(dir, "b"), "")
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "spec.yaml")
	for copies, want := range map[string][]string{
		"a:/x/, b:/x/, c:/x/":  {"/x/a", "/x/b", "/x/"},
		"a:/, b:/":             {"/a", "/b"},
		"a:/x, c:/y, gone:/z/": {"/x", "/y", "/z/"},
	} {
		write(t, file, "image: one\ncopies: ["+copies+"]\n")
		args := []string{"--image", "one"}
		for _, c := range strings.Split(copies, ", ") {
			args = append(args, "--copy", dir+"/"+c)
		}
		for _, args := range [][]string{{"-f", file}, args} {
			d, err := documentOf(t, args...)
			if err != nil {
				t.Errorf("%q: %v", args, err)
				continue
			}
			var got []string
			for _, c := range d.Spec.Copies {
				got = append(got, c.Target)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q: want %q, got %q", args, want, got)
			}
		}
		if code, _, stderr := call(t.Context(), "", "spec", "validate", "-f", file); code != 0 {
			t.Errorf("validate %s: %d, %s", copies, code, stderr)
		}
	}
}
