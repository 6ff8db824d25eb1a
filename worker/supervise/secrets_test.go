package supervise_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// given returns a function that gives copies of secrets, and counts its calls.
func given(list ...control.Secret) (get supervise.Secrets, calls *atomic.Int32) {
	calls = &atomic.Int32{}
	return func(context.Context) ([]control.Secret, error) {
		calls.Add(1)
		var copies []control.Secret
		for _, s := range list {
			s.Value = control.NewValue(bytes.Clone(s.Value.Bytes()))
			copies = append(copies, s)
		}
		return copies, nil
	}, calls
}

func secret(file, env, value string) control.Secret {
	return control.Secret{File: file, Env: env, Value: control.NewValue([]byte(value))}
}

func TestSecrets_AFileBelongsToTheUserOfItsCommand(t *testing.T) {
	t.Parallel()
	for profile, privileged := range map[string]bool{"hardened": false, "standard": true} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			get, _ := given(secret("db/password", "", "of-the-sandbox"))
			s := newSandbox(t, option{secrets: get, privileged: privileged, args: []string{"--read-only"},
				welcome: control.Welcome{DefaultUser: "agent", Command: []string{"sh", "-c",
					"cat /run/secrets/db/password; sleep 1000"}}})
			s.await("the primary command's output", func() bool {
				return len(s.outputs[""]) > 0 && s.outputs[""][len(s.outputs[""])-1].Stdout == int64(len("of-the-sandbox"))
			})
			for user, want := range map[string]string{"agent": "1000:1000", "root": "0:0", "4242:4343": "4242:4343"} {
				own := []control.Secret{secret("in/side", "", "of-the-exec")}
				r := s.exec(control.Start{User: user, Secrets: own, Argv: []string{
					"sh", "-c", `cd $BOXFLEET_SECRETS && pwd && stat -c "%u:%g %a" in/side && cat in/side && id -G`}})
				lines := strings.Split(string(r.Stdout), "\n")
				if code(r) != "0" || lines[0] != "/run/secrets/"+r.ID ||
					lines[1] != want+" 400" || lines[2][:11] != "of-the-exec" {
					t.Errorf("an exec of %s: %s %q %q; want the file of %s with mode 400",
						user, code(r), r.Stdout, r.Stderr, want)
				}
				if strings.Contains(lines[2], fmt.Sprint(control.SecretsGroup)) {
					t.Errorf("an exec of %s is in the group of the directory: %s", user, lines[2])
				}
			}
			mine := `cd /run/secrets; stat -c "%u:%g %a" db/password . db; cat /run/secrets/db/password; ls /run/secrets`
			dir := fmt.Sprintf("0:%d 775\n", control.SecretsGroup)
			want := "1000:1000 400\n" + dir + dir + "of-the-sandboxdb\n"
			if r := s.sh(mine); string(r.Stdout) != want {
				t.Errorf("the sandbox's file, after the ends of all execs: %q %q, want %q", r.Stdout, r.Stderr, want)
			}
			r := s.exec(control.Start{User: "4242", Argv: []string{"cat", "/run/secrets/db/password"}})
			if code(r) == "0" {
				t.Errorf("another user reads the sandbox's file: %q", r.Stdout)
			}
			change := "echo x > /run/secrets/x || rm -f /run/secrets/db/password"
			r = s.exec(control.Start{User: "agent", Argv: []string{"sh", "-c", change}})
			if code(r) == "0" {
				t.Error("a user changes the directory of secrets")
			}
		})
	}
}

