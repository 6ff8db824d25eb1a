package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// These tests check the requirements on execs, files and sandboxes. Each test name starts with the code of its
// requirement.

// script returns an exec that runs a line of shell.
func script(text string) protocol.ExecSpec {
	return protocol.ExecSpec{Command: []string{"sh", "-c", text}}
}

// mustExec runs an exec that must finish with exit code 0 and returns its stdout.
func mustExec(ctx context.Context, t *testing.T, s *sdk.Sandbox, spec protocol.ExecSpec) string {
	t.Helper()
	r, err := s.Exec(ctx, spec)
	if err != nil {
		t.Fatalf("exec %.100q: %v", spec.Command, err)
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("exec %.100q: exit code %v, stderr %q", spec.Command, code(r), r.Stderr)
	}
	return string(r.Stdout)
}

// code formats a result's exit code.
func code(r *sdk.Result) string {
	if r == nil || r.ExitCode == nil {
		return "not known"
	}
	return fmt.Sprint(*r.ExitCode)
}

// wantError fails the test unless err is an *Error with this code, reason and field. If reason or field is empty,
// wantError accepts any value.
func wantError(t *testing.T, what string, err error, code protocol.Code, reason, field string) {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) {
		t.Errorf("%s: got the error %v, want a *protocol.Error", what, err)
		return
	}
	if e.Code != code || reason != "" && e.Reason != reason || field != "" && e.Field != field {
		t.Errorf("%s: got %v, want %s (%s) in field %q", what, e, code, reason, field)
	}
}

// hardWords are words that a shell would change or interpret.
var hardWords = []string{
	"a b", "'", `"`, `'"'"'`, "$(touch /tmp/pwned)", "`touch /tmp/pwned`", "; touch /tmp/pwned", "-n", "--", "-",
	"new\nline",
	"tab\there", "ü 日本 😀", "*", "\\", "${HOME}", "%s%n", "", "\x01\x7f", "not \xff\xfe utf-8",
}

func TestX1_BytesOfAnyKindComeBackUnchanged(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	table := make([]byte, 256)
	for i := range table {
		table[i] = byte(i)
	}
	random := make([]byte, 10<<20)
	_, _ = rand.Read(random) // never fails
	source := filepath.Join(t.TempDir(), "ten megabytes")
	if err := os.WriteFile(source, random, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	copied, err := f.Client.Upload(ctx, source, "/data/ten megabytes")
	if err != nil {
		t.Fatal(err)
	}
	spec.Copies = []protocol.Copy{copied}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("x1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"nothing": {}, "one zero byte": {0}, "all 256 " +
			"bytes": table, "delimiters": []byte("EOF\n'\"`$(x)\\\r\n\x00BOXFLEET\n"),
		"96 KiB": random[:96<<10], "97 KiB": random[:97<<10], "128 KiB": random[:128<<10],
	} {
		r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"cat"}, Stdin: content})
		if err != nil || !bytes.Equal(r.Stdout, content) {
			t.Errorf("%s through stdin and stdout: %v, %d bytes of %d came back, or they differ", name, err, len(r.Stdout),
				len(content))
		}
	}
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"cat", "/data/ten megabytes"}}, sdk.WithCollect(64<<20))
	if err != nil || !bytes.Equal(r.Stdout, random) {
		t.Errorf("10 MB through a copy and stdout: %v, %d bytes came back, or they differ", err, len(r.Stdout))
	}
	_, err = s.Exec(ctx, protocol.ExecSpec{Command: []string{"cat"}, Stdin: random[:128<<10+1]})
	wantError(t, "stdin above the bound", err, protocol.InvalidArgument, "", "spec.stdin")
}

