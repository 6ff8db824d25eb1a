package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/boxfleet/boxfleet/sdk/environment/tools"
)

// model decides what to do next.
type model interface {
	// next gets what the last tool answered, and returns the next call; nil ends the work.
	next(last tools.Answer) (*call, error)
}

// call is a call of a tool.
type call struct {
	tool, input string
}

// work calls tools until the model has finished.
func work(ctx context.Context, box *tools.Box, m model, out io.Writer) error {
	var last tools.Answer
	for {
		c, err := m.next(last)
		if err != nil || c == nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(out, "> %s %s\n", c.tool, c.input)
		last = box.Call(ctx, c.tool, json.RawMessage(c.input))
		fmt.Fprintln(out, strings.TrimRight(last.Text, "\n"))
	}
}

// step is a call, and a text that its answer must have.
type step struct {
	call
	want string
}

// repair is what the script does.
var repair = []step{
	{call{"write", `{"path":"agent-demo/hello.sh","content":"name=world\necho helo $name\n"}`}, "wrote"},
	{call{"shell", `{"command":"sh agent-demo/hello.sh"}`}, "helo world"},
	{call{"glob", `{"pattern":"hello*","path":"agent-demo"}`}, "hello.sh"},
	{call{"grep", `{"expression":"hel+o","path":"agent-demo"}`}, ":2:echo helo"},
	{call{"read", `{"path":"agent-demo/hello.sh"}`}, "2\techo helo $name"},
	{call{"edit", `{"path":"agent-demo/hello.sh","old":"helo","new":"hello"}`}, "replaced 1"},
	{call{"shell", `{"command":"sh agent-demo/hello.sh"}`}, "hello world"},
	{call{"shell", `{"command":"rm -r agent-demo"}`}, ""},
}

// script is a model that follows steps.
type script struct {
	steps []step
	done  int
}

func (s *script) next(last tools.Answer) (*call, error) {
	if s.done > 0 {
		if before := s.steps[s.done-1]; last.IsError || !strings.Contains(last.Text, before.want) {
			return nil, fmt.Errorf("%s answered %q; the script expects %q", before.tool, last.Text, before.want)
		}
	}
	if s.done == len(s.steps) {
		return nil, nil
	}
	s.done++
	return &s.steps[s.done-1].call, nil
}