func TestSecrets_VariablesAreInNoConfigurationAndNotInThePublicPartsOfPID1(t *testing.T) {
	t.Parallel()
	for profile, privileged := range map[string]bool{"hardened": false, "standard": true} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			get, _ := given(secret("", "TOKEN", "of-the-sandbox"))
			s := newSandbox(t, option{secrets: get, privileged: privileged,
				welcome: control.Welcome{Command: []string{"sh", "-c", "echo $TOKEN; sleep 1000"}}})
			s.await("the primary command's output", func() bool { return len(s.outputs[""]) > 0 })
			if got := s.primaryOutput(); got != "of-the-sandbox\n" {
				t.Errorf("the primary command has the variable %q", got)
			}
			r := s.exec(control.Start{Argv: []string{"sh", "-c", "echo $TOKEN $OWN"},
				Secrets: []control.Secret{secret("", "OWN", "of-the-exec")}})
			if string(r.Stdout) != "of-the-sandbox of-the-exec\n" {
				t.Errorf("an exec has the variables %q", r.Stdout)
			}
			r = s.sh("echo $TOKEN $OWN")
			if string(r.Stdout) != "of-the-sandbox\n" {
				t.Errorf("another exec has the variables %q", r.Stdout)
			}
			if text, err := docker("inspect", s.container); err != nil || strings.Contains(text, "of-the-") {
				t.Errorf("the container's configuration has a value: %v %s", err, text)
			}
			for _, attempt := range []string{"cat /proc/1/environ", "dd if=/proc/1/mem bs=1 count=1 skip=4194304",
				"cat /proc/1/maps", "readlink /proc/1/fd/3", "ls /proc/1/cwd/"} {
				if r := s.sh(attempt); code(r) == "0" {
					t.Errorf("%s of root succeeds: %q %q", attempt, r.Stdout, r.Stderr)
				}
			}
		})
	}
}

// primaryOutput returns what the primary command wrote to stdout.
func (s *sandbox) primaryOutput() string {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, "run", control.PrimaryDir, control.StdoutName))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return string(data)
}

func TestSecrets_ExecsAtTheSameTimeHaveTheirOwnFiles(t *testing.T) {
	t.Parallel()
	get, _ := given()
	s := newSandbox(t, option{secrets: get})
	script := "cat $BOXFLEET_SECRETS/token; while [ ! -e /tmp/enough ]; do sleep 0.05; done; cat $BOXFLEET_SECRETS/token"
	var ids []string
	for _, value := range []string{"one,", "two,"} {
		ids = append(ids, s.start(control.Start{Argv: []string{"sh", "-c", script},
			Secrets: []control.Secret{secret("token", "", value)}}))
	}
	if r := s.sh("ls /run/secrets | wc -l; touch /tmp/enough"); string(r.Stdout) != "2\n" {
		t.Errorf("while both execs run, there are %q directories", r.Stdout)
	}
	for i, want := range []string{"one,one,", "two,two,"} {
		if r := s.end(ids[i]); string(r.Stdout) != want {
			t.Errorf("exec %d reads %q %q, want %q", i, r.Stdout, r.Stderr, want)
		}
	}
	if r := s.sh("ls /run/secrets"); len(r.Stdout) > 0 {
		t.Errorf("after the execs, /run/secrets has %q", r.Stdout)
	}
	for name, start := range map[string]control.Start{
		"a cancelled exec":        {Argv: []string{"sleep", "1000"}, Timeout: 300 * time.Millisecond},
		"an exec without program": {Argv: []string{"/no/such/program"}},
		"an exec without cwd":     {Argv: []string{"true"}, Cwd: "/none"},
	} {
		start.Secrets = []control.Secret{secret("token", "", "x")}
		s.exec(start)
		if r := s.sh("ls /run/secrets"); len(r.Stdout) > 0 {
			t.Errorf("after %s, /run/secrets has %q", name, r.Stdout)
		}
	}
}

func TestSecrets_MasksKeepTheLengthOfTheOutput(t *testing.T) {
	t.Parallel()
	masked := func(env, value string) control.Secret {
		return control.Secret{Env: env, Mask: true, Value: control.NewValue([]byte(value))}
	}
	get, _ := given(masked("TOKEN", "hunter2-hunter2\n"))
	s := newSandbox(t, option{secrets: get, welcome: control.Welcome{
		Command: []string{"sh", "-c", `printf "<$TOKEN>";
			printf hunter2-; sleep 0.2; printf "hunter2|hunter2-h"; sleep 1000`}}})
	s.await("the primary command's output", func() bool { return strings.HasSuffix(s.primaryOutput(), "|") })
	// The last bytes may be the beginning of the value, so they are held back.
	if got, want := s.primaryOutput(), "<***************\n>***************|"; got != want {
		t.Errorf("the primary command prints %q, want %q", got, want)
	}
	r := s.exec(control.Start{Secrets: []control.Secret{masked("OWN", "of-the-exec")}, Argv: []string{"sh", "-c",
		`printf "a $TOKEN b $OWN c hunter2-"; printf of-the- >&2; sleep 0.1; printf exec >&2; exit 3`}})
	if got, want := string(r.Stdout), "a ***************\n b *********** c hunter2-"; got != want || code(r) != "3" {
		t.Errorf("an exec prints %q, want %q; exit code %s", got, want, code(r))
	}
	if got := string(r.Stderr); got != "***********" {
		t.Errorf("an exec prints to stderr %q", got)
	}
	if r := s.sh("echo of-the-exec hunter2-hunter2"); string(r.Stdout) != "of-the-exec ***************\n" {
		t.Errorf("another exec prints %q", r.Stdout)
	}
}