func TestX2_ArgumentsAndPathsAreNeverShell(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x2")
	got := mustExec(ctx, t, s, protocol.ExecSpec{Command: append([]string{"sh", "-c", `printf '%s\0' "$@"`, "sh"},
		hardWords...)})
	if want := strings.Join(hardWords, "\x00") + "\x00"; got != want {
		t.Errorf("arguments arrive as\n%q, want\n%q", got, want)
	}
	for _, word := range hardWords {
		if word == "" {
			continue
		}
		dir := "/tmp/dir/" + word
		mustExec(ctx, t, s, protocol.ExecSpec{Command: []string{"mkdir", "-p", dir}})
		if got := mustExec(ctx, t, s, protocol.ExecSpec{Command: []string{"pwd"},
			Cwd: dir}); got != filepath.Clean(dir)+"\n" {
			t.Errorf("a command in the directory %q runs in %q", dir, got)
		}
		mustExec(ctx, t, s, protocol.ExecSpec{Command: []string{"cp", "/bin/busybox", dir + "/true"}})
		mustExec(ctx, t, s, protocol.ExecSpec{Command: []string{dir + "/true"}})
	}
	mustExec(ctx, t, s, protocol.ExecSpec{Command: []string{"test", "!", "-e", "/tmp/pwned"}})

	for field, spec := range map[string]protocol.ExecSpec{
		"spec.command[1]": {Command: []string{"echo", "a\x00b"}},
		"spec.cwd":        {Command: []string{"true"}, Cwd: "/tmp\x00/"},
		"spec.env.A":      {Command: []string{"true"}, Env: map[string]string{"A": "\x00"}},
	} {
		_, err := s.Exec(ctx, spec)
		wantError(t, "a NUL byte in "+field, err, protocol.InvalidArgument, "", field)
		_, err = f.Client.Raw().Submit(ctx, sdk.Request{Verb: protocol.VerbExec, Sandbox: s.ID(),
			Payload: protocol.Request{ExecID: "nul", Exec: &spec}})
		wantError(t, "a NUL byte, bypassing the SDK, in "+field, err, protocol.InvalidArgument, "", field)
	}
}

func TestX3_CodeGoesInOnStdinToAnyInterpreterOfTheImage(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x3")
	const text = "echo \"it's $((6*7))\" '\"quoted\"'\ncat <<'EOF'\n$(not run) `nor this` é\nEOF\n"
	for _, interpreter := range []string{"sh", "ash"} {
		r, err := s.RunCode(ctx, interpreter, text)
		if want := "it's 42 \"quoted\"\n$(not run) `nor this` é\n"; err != nil || string(r.Stdout) != want {
			t.Errorf("%s: %v, got %q, want %q", interpreter, err, r.Stdout, want)
		}
	}
	r, err := s.RunCode(ctx, "python3.99", "print(1)")
	if err != nil || code(r) != "127" || len(r.Stderr) == 0 {
		t.Errorf("an interpreter missing in the image: %v, exit code %s, stderr %q; want 127 and a message", err, code(r),
			r.Stderr)
	}
	for _, name := range []string{"", "sh\n", "\nsh", "sh -c", "/bin/sh", "../sh", "sh;id", "-sh", "sh\x00", "$(sh)",
		"pythön"} {
		_, err := s.RunCode(ctx, name, "echo")
		wantError(t, fmt.Sprintf("the interpreter %q", name), err, protocol.InvalidArgument, "", "interpreter")
	}
}

func TestX4_EnvironmentHasLayersAndCheckedNames(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Env = map[string]string{"FROM_SANDBOX": "sandbox", "OVER": "sandbox", "_odd9": "a=b c'd\"\n$x"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("x4"))
	if err != nil {
		t.Fatal(err)
	}
	show := script(`printf '%s|' "$PATH" "$FROM_SANDBOX" "$OVER" "$FROM_EXEC" "$_odd9"`)
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if got, want := mustExec(ctx, t, s, show), path+"|sandbox|sandbox||a=b c'd\"\n$x|"; got != want {
		t.Errorf("image and sandbox: %q, want %q", got, want)
	}
	show.Env = map[string]string{"OVER": "exec", "FROM_EXEC": "exec", "PATH": "/bin:/x"}
	if got, want := mustExec(ctx, t, s, show), "/bin:/x|sandbox|exec|exec|a=b c'd\"\n$x|"; got != want {
		t.Errorf("image, sandbox and exec: %q, want %q", got, want)
	}
	show.Env = nil
	if got := mustExec(ctx, t, s, show); strings.Contains(got, "exec") {
		t.Errorf("an exec sees the previous exec's environment: %q", got)
	}
	for _, name := range []string{"", "1A", "A-B", "A.B", "A B", "A=B", "A\n", "\nA", "Ä", "A\x00"} {
		bad := map[string]string{name: "x"}
		_, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, Env: bad})
		wantError(t, fmt.Sprintf("exec with the variable %q", name), err, protocol.InvalidArgument, "", "spec.env."+name)
		spec := f.Spec()
		spec.Env = bad
		_, err = f.Client.Create(ctx, spec)
		wantError(t, fmt.Sprintf("sandbox with the variable %q", name), err, protocol.InvalidArgument, "", "spec.env."+name)
	}
}

