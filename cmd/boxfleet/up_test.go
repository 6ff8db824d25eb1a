package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/firewall"
)

const image = demoImage

// startUp runs `boxfleet up` and returns when the fleet is ready. Calling stop ends that run as SIGTERM does, and
// returns the exit code.
func startUp(t *testing.T, args ...string) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var stdout, stderr eventually.Buffer
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, append([]string{"up"}, args...), strings.NewReader(""), &stdout, &stderr) }()
	eventually.Holds(t, patience, "up is ready", func() bool {
		if len(ended) > 0 {
			t.Fatalf("up ended with %d: %s", <-ended, stderr.String())
		}
		return strings.Contains(stdout.String(), "ready: nats://")
	})
	return func() int { cancel(); return <-ended }
}

// patience is how long a test waits for a condition.
const patience = 30 * time.Second

// fleetOfOne prepares a run of `up` with separate user directories.
func fleetOfOne(t *testing.T) {
	t.Helper()
	clean(t)
	supervisor := os.Getenv(supervisorVariable)
	if supervisor == "" { // the command line names tests
		supervisor = filepath.Join(t.TempDir(), "boxfleet-supervisor")
		if err := buildSupervisor(supervisor); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("BOXFLEET_WORKER_SUPERVISOR", supervisor)
	t.Setenv("BOXFLEET_UP_LISTEN", "127.0.0.1")
}

// removeHostMark removes, at the end of the test, what a fleet leaves on the host: the firewall rules, and the volume
// that marks the host.
func removeHostMark(t *testing.T) {
	t.Helper()
	_, stdout, stderr := call(t.Context(), "", "ping", "-o", "json")
	var ping protocol.Ping
	if err := json.Unmarshal([]byte(stdout), &ping); err != nil {
		t.Fatalf("%v: %s %s", err, stdout, stderr)
	}
	t.Cleanup(func() {
		out, err := exec.Command("docker", "volume", "rm", "boxfleet-host-"+ping.Deployment).CombinedOutput()
		if err != nil {
			t.Errorf("remove the volume that marks the host: %v %s", err, out)
		}
		wall := firewall.New(firewall.Config{Deployment: ping.Deployment, Engine: "unix:///var/run/docker.sock"})
		defer wall.Close()
		if err := wall.Remove(); err != nil {
			t.Errorf("remove the firewall rules: %v", err)
		}
	})
}

func expect(t *testing.T, line string, wantCode int, wantStdout string) {
	t.Helper()
	expectOf(t, strings.Fields(line), wantCode, wantStdout)
}

func expectOf(t *testing.T, args []string, wantCode int, wantStdout string) {
	t.Helper()
	code, stdout, stderr := call(t.Context(), "", args...)
	if code != wantCode || !strings.Contains(stdout, wantStdout) {
		t.Errorf("%q: want %d and %q\ngot %d, stdout %q, stderr %q", args, wantCode, wantStdout, code, stdout, stderr)
	}
}

// checkDataIsHidden checks that no sandbox can mount a directory with the data of `up`, such as the event log, even
// though the operator allows mounts of the whole data directory.
func checkDataIsHidden(t *testing.T) {
	t.Helper()
	own := filepath.Join(os.Getenv("XDG_DATA_HOME"), "boxfleet")
	dirs, err := os.ReadDir(own)
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, d := range dirs {
		if !d.IsDir() || d.Name() == "worker" {
			continue
		}
		code, _, stderr := call(t.Context(), "", "sandbox", "create", "--image", image, "--label", "team=a", "--mount",
			filepath.Join(own, d.Name())+":/data")
		if code == 0 || !strings.Contains(stderr, "spec.mounts[0].source") {
			t.Errorf("%s is mounted: %d, %s", d.Name(), code, stderr)
		}
		tried++
	}
	if tried == 0 {
		t.Errorf("up has no directory of its own among %v", dirs)
	}
}

func TestUpRunsAFleetOnOneMachine(t *testing.T) {
	fleetOfOne(t)
	t.Setenv("BOXFLEET_WORKER_MOUNTS_ALLOW", os.Getenv("XDG_DATA_HOME"))
	stop := startUp(t)
	removeHostMark(t)
	expect(t, "up", exitFailure, "")
	expect(t, "host list", 0, "ready")
	expect(t, "sandbox create --image "+image+" --id web --memory 64m --label team=a --env GREETING=hello", 0, "web\n")
	expect(t, "sandbox create --image "+image+" --id web", exitFailure, "")
	expect(t, "sandbox get web", 0, "GREETING=hello")
	expect(t, "sandbox list --label team=b -o json", 0, "[]\n")
	expectOf(t, []string{"exec", "web", "--", "sh", "-c", "echo $GREETING; exit 7"}, 7, "hello\n")
	expectOf(t, []string{"exec", "web", "-o", "json", "--", "false"}, 1, `"exit_code":1`)
	expect(t, "exec web --timeout 200ms -- sleep 60", 143, "")
	expect(t, "exec web --user nobody-here -- true", exitNotRun, "")
	expect(t, "exec nothing -- true", exitNotRun, "")
	expectOf(t, []string{"exec", "web", "--id", "x", "--detach", "--", "sh", "-c", "echo one; echo two"}, 0, "x\n")
	expect(t, "execs logs web x --follow --from-offset 4", 0, "two\n")
	expect(t, "execs logs web x --from-offset 100", exitFailure, "")
	expect(t, "execs get web x", 0, "finished")
	expect(t, "execs cancel web x", 0, "x\n")
	expect(t, "execs kill web x", 0, "x\n")
	expect(t, "execs kill web x --signal INT", exitFailure, "")
	expect(t, "execs kill web x --signal FROB", exitUsage, "")
	expect(t, "execs kill web x --tree", exitUsage, "")
	expectOf(t, []string{"exec", "web", "--id", "signalled", "--detach", "--", "sh", "-c", "echo up; exec sleep 1000"}, 0,
		"signalled\n")
	expect(t, "wait web signalled --contains up", 0, "up\n") // --detach does not wait for the start
	expect(t, "sandbox top web", 0, "sleep 1000")
	expect(t, "sandbox top web -o json", 0, `"exec":"signalled"`)
	expect(t, "sandbox top web --interval 1ns", exitUsage, "")
	expect(t, "sandbox stats web", 0, "(sandbox)")
	expect(t, "sandbox stats web -o json", 0, `"cpu_percent":`)
	expect(t, "sandbox stats nothing", exitFailure, "")
	expect(t, "execs kill web signalled --signal SIGCONT --tree", 0, "SIGCONT was delivered to 1 of its processes\n")
	expect(t, "execs kill web signalled --signal 15 -o json", 0, `"outcome":"delivered"`)
	expect(t, "execs logs web signalled --follow", 143, "")
	expect(t, "execs get web signalled", 0, "SIGTERM")
	expect(t, "execs list web --state finished", 0, "echo two")
	code, stdout, stderr := call(t.Context(), "echo from stdin", "exec", "web", "-i", "--", "sh", "-")
	if code != 0 || stdout != "from stdin\n" {
		t.Errorf("exec with stdin: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	expectOf(t, []string{"exec", "--id", "seven", "--detach", "web", "sh", "-c", "sleep 0.2; echo seven; exit 7"}, 0,
		"seven\n")
	expect(t, "execs logs web seven --follow", 7, "seven\n")
	expect(t, "execs logs web seven", 0, "seven\n")
	if code := run(t.Context(), []string{"exec", "web", "echo", "hello"}, strings.NewReader(""), fullDisk{},
		new(eventually.Buffer)); code != exitNotRun {
		t.Errorf("exec whose output cannot be written: exit code %d", code)
	}
	if code, stdout, stderr := call(t.Context(), "", "exec", "--output-limit", "4", "-e", "A=12345", "web", "sh", "-c",
		"echo $A"); code != 0 || stdout != "1234" || !strings.Contains(stderr, "--output-limit") {
		t.Errorf("exec with output beyond its limit: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	failedCreateNamesItsSandbox(t)
	unreadStdinIsReported(t)
	if stop() != 0 {
		t.Error("up did not end with exit code 0")
	}
	expect(t, "ping", exitFailure, "")
	stop = startUp(t)
	expectOf(t, []string{"exec", "web", "--", "echo", "still there"}, 0, "still there\n")
	expect(t, "sandbox stop web", 0, "web")
	if code, _, stderr := call(t.Context(), "", "exec", "web", "ls"); code != exitNotRun ||
		!strings.Contains(stderr, "`boxfleet sandbox resume web` starts it again") {
		t.Errorf("exec in a stopped sandbox: %d, %s", code, stderr)
	}
	expect(t, "sandbox resume web", 0, "web")
	expect(t, "sandbox explain web", 0, "ready")
	expect(t, "sandbox events web --from 2", 0, "sandbox.stopped")
	expect(t, "sandbox events web --from 999", exitFailure, "")
	checkDataIsHidden(t)
	interruptedExecIsCancelled(t)
	interruptedRunLeavesNothing(t)
	waitPrintsTheLine(t)
	stdinReachesARunningExec(t)
	expect(t, "sandbox delete --label team=a", 0, "web\n")
	if code := stop(); code != 0 {
		t.Errorf("up ended with %d", code)
	}
}

// interrupted runs the program and ends the program's context, as Ctrl-C does, as soon as the program has printed text.
func interrupted(t *testing.T, text string, args ...string) (code int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr eventually.Buffer
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, args, strings.NewReader(""), &stdout, &stderr) }()
	eventually.Holds(t, patience, "the program prints "+text, func() bool {
		return strings.Contains(stdout.String(), text) || len(ended) > 0
	})
	cancel()
	select {
	case code = <-ended:
	case <-time.After(30 * time.Second):
		t.Fatalf("%q did not end within 30 s: %s", args, stderr.String())
	}
	return code
}

func interruptedExecIsCancelled(t *testing.T) {
	t.Helper()
	if code := interrupted(t, "begin", "exec", "web", "--id", "i", "--", "sh", "-c", "echo begin; sleep 60"); code != 143 {
		t.Errorf("an interrupted exec: exit code %d, want 143", code)
	}
	expect(t, "execs get web i", 0, "cancelled")
}

func interruptedRunLeavesNothing(t *testing.T) {
	t.Helper()
	interrupted(t, "begin", "run", "--image", image, "--memory", "64m", "--label", "team=run", "--grace", "1s", "--", "sh",
		"-c", "echo begin; sleep 60")
	expect(t, "sandbox list --label team=run -o json", 0, "[]\n")
	expectOf(t, []string{"run", "--image", image, "--memory", "64m", "--label", "team=run", "--", "sh", "-c", "exit 9"}, 9,
		"")
	expectOf(t, []string{"run", "--image", image, "--label", "team=run", "--mount", "/etc:/data", "--", "true"},
		exitNotRun, "")
	expect(t, "sandbox list --label team=run -o json", 0, "[]\n")
}

func waitPrintsTheLine(t *testing.T) {
	t.Helper()
	expect(t, "wait web", 0, "web\n")
	expectOf(t, []string{"exec", "web", "--id", "server", "--", "sh", "-c", "echo listening on 80; exit 4"}, 4,
		"listening on 80\n")
	expect(t, "wait web server", 4, "")
	expectOf(t, []string{"wait", "web", "server", "--matches", "on [0-9]+$"}, 0, "listening on 80\n")
	expectOf(t, []string{"wait", "web", "server", "--contains", "ning", "-o", "json"}, 0, `"line":"listening on 80"`)
	for _, tc := range []struct{ args, says string }{
		{"web server --contains never", "ended with exit code 4"},
		{"web server --contains a --matches b", "exclude each other"},
		{"web server --matches (", "--matches"},
		{"web server --contains=", "must not be empty"},
		{"web server --service db --contains a", "leave out either"},
		{"web --service db", "needs --contains, --matches"},
		{"web --contains a", "no command of its own"},
		{"web never-was", "not_found"},
		{"web server more", `unexpected argument "more"`},
	} {
		code, _, stderr := call(t.Context(), "", append([]string{"wait"}, strings.Fields(tc.args)...)...)
		if code == 0 || !strings.Contains(stderr, tc.says) {
			t.Errorf("wait %s: exit code %d, %s; want an error with %q", tc.args, code, stderr, tc.says)
		}
	}
}

func stdinReachesARunningExec(t *testing.T) {
	t.Helper()
	large := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, more than travels with a request
	if code, stdout, stderr := call(t.Context(), large, "exec", "web", "-i", "wc", "-c"); code != 0 ||
		stdout != "1048576\n" {
		t.Errorf("a large stdin: exit code %d, %q, %s", code, stdout, stderr)
	}
	if code, stdout, stderr := call(t.Context(), "hello", "run", "--image", image, "--memory", "64m", "-i", "cat"); code !=
		0 || stdout != "hello" {
		t.Errorf("run with stdin: exit code %d, %q, %s", code, stdout, stderr)
	}
	r, w := io.Pipe()
	defer w.Close()
	var stdout, stderr eventually.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"exec", "web", "--id", "cat", "-i", "cat"}, r, &stdout, &stderr)
	}()
	if _, err := io.WriteString(w, "one\n"); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, patience, "the exec prints its input", func() bool { return stdout.String() == "one\n" })
	if code, _, stderr := call(t.Context(), "two\n", "execs", "input", "web", "cat"); code != 0 {
		t.Errorf("another client continues: exit code %d, %s", code, stderr)
	}
	select {
	case code := <-ended:
		if code != 0 || stdout.String() != "one\ntwo\n" {
			t.Errorf("the first client ended with %d: %q, %s", code, stdout.String(), stderr.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the exec did not end: %s", stderr.String())
	}
	if code, _, stderr := call(t.Context(), "x", "execs", "input", "web", "cat"); code == 0 ||
		!strings.Contains(stderr, "exec_already_terminal") {
		t.Errorf("input for an exec that has ended: exit code %d, %s", code, stderr)
	}
}

func failedCreateNamesItsSandbox(t *testing.T) {
	t.Helper()
	code, _, stderr := call(t.Context(), "", "sandbox", "create", "--image", image, "--memory", "64m", "--label", "team=a",
		"--", "/not/there")
	_, list, _ := call(t.Context(), "", "ps", "-q", "--state", "failed")
	id := strings.TrimSpace(list)
	if code != exitFailure || id == "" || !strings.Contains(stderr, "`boxfleet sandbox delete "+id+"` deletes it") {
		t.Errorf("a create that fails: exit code %d, stderr %q; the failed sandbox is %q", code, stderr, id)
	}
}

func unreadStdinIsReported(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, said := range []bool{false, true} {
		var stderr bytes.Buffer
		code := run(t.Context(), []string{"exec", "web", "cat"}, r, new(bytes.Buffer), &stderr)
		if code != 0 || strings.Contains(stderr.String(), "use -i to pass it") != said {
			t.Errorf("stdin has data: %v; exit code %d, %s", said, code, stderr.String())
		}
		if _, err := w.WriteString("x"); err != nil {
			t.Fatal(err)
		}
	}
}