// A worker that restarts asks for no values: the running supervisor has them. A supervisor that restarts needs them
// again.
func TestSecrets_AreAskedForOncePerBoot(t *testing.T) {
	t.Parallel()
	get, calls := given(secret("", "TOKEN", "kept"), secret("file", "", "kept too"))
	s := newSandbox(t, option{secrets: get, welcome: control.Welcome{DefaultUser: "agent"}})
	s.link.Close()
	s.listen(control.Welcome{Key: s.key, DefaultUser: "agent"}, nil)
	s.link.Expect(s.pid)
	s.connected()
	if r := s.sh("echo $TOKEN; cat /run/secrets/file"); string(r.Stdout) != "kept\nkept too" || calls.Load() != 1 {
		t.Errorf("after a restart of the worker: %q, and values were asked for %d times, want once", r.Stdout, calls.Load())
	}
	s.link.Close()
	s.listen(control.Welcome{Key: s.key, DefaultUser: "agent"}, nil)
	if _, err := docker("restart", "-t", "2", s.container); err != nil {
		t.Fatal(err)
	}
	s.expect()
	s.connected()
	if r := s.sh("echo $TOKEN; cat /run/secrets/file"); string(r.Stdout) != "kept\nkept too" || calls.Load() != 2 {
		t.Errorf("after a restart of the container: %q, and values were asked for %d times", r.Stdout, calls.Load())
	}
}

func TestSecrets_AnExecIsStartedOnlyWithItsValues(t *testing.T) {
	t.Parallel()
	get, _ := given()
	s := newSandbox(t, option{secrets: get})
	start := control.Start{ID: "once", Argv: []string{"sh", "-c", "echo $OWN; sleep 0.5"}, OnlyKnown: true}
	if _, err := s.link.Start(t.Context(), start); protocol.CodeOf(err) != protocol.NotFound {
		t.Fatalf("an unknown exec without its values: %v, want not_found", err)
	}
	start.OnlyKnown, start.Secrets = false, []control.Secret{secret("", "OWN", "value")}
	if _, err := s.link.Start(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	start.OnlyKnown, start.Secrets = true, nil
	if status, err := s.link.Start(t.Context(), start); err != nil || status.Started.IsZero() {
		t.Errorf("a known exec without its values: %+v, %v; want its status", status, err)
	}
	s.await("the end", func() bool { return s.results["once"].ExitCode != nil })
}

func TestSecrets_AContainerThatCannotGetThemStartsNothing(t *testing.T) {
	t.Parallel()
	gone := protocol.Errorf(protocol.NotFound, "", "the secret is gone")
	ok, _ := given(secret("file", "", "value"))
	for name, c := range map[string]struct {
		get    supervise.Secrets
		user   string
		tmpfs  bool
		code   protocol.Code
		reason string
	}{
		"no value": {get: func(context.Context) ([]control.Secret, error) { return nil, gone }, tmpfs: true,
			code: protocol.NotFound},
		"no user": {get: ok, user: "nobody-knows", tmpfs: true, code: protocol.FailedPrecondition,
			reason: protocol.ReasonUserUnknown},
		"no directory": {get: ok, code: protocol.FailedPrecondition, reason: protocol.ReasonUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := option{welcome: control.Welcome{DefaultUser: c.user, Command: []string{"echo", "started"}}}
			if c.tmpfs {
				o.secrets = c.get
			}
			s := unconnected(t, o, c.get)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := s.link.Connected(ctx)
			if e := protocol.AsError(err); e == nil || e.Code != c.code || e.Reason != c.reason {
				t.Errorf("the link says %v, want %s %s", err, c.code, c.reason)
			}
			s.stop() // no command can start any more
			if got := s.primaryOutput(); got != "" {
				t.Errorf("the command printed %q", got)
			}
		})
	}
}