func TestX9_TheResultWaitsForTheMainProcessOnly(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x9")
	begin := time.Now()
	// The main process ends only once both background processes run: the second one starts in a shell of its own.
	r, err := s.Exec(ctx, script(`sleep 100 & echo started; (sleep 100; echo never) &
		until [ "$(ps -o args | grep -c '^sleep 100')" = 2 ]; do :; done
		exit 4`))
	if err != nil || code(r) != "4" || string(r.Stdout) != "started\n" {
		t.Errorf("got %v, exit code %s, %q", err, code(r), r.Stdout)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the result came after %s", took)
	}
	if got := mustExec(ctx, t, s, script("ps -o args | grep -c '^sleep 100'")); got != "2\n" {
		t.Errorf("%s background processes are left, want 2: they belong to the sandbox and keep running",
			strings.TrimSpace(got))
	}
}

func TestX10_ATimeoutEndsTheWholeTreeAndSparesTheSandbox(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x10")
	const stubborn = `trap '' TERM INT HUP; while :; do sleep 4711; done`
	spec := script(`
		trap 'echo got TERM' TERM
		echo before
		sh -c "` + stubborn + `" &
		setsid sh -c "` + stubborn + `" &
		( ( setsid sh -c "` + stubborn + `" & ) & )
		nohup sh -c "` + stubborn + `" >/dev/null 2>&1 </dev/null &
		while :; do echo tick >&2; usleep 20000; done`)
	const timeout, grace = 2 * time.Second, time.Second // the timeout is long enough for a shell to print a word
	spec.Timeout, spec.Grace = protocol.Duration(timeout), protocol.Duration(grace)
	r, err := s.Exec(ctx, spec)
	wantError(t, "an exec that timed out", err, protocol.DeadlineExceeded, protocol.ReasonTimeout, "")
	if r == nil {
		t.Fatal("no result")
	}
	if r.State != protocol.ExecStateTimedOut || !strings.HasPrefix(string(r.Stdout), "before\n") ||
		!strings.Contains(string(r.Stdout), "got TERM") || !strings.Contains(string(r.Stderr), "tick") {
		t.Errorf("state %s, stdout %q, %d bytes of stderr; want what was printed so far", r.State, r.Stdout, len(r.Stderr))
	}
	if took := r.Ended.Sub(r.Started); took < timeout+grace-100*time.Millisecond || took > timeout+grace+5*time.Second {
		t.Errorf("ended after %s, want timeout and grace, %s: output must not move the end", took, timeout+grace)
	}
	if left := mustExec(ctx, t, s, script(`ps -o pid,stat,args | grep '[s]leep 4711' | grep -v ' Z' || `+
		`true`)); left != "" {
		t.Errorf("processes survive the timeout:\n%s", left)
	}
	if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateReady {
		t.Errorf("the sandbox is %s: %v", s.Info().State, err)
	}
}

func TestX11_ExitCodesAreTheTruth(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x11")
	for text, want := range map[string]string{
		"exit 0": "0", "exit 1": "1", "exit 255": "255", "kill -KILL $$": "137", "kill -TERM $$": "143",
		"kill -SEGV $$":   "139",
		"no-such-command": "127",
	} {
		r, err := s.Exec(ctx, script(text))
		if err != nil || code(r) != want || r.State != protocol.ExecStateFinished {
			t.Errorf("%s: %v, %s with exit code %s, want %s", text, err, r.State, code(r), want)
		}
	}
	for want, argv := range map[string][]string{
		"127": {"no-such-command"}, "126": {"/etc/passwd"},
	} {
		r, err := s.Exec(ctx, protocol.ExecSpec{Command: argv})
		if err != nil || code(r) != want || !strings.Contains(string(r.Stderr), argv[0]) {
			t.Errorf("%s: %v, exit code %s, stderr %q; want %s and a message", argv[0], err, code(r), r.Stderr, want)
		}
	}

	// Killing the container also kills the supervisor. The result reports the exit code as unknown.
	x, err := s.Start(ctx, script("echo started; sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	for range x.Output(ctx, sdk.WithFollow(true)) {
		break // the exec is running now
	}
	if err := s.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("docker", "kill", s.Info().Container).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r, err := x.Wait(ctx)
	if err == nil || r == nil || r.State != protocol.ExecStateFailed || r.ExitCode != nil {
		t.Errorf("an exec whose container was killed: %v, %+v; want failed, and no exit code", err, r)
	}
	wantError(t, "an exec whose container was killed", err, protocol.Unavailable, protocol.ReasonInterrupted, "")
}

func TestX14_ASandboxStatesItsIsolation(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x14")
	out, err := exec.Command("docker", "inspect", "-f", "{{.HostConfig.Runtime}}", s.Info().Container).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Info().Isolation, strings.TrimSpace(string(out)); got == "" || got != want {
		t.Errorf("the handle has %q, the engine %q", got, want)
	}
	// The sandbox has its own processes, root directory and network.
	if got := mustExec(ctx, t, s, script("hostname; ls /proc | grep -c '^[0-9]*$'; ip -o -4 addr show eth0 | wc "+
		"-l")); !strings.HasPrefix(got, "x14\n") || !strings.HasSuffix(got, "\n1\n") {
		t.Errorf("got %q", got)
	}
}

func TestX15_AHostReportsItsAbilities(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	dir := t.TempDir()
	f.Worker("w1", fleet.Role{AllowMounts: []string{dir}, Slots: 7})
	var host *protocol.Host
	f.Eventually(10*time.Second, "the host is listed", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
		if err != nil || len(hosts) != 1 {
			return fmt.Errorf("%d hosts: %v", len(hosts), err)
		}
		host = hosts[0]
		return nil
	})
	if host.Runtime == "" || host.Engine == "" || host.Slots != 7 || len(host.Mounts) != 1 || host.Mounts[0] != dir ||
		host.Memory == 0 || host.CPU == 0 {
		t.Errorf("the host does not report its abilities: %+v", host)
	}
	// A spec that no host can run is refused at once.
	spec := f.Spec()
	spec.Mounts = []protocol.Mount{{Source: dir, Target: "/m", Writable: true}}
	_, err := f.Client.Create(ctx, spec)
	wantError(t, "a writable mount", err, protocol.PermissionDenied, protocol.ReasonMountDenied, "spec.mounts[0].writable")
}

