package spec

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// roots iterates over the non-empty documents of a text. Errors: invalid_argument with line and column.
func roots(data []byte, name, field string) iter.Seq2[*yaml.Node, error] {
	return func(yield func(*yaml.Node, error) bool) {
		reader := yaml.NewDecoder(bytes.NewReader(data))
		for {
			var document yaml.Node
			switch err := reader.Decode(&document); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(nil, syntaxError(err, data, name, field))
				return
			case empty(&document):
				continue
			}
			if !yield(document.Content[0], nil) {
				return
			}
		}
	}
}

func empty(document *yaml.Node) bool {
	if len(document.Content) == 0 {
		return true
	}
	root := document.Content[0]
	return root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" && !tagged(root)
}

// tagged reports whether the node has an explicit tag. The tag "!" alone does not set the style.
func tagged(node *yaml.Node) bool { return node.Style&yaml.TaggedStyle != 0 || node.Tag == "!" }

// syntaxError returns the error for a text that is not YAML. If the text ends too early, it points to the start
// of the unterminated construct.
func syntaxError(err error, data []byte, name, field string) error {
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		return faultAt(name, field, position{1, 1}, "%.300s", err)
	}
	at, context := position{e.Mark.Line, e.Mark.Column}, position{e.ContextMark.Line, e.ContextMark.Column}
	if at.line == 0 { // for invalid UTF-8, the parser reports only the offset
		at = placeAfter(data[:min(e.Mark.Index, len(data))])
	}
	end := placeAfter(bytes.TrimRight(data, " \t\r\n"))
	if !at.before(end) {
		at = end
		if context.line > 0 && context.before(end) {
			at = context
		}
	}
	switch {
	case e.ContextMsg == "" || at.before(context): // a context after the end of the text is meaningless
		return faultAt(name, field, at, "%.200s", e.Message)
	case context.before(at):
		return faultAt(name, field, at,
			"%.200s, %.80s that starts at line %d, column %d", e.Message, e.ContextMsg, context.line, context.column)
	}
	return faultAt(name, field, at, "%.200s, %.80s", e.Message, e.ContextMsg)
}

// overlong returns the start of the first document with more than [MaxBytes] bytes. Every line that starts with ---
// counts as the start of a document.
func overlong(data []byte) (at position, found bool) {
	begin, offset := 0, 0
	for line := range bytes.Lines(data) {
		rest, marked := bytes.CutPrefix(line, []byte("---"))
		if marked && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			begin = offset
		}
		if offset += len(line); offset-begin > MaxBytes {
			return placeAfter(data[:begin]), true
		}
	}
	return position{}, false
}

// position is a position in a text; lines and columns count from 1.
type position struct{ line, column int }

// placeAfter returns the position after a text.
func placeAfter(text []byte) position {
	return position{1 + bytes.Count(text, []byte("\n")), 1 + utf8.RuneCount(text[bytes.LastIndexByte(text, '\n')+1:])}
}

func (p position) before(q position) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}