// A worker must not give a command to a supervisor that would ignore the command's secrets.
func TestSecrets_AnOlderSupervisorGetsNoCommandWithSecrets(t *testing.T) {
	t.Parallel()
	get, calls := given(secret("", "TOKEN", "value"))
	for name, config := range map[string]supervise.Config{"of the container": {Secrets: get}, "of an exec": {}} {
		dir := t.TempDir()
		config.ControlDir, config.Run, config.Welcome = dir, openRun(t), control.Welcome{Key: make([]byte, 32)}
		link, err := supervise.Listen(config)
		if err != nil {
			t.Fatal(err)
		}
		defer link.Close()
		link.Expect(os.Getpid())
		conn, err := net.Dial("unix", filepath.Join(dir, control.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		hello := control.Append(nil, &control.Notice{Hello: &control.Hello{Version: control.Version}})
		if _, err := conn.Write(hello); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = link.Connected(ctx)
		if err == nil {
			_, err = link.Start(ctx, control.Start{ID: "e", Secrets: []control.Secret{secret("", "TOKEN", "value")}})
		}
		if protocol.AsError(err).Reason != protocol.ReasonUnsupported || calls.Load() != 0 {
			t.Errorf("secrets %s: %v after %d questions, want unsupported", name, err, calls.Load())
		}
	}
}

// Commands of root may change everything in the directory of secrets, also while the supervisor works there. The
// supervisor must not follow a link out of the directory, wait for a command, or change a file of the sandbox.
func TestSecrets_RootCannotLeadTheSupervisorElsewhere(t *testing.T) {
	t.Parallel()
	for profile, privileged := range map[string]bool{"hardened": false, "standard": true} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			get, _ := given()
			s := newSandbox(t, option{secrets: get, privileged: privileged})
			setup := "mkdir -m 777 /tmp/out; echo precious > /tmp/out/side; chmod 666 /tmp/out/side; cd /run/secrets && " +
				"mkdir dir && ln -s /tmp/out link && mkfifo -m 666 fifo && echo x > file"
			if r := s.sh(setup); code(r) != "0" {
				t.Fatalf("%q", r.Stderr)
			}
			for _, id := range []string{"dir", "link", "fifo", "file"} {
				r := s.exec(control.Start{ID: id, Argv: []string{"true"},
					Secrets: []control.Secret{secret("side", "", "value")}})
				if !r.Failed || r.Error.Code != protocol.FailedPrecondition {
					t.Errorf("an exec whose directory is a %s ends with %+v", id, r)
				}
			}
			swapper := s.start(control.Start{Argv: []string{"sh", "-c", "cd /run/secrets; while [ ! -e /tmp/enough ]; do " +
				"for e in swap*; do mv $e/in $e/was && ln -s /tmp/out $e/in; mkfifo $e/in/side; done; done 2>/dev/null"}})
			for i := range 100 {
				began := time.Now()
				r := s.exec(control.Start{ID: fmt.Sprint("swap", i), User: "agent", Argv: []string{"true"},
					Secrets: []control.Secret{secret("in/side", "", "value"), secret("in/second", "", "value")}})
				if took := time.Since(began); took > 10*time.Second {
					t.Fatalf("exec %d took %s: %+v", i, took, r)
				}
			}
			r := s.sh("touch /tmp/enough; ls /tmp/out; stat -c %u:%g:%a /tmp/out/side; cat /tmp/out/side")
			if got := string(r.Stdout); got != "side\n0:0:666\nprecious\n" {
				t.Errorf("outside of the directory, there is now %q", got)
			}
			s.end(swapper)
			s.sh("chmod 000 /run/secrets")
			r = s.exec(control.Start{Argv: []string{"true"}, Secrets: []control.Secret{secret("side", "", "value")}})
			if r.Failed && r.Error.Code != protocol.FailedPrecondition {
				t.Errorf("an exec after a chmod of the directory ends with %+v", r.Error)
			}
		})
	}
}
