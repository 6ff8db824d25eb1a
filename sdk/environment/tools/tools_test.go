package tools_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment/local"
	"github.com/boxfleet/boxfleet/sdk/environment/tools"
)

func boxIn(t *testing.T, l tools.Limits) (box *tools.Box, dir string) {
	t.Helper()
	dir = t.TempDir()
	env, err := local.New(local.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return tools.New(env, l), dir
}

// step is what a model does, and a part of what it must be told.
type step struct {
	tool, input, want string
	isError           bool
}

func follow(t *testing.T, box *tools.Box, steps []step) {
	t.Helper()
	for _, s := range steps {
		answer := box.Call(t.Context(), s.tool, json.RawMessage(s.input))
		if answer.IsError != s.isError || !strings.Contains(answer.Text, s.want) {
			t.Errorf("%s %s: got %+v, want %q", s.tool, s.input, answer, s.want)
		}
	}
}

// TestAScriptedModelRepairsAProgram is a worked example: a model without a model.
func TestAScriptedModelRepairsAProgram(t *testing.T) {
	t.Parallel()
	box, _ := boxIn(t, tools.Limits{})
	follow(t, box, []step{
		{tool: "write", input: `{"path":"src/hello.sh","content":"name=world\necho helo $name\n"}`, want: "wrote 27 bytes"},
		{tool: "shell", input: `{"command":"sh src/hello.sh; exit 3"}`, want: "helo world\n\n[exit code 3]"},
		{tool: "grep", input: `{"expression":"hel+o"}`, want: "hello.sh:2:echo helo"},
		{tool: "glob", input: `{"pattern":"*.sh"}`, want: "./src/hello.sh"},
		{tool: "read", input: `{"path":"src/hello.sh"}`, want: "     2\techo helo $name"},
		{tool: "edit", input: `{"path":"src/hello.sh","old":"helo","new":"hello"}`, want: "replaced 1"},
		{tool: "shell", input: `{"command":"sh src/hello.sh"}`, want: "hello world"},
		{tool: "list", input: `{"path":"."}`, want: "src/"},
	})
}

func TestMistakesOfAModelAreAnswers(t *testing.T) {
	t.Parallel()
	box, _ := boxIn(t, tools.Limits{})
	follow(t, box, []step{
		{"none", `{}`, "there is no tool", true},
		{"shell", `{"comand":"ls"}`, "unknown field", true},
		{"shell", `{"command":"ls"} x`, "not valid", true},
		{"shell", `{"command":""}`, "must not be empty", true},
		{"shell", `{"command":"echo out; sleep 30","timeout_seconds":1}`, "out\n", true},
		{"read", `{"path":"none"}`, "not_found", true},
		{"write", `{"path":"file","content":"a a\n"}`, "wrote", false},
		{"read", `{"path":"file","from":5}`, "has 1 lines", true},
		{"edit", `{"path":"file","old":"b","new":"c"}`, "does not have", true},
		{"edit", `{"path":"file","old":"a","new":"c"}`, "2 times", true},
		{"edit", `{"path":"file","old":"a","new":"c","all":true}`, "replaced 2", false},
		{"edit", `{"path":"file","old":"","new":"c"}`, "must not be empty", true},
		{"list", `{"path":"none"}`, "not_found", true},
		{"glob", `{"pattern":"-delete","path":"-rf"}`, "no such directory", true},
		{"glob", `{"pattern":"$(touch ran)"}`, "no files", false},
		{"grep", `{"expression":"-f'; touch ran; '"}`, "no lines", false},
		{"grep", `{"expression":"("}`, "grep", true},
		{"glob", `{"pattern":"ran"}`, "no files", false},
	})
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	box, _ := boxIn(t, tools.Limits{Bytes: 1000, Lines: 10, Matches: 5, Timeout: 20 * time.Second})
	follow(t, box, []step{
		{tool: "shell", input: `{"command":"i=0; while [ $i -lt 50 ]; do echo line $i >>long; : >f$i; i=$((i+1)); done"}`},
		{tool: "read", input: `{"path":"long"}`, want: "[cut here: 10 of 50 lines; continue with from 11]"},
		{tool: "read", input: `{"path":"long","from":49}`, want: "    50\tline 49"},
		{tool: "list", input: `{"path":"."}`, want: "[cut here: 5 of 51 entries]"},
		{tool: "glob", input: `{"pattern":"f*"}`, want: "[cut here: 5 of 50 files]"},
		{tool: "grep", input: `{"expression":"line"}`, want: "[cut here: 5 of 50 lines]"},
		{tool: "shell", input: `{"command":"i=0; while [ $i -lt 999 ]; do printf é; i=$((i+1)); done"}`, want: "[cut here: "},
		{tool: "shell", input: `{"command":"printf '\\377'"}`, want: "\uFFFD"},
	})
	if answer := box.Call(t.Context(), "shell",
		json.RawMessage(`{"command":"cat long long long long long"}`)); len(answer.Text) > 1000 {
		t.Errorf("an answer of %d bytes", len(answer.Text))
	}
}

func TestPythonRuns(t *testing.T) {
	t.Parallel()
	box, _ := boxIn(t, tools.Limits{})
	answer := box.Call(t.Context(), "python", json.RawMessage(`{"code":"print(6 * 7)"}`))
	if strings.Contains(answer.Text, "no_language") {
		t.Skip("no Python on this machine")
	}
	if answer.IsError || answer.Text != "42\n" {
		t.Errorf("%+v", answer)
	}
}

func TestEveryToolHasASchema(t *testing.T) {
	t.Parallel()
	box, _ := boxIn(t, tools.Limits{})
	var names []string
	for _, tool := range box.List() {
		var schema map[string]any
		if err := json.Unmarshal(tool.Schema, &schema); err != nil || tool.Description == "" || schema["required"] == nil {
			t.Errorf("%s: %v, %s", tool.Name, err, tool.Schema)
		}
		names = append(names, tool.Name)
	}
	if got := fmt.Sprint(names); got != "[edit glob grep list python read shell write]" {
		t.Error(got)
	}
}
