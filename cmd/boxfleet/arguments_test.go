package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestEverythingAfterTheCommandsNameBelongsToTheCommand(t *testing.T) {
	for line, want := range map[string]struct {
		ids, command string
		detach       bool
	}{
		"web ls":                       {"web", "ls", false},
		"web ls -l --detach":           {"web", "ls -l --detach", false},
		"--detach web ls -- -l":        {"web", "ls -- -l", true},
		"web --detach ls -l":           {"web", "ls -l", true},
		"web --detach -- ls --help":    {"web", "ls --help", true},
		"web -- --detach":              {"web", "--detach", false},
		"web -- -- ls":                 {"web", "-- ls", false},
		"web exec":                     {"web", "exec", false},
		"list ls":                      {"list", "ls", false},
		"logs list get":                {"logs", "list get", false},
		"web sh -c exit\t7":            {"web", "sh -c exit\t7", false},
		"--env A=1 web --env B=2 env":  {"web", "env", false},
		"web - x":                      {"web", "- x", false},
		"web ls --config /nonexistent": {"web", "ls --config /nonexistent", false},
	} {
		var got commandLine
		var detach bool
		cmd := &cobra.Command{Use: "exec", SilenceErrors: true, SilenceUsage: true,
			RunE: func(*cobra.Command, []string) error { return nil }}
		cmd.Flags().BoolVar(&detach, "detach", false, "")
		cmd.Flags().StringArray("env", nil, "")
		got.of(cmd, "SANDBOX")
		cmd.SetArgs(strings.Split(line, " "))
		err := cmd.Execute()
		if err != nil || !slices.Equal(got.ids, strings.Split(want.ids, " ")) ||
			strings.Join(got.command, " ") != want.command || detach != want.detach {
			t.Errorf("%s: got %q, %q, detach %v, %v", line, got.ids, got.command, detach, err)
		}
	}
	for _, line := range []string{"exec --help", "exec web --help", "exec --help web ls", "run --image x --help"} {
		if code, stdout, stderr := call(t.Context(), "", strings.Fields(line)...); code != 0 ||
			!strings.Contains(stdout, "COMMAND [ARGUMENT...]") {
			t.Errorf("%s: got %d, %q, %s", line, code, stdout, stderr)
		}
	}
}

func TestASandboxMayHaveTheNameOfACommand(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	for _, id := range []string{"list", "a", "b"} {
		expect(t, "sandbox create --image i --wait=false --id "+id, 0, id)
	}
	for line, want := range map[string]string{
		"exec list ls":       "sandbox_not_ready",
		"exec logs a x":      "did you mean `boxfleet execs logs a x`?",
		"exec nobody ls":     "no such sandbox: nobody",
		"sandbox get nobody": "no such sandbox: nobody",
		"delete a":           "did you mean `boxfleet sandbox delete`",
		"execs cancel a x":   "no such exec: x",
		"execs kill a x":     "no such exec: x",
		"execs get a x":      "no such exec: x",
		"execs logs a x":     "no such exec: x",
		"execs get nobody x": "no such sandbox: nobody",
		"execs list nobody":  "no such sandbox: nobody",
		"sandbox get 01zzz":  "no such sandbox: 01zzz",
		"rm --wait=false no": "not_found",
	} {
		if _, _, stderr := call(t.Context(), "", strings.Fields(line)...); !strings.Contains(stderr, want) {
			t.Errorf("%s: want %q, got %q", line, want, stderr)
		}
	}
	expect(t, "ps -q", 0, "b\na\nlist\n")
	expect(t, "sandbox ls -q -o json", 0, `["b","a","list"]`)
	expectOf(t, []string{"__complete", "exec", ""}, 0, "b\na\nlist\n")
	expectOf(t, []string{"__complete", "sandbox", "delete", "a", ""}, 0, "b\nlist\n:4")
	expect(t, "__complete sandbox list --state d", 0, "deleting\ndeleted\n")
	expectOf(t, []string{"__complete", "ping", "-o", ""}, 0, "text\njson\n")
	code, stdout, stderr := call(t.Context(), "", "rm", "--wait=false", "b", "no", "b", "a")
	if code != exitFailure || stdout != "b\na\n" || !strings.Contains(stderr, "sandbox no: ") {
		t.Errorf("rm of three sandboxes, one of which does not exist: exit code %d, stdout %q, stderr %s", code, stdout,
			stderr)
	}
	expect(t, "--version", 0, "wire version")
}
