package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// Limits bounds what tools return and how long they run. Zero values mean the defaults.
type Limits struct {
	Bytes   int           // most bytes of one answer; default 32 KiB
	Lines   int           // most lines of a file that read returns; default 2000
	Matches int           // most entries that glob, grep and list return; default 200
	Timeout time.Duration // time limit of shell and python; default 2 minutes
	Dir     string        // where shell, python, glob and grep begin; default: the environment's
}

// Default limits.
const (
	defaultBytes   = 32 << 10
	defaultLines   = 2000
	defaultMatches = 200
	defaultTimeout = 2 * time.Minute
	minBytes       = 256 // least value of Limits.Bytes, so that a cut answer says something
)

// Tool describes a tool to a model.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"input_schema"` // JSON Schema of the input
	call        func(ctx context.Context, b *Box, input []byte) (string, error)
}

// Answer is what a tool answers to a model.
type Answer struct {
	Text    string `json:"text"`
	IsError bool   `json:"is_error,omitempty"` // the tool did not do what the model asked
}

// Box holds the tools over one environment. It is safe for concurrent use.
type Box struct {
	env    environment.Environment
	limits Limits
}

// New makes the tools.
func New(env environment.Environment, l Limits) *Box {
	if l.Bytes <= 0 {
		l.Bytes = defaultBytes
	}
	l.Bytes = max(l.Bytes, minBytes)
	if l.Lines <= 0 {
		l.Lines = defaultLines
	}
	if l.Matches <= 0 {
		l.Matches = defaultMatches
	}
	if l.Timeout <= 0 {
		l.Timeout = defaultTimeout
	}
	return &Box{env: env, limits: l}
}

// List returns the tools that work in the environment, sorted by name. Without the capability POSIX there is
// neither glob nor grep.
func (b *Box) List() (list []Tool) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !needsPOSIX[name] || b.env.Describe().Has(environment.POSIX) {
			list = append(list, all[name])
		}
	}
	return list
}

var needsPOSIX = map[string]bool{"glob": true, "grep": true}

// Call calls a tool. It always returns an answer, also for a name or an input that does not exist.
func (b *Box) Call(ctx context.Context, name string, input json.RawMessage) Answer {
	i := slices.IndexFunc(b.List(), func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return Answer{fmt.Sprintf("there is no tool %.80q", name), true}
	}
	text, err := all[name].call(ctx, b, input)
	if err != nil {
		text = strings.TrimSpace(text + "\n" + err.Error())
	}
	return Answer{b.cut(text), err != nil}
}

// cut shortens a text in its middle, and makes it valid UTF-8.
func (b *Box) cut(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= b.limits.Bytes {
		return text
	}
	const room = 80 // bytes of the text that marks the cut
	half := (b.limits.Bytes - room) / 2
	head, tail := half, len(text)-half
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[cut here: %d bytes are left out]\n%s", text[:head], tail-head, text[tail:])
}

// decode reads an input strictly, so that a misspelt field is not ignored.
func decode(input []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(input))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("the input is not valid: %w", err)
	}
	if d.More() {
		return errors.New("the input is not valid: there is text after the object")
	}
	return nil
}

// tool makes a tool whose input is a T.
func tool[T any](name, description, properties string, required []string,
	call func(ctx context.Context, b *Box, in T) (string, error)) Tool {
	needed, err := json.Marshal(required)
	if err != nil {
		panic(err) // a list of strings is always valid
	}
	schema := fmt.Sprintf(`{"type":"object","additionalProperties":false,"properties":{%s},"required":%s}`,
		properties, needed)
	return Tool{name, description, json.RawMessage(schema), func(ctx context.Context, b *Box, input []byte) (
		string, error) {
		var in T
		if err := decode(input, &in); err != nil {
			return "", err
		}
		return call(ctx, b, in)
	}}
}
