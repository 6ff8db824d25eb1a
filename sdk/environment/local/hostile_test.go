package local_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/local"
)

func newLocal(t *testing.T) *local.Environment {
	t.Helper()
	env, err := local.New(local.Config{Dir: t.TempDir(), Grace: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// session returns the session of a process, "" for one that has ended.
func session(t *testing.T, pid string) string {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, group, session
	if fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[3]
}

// A command such as trap 'kill 0' EXIT signals its process group. The program that ran the command must not be in it.
func TestACommandCannotSignalTheProgramByItsGroup(t *testing.T) {
	t.Parallel()
	result, err := environment.Execute(t.Context(), newLocal(t), "cat /proc/$$/stat", environment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(result.Stdout))
	if own := session(t, strconv.Itoa(os.Getpid())); fields[5] == own {
		t.Errorf("the command runs in session %s, which is that of this program", own)
	}
}

// Processes without the variable that marks them are ended too, unless they left the session as well.
func TestProcessesWithoutTheMarkAreEnded(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]string{
		"env -i":        "env -i sh -c 'echo $$; trap \"\" TERM; while :; do sleep 1; done'",
		"unset":         "unset BOXFLEET_SCRIPT; sh -c 'echo $$; exec sleep 60'",
		"in background": "(env -i sh -c 'echo $$; exec sleep 60' &); sleep 60",
	} {
		t.Run("timeout, "+name, func(t *testing.T) {
			t.Parallel()
			result, err := environment.Execute(t.Context(), newLocal(t), run, environment.Options{Timeout: time.Second})
			if environment.KindOf(err) != environment.Timeout {
				t.Fatalf("got %v", err)
			}
			hasEnded(t, result.Stdout)
		})
		t.Run("left, "+name, func(t *testing.T) {
			t.Parallel()
			for event, err := range newLocal(t).ExecuteStreaming(t.Context(), run, environment.Options{}) {
				if err != nil {
					t.Fatal(err)
				}
				defer hasEnded(t, event.Data)
				break
			}
		})
	}
}

// A loop may end with its goroutine, as after t.Fatal, or with a panic.
func TestACommandIsEndedWithTheGoroutineOfItsLoop(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(){"goroutine": runtime.Goexit, "panic": func() { panic("the loop's") }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pid []byte
			env, ended := newLocal(t), make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }() // the panic is this test's own
				run := "sh -c 'echo $$; exec sleep 60'; true"
				for event := range env.ExecuteStreaming(t.Context(), run, environment.Options{}) {
					pid = event.Data
					leave()
				}
			}()
			<-ended
			hasEnded(t, pid)
		})
	}
}

func hasEnded(t *testing.T, pid []byte) {
	t.Helper()
	id := string(bytes.TrimSpace(pid))
	if _, err := strconv.Atoi(id); err != nil {
		t.Fatalf("the command printed %q instead of a process ID", pid)
	}
	eventually.Holds(t, 5*time.Second, fmt.Sprintf("the end of process %s", id),
		func() bool { return session(t, id) == "" })
}

// TestMain runs a command in a local environment if this process is a program that a test runs in one.
func TestMain(m *testing.M) {
	if run := os.Getenv("BOXFLEET_TEST_RUN"); run != "" {
		env, err := local.New(local.Config{Dir: "/"})
		if err != nil {
			panic(err)
		}
		for event := range env.ExecuteStreaming(context.Background(), run, environment.Options{}) {
			fmt.Print(string(event.Data))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A command runs a program that uses a local environment itself. The timeout of the command ends the commands of the
// program too.
func TestATimeoutEndsCommandsWithinCommands(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	result, err := environment.Execute(t.Context(), newLocal(t), environment.Quote(program), environment.Options{
		Timeout: 2 * time.Second, Env: map[string]string{"BOXFLEET_TEST_RUN": "echo $$; exec sleep 60"}})
	if environment.KindOf(err) != environment.Timeout {
		t.Fatalf("got %v", err)
	}
	hasEnded(t, result.Stdout)
}

func TestTheMarkOfProcessesCannotBeSet(t *testing.T) {
	t.Parallel()
	_, err := environment.Execute(t.Context(), newLocal(t), "true",
		environment.Options{Env: map[string]string{"BOXFLEET_SCRIPT": "x"}})
	if environment.KindOf(err) != environment.Invalid || !strings.Contains(err.Error(), "env.BOXFLEET_SCRIPT") {
		t.Errorf("got %v", err)
	}
}

func TestATimeoutIsReportedAlthoughTheContextEndsDuringTheGrace(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The command prints when TERM arrives, which is after the timeout, and lives on until KILL.
	run := "trap 'echo term' TERM; while :; do sleep 0.05; done"
	var last error
	for event, err := range newLocal(t).ExecuteStreaming(ctx, run, environment.Options{Timeout: 300 * time.Millisecond}) {
		if last = err; strings.Contains(string(event.Data), "term") {
			cancel()
		}
	}
	if environment.KindOf(last) != environment.Timeout {
		t.Errorf("got %v", last)
	}
}
