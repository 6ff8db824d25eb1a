package spec

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// roots are the documents of a text, without those that are empty. Errors: invalid_argument that
// names line and column.
func roots(data []byte, name, field string) iter.Seq2[*yaml.Node, error] {
	return func(yield func(*yaml.Node, error) bool) {
		reader := yaml.NewDecoder(bytes.NewReader(data))
		for {
			var document yaml.Node
			switch err := reader.Decode(&document); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(nil, unparsed(err, data, name, field))
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

// tagged says whether somebody wrote a tag; that of ! alone is no style of its own.
func tagged(node *yaml.Node) bool { return node.Style&yaml.TaggedStyle != 0 || node.Tag == "!" }

// unparsed is the error of a text that is no YAML. Where the text ends too early, the mistake is where
// that begins which has no end.
func unparsed(err error, data []byte, name, field string) error {
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		return faultAt(name, field, position{1, 1}, "%.300s", err)
	}
	at, context := position{e.Mark.Line, e.Mark.Column}, position{e.ContextMark.Line, e.ContextMark.Column}
	if at.line == 0 { // of bytes that are no text the parser tells only the offset
		at = placeBehind(data[:min(e.Mark.Index, len(data))])
	}
	end := placeBehind(bytes.TrimRight(data, " \t\r\n"))
	if !at.before(end) {
		at = end
		if context.line > 0 && context.before(end) {
			at = context
		}
	}
	switch {
	case e.ContextMsg == "" || at.before(context): // what begins only where the text has ended says nothing
		return faultAt(name, field, at, "%.200s", e.Message)
	case context.before(at):
		return faultAt(name, field, at, "%.200s, %.80s that begins in line %d, column %d", e.Message, e.ContextMsg, context.line, context.column)
	}
	return faultAt(name, field, at, "%.200s, %.80s", e.Message, e.ContextMsg)
}

// overlong is where the first document begins that has more than [MaxBytes]. A line that begins with
// --- begins a document, wherever it stands.
func overlong(data []byte) (at position, found bool) {
	begin, offset := 0, 0
	for line := range bytes.Lines(data) {
		if marker, rest := line[:min(3, len(line))], line[min(3, len(line)):]; string(marker) == "---" && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			begin = offset
		}
		if offset += len(line); offset-begin > MaxBytes {
			return placeBehind(data[:begin]), true
		}
	}
	return position{}, false
}

// position is a place in a text, counted from 1.
type position struct{ line, column int }

// placeBehind is the place where a text goes on.
func placeBehind(text []byte) position {
	return position{1 + bytes.Count(text, []byte("\n")), 1 + utf8.RuneCount(text[bytes.LastIndexByte(text, '\n')+1:])}
}

func (p position) before(q position) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}