func TestX16_TwoClientsSeeTheSameSandbox(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	mine := f.Create("x16")
	other, err := sdk.Connect(ctx, f.Options(sdk.Options{Name: "the other"}))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	theirs, err := other.Get(ctx, "x16")
	if err != nil {
		t.Fatal(err)
	}
	follow := func(c *sdk.Client) <-chan []string {
		ch := make(chan []string, 1)
		go func() {
			var lines []string
			for e, err := range c.Sandbox("x16").Events(ctx, sdk.WithFollow(true)) {
				if err != nil {
					lines = append(lines, err.Error())
					break
				}
				lines = append(lines, fmt.Sprintf("%d %s %s", e.Sequence, e.Kind, e.State))
			}
			ch <- lines
		}()
		return ch
	}
	one, two := follow(f.Client), follow(other)
	mustExec(ctx, t, mine, script("echo shared > /tmp/file"))
	if got := mustExec(ctx, t, theirs, script("cat /tmp/file")); got != "shared\n" {
		t.Errorf("the other client reads %q", got)
	}
	x, err := mine.Start(ctx, script("sleep 100"), sdk.WithID("long"))
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.ExecByID(x.ID()).Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := x.Wait(ctx)
	if err == nil || r.State != protocol.ExecStateCancelled {
		t.Errorf("an exec cancelled by the other client: %v", err)
	}
	if err := theirs.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if err := mine.WaitDeleted(ctx); err != nil {
		t.Fatal(err)
	}
	a, b := strings.Join(<-one, "\n"), strings.Join(<-two, "\n")
	if a != b || !strings.HasSuffix(a, "sandbox.deleted deleted") {
		t.Errorf("the clients saw different histories:\n%s\n--\n%s", a, b)
	}
}

func TestX17_ARunningExecKeepsASandboxFromIdling(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	const ttl = 3 * time.Second
	spec.IdleTTL = protocol.Duration(ttl)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("x17"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Exec(ctx, script("sleep 7")) // twice the idle time; the exec prints nothing
	if err != nil || code(r) != "0" {
		t.Fatalf("the exec was ended: %v, exit code %s", err, code(r))
	}
	if err := s.WaitStopped(ctx); err != nil {
		t.Fatal(err)
	}
	if s.Info().Reason != protocol.ReasonIdleTTL {
		t.Errorf("the sandbox was stopped with reason %q", s.Info().Reason)
	}
	for e, err := range f.Client.Sandbox("x17").Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != protocol.SandboxStopRequested {
			continue
		}
		// The handle knows when the idle time began.
		if idle := e.Time.Sub(s.Info().ActiveAt); idle < ttl || e.Time.Before(r.Ended.Add(ttl-100*time.Millisecond)) {
			t.Errorf("stopped %s after the last activity, %s after the exec", idle, e.Time.Sub(r.Ended))
		}
	}
}
