package sdk

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"regexp"

	"github.com/boxfleet/boxfleet/protocol"
)

// MaxLine is how many bytes of a line a [Condition] compares at once. A longer line is compared in pieces of this size.
const MaxLine = 64 << 10

// Condition is a text in output for which [Exec.WaitFor] and [Sandbox.WaitFor] wait. Make one with [OutputContains] or
// [OutputMatches].
type Condition struct {
	what string // the condition in words, for errors
	bad  error
	// holds reports whether the condition holds for a line without its line break. whole is false if more of the line may
	// follow.
	holds func(line []byte, whole bool) bool
}

// OutputContains waits for a line that contains a text. The text must not be empty and must not contain a line break.
// The line need not be complete, so a prompt without a line break is found as well.
func OutputContains(text string) Condition {
	c := Condition{what: fmt.Sprintf("contains %.100q", text), holds: func(line []byte, _ bool) bool {
		return bytes.Contains(line, []byte(text))
	}}
	switch {
	case text == "":
		c.bad = protocol.Invalid("text", "must not be empty")
	case bytes.ContainsAny([]byte(text), "\r\n"):
		c.bad = protocol.Invalid("text", "must not contain a line break, because each line is compared by itself")
	case len(text) > MaxLine:
		c.bad = protocol.Invalid("text", "must have at most %d bytes", MaxLine)
	}
	return c
}

// OutputMatches waits for a complete line that matches a regular expression anywhere in the line. The last line is
// complete when the exec has ended.
func OutputMatches(pattern *regexp.Regexp) Condition {
	if pattern == nil {
		return Condition{bad: protocol.Invalid("pattern", "must not be nil")}
	}
	return Condition{what: fmt.Sprintf("matches %.100q", pattern), holds: func(line []byte, whole bool) bool {
		return whole && pattern.Match(line)
	}}
}

// Match is the line of output for which a condition held.
type Match struct {
	Stream string `json:"stream"` // [Stdout] or [Stderr]
	Offset int64  `json:"offset"` // position of the line's first byte in its stream
	Line   string `json:"line"`   // without its line break; if the line is not complete yet, what there is of it
}

// WaitFor waits until the exec prints a line that meets the condition, and returns the first one. Output that was
// printed before the call counts, too; to leave it out, use [WithOffset]. Stdout and stderr are compared line by line,
// each by itself. Ending ctx ends only the wait.
//
// Options: [WithOffset]. Errors: those of [Exec.Output]; invalid_argument for a bad condition; failed_precondition with
// reason exec_already_terminal if the exec ended without such a line.
func (x *Exec) WaitFor(ctx context.Context, c Condition, opts ...OutputOption) (*Match, error) {
	m, err := c.find(x.Output(ctx, append(opts[:len(opts):len(opts)], WithFollow(true))...))
	if m != nil || err != nil {
		return m, err
	}
	info := x.Info()
	return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
		"exec %s %s, and no line of its output %s%s", x.ID(), endOf(&info), c.what, cutNote(&info))
}

func endOf(info *ExecInfo) string {
	if info.ExitCode == nil {
		return "ended as " + string(info.State)
	}
	return fmt.Sprintf("ended with exit code %d", *info.ExitCode)
}

func cutNote(info *ExecInfo) string {
	if !info.Truncated {
		return ""
	}
	return "; the fleet kept only the beginning of the output (output_limit)"
}

// WaitFor waits until the sandbox's own command or, with [WithService], a service prints a line that meets the
// condition, and returns the first one. Output that was printed before the call counts, too, also that of earlier
// starts; to leave it out, use [WithOffset]. Stdout and stderr are compared line by line, each by itself.
//
// Options: [WithOffset], [WithService]. Errors: those of [Sandbox.Logs]; invalid_argument for a bad condition;
// failed_precondition with the state's reason if the sandbox failed or was deleted without such a line.
func (s *Sandbox) WaitFor(ctx context.Context, c Condition, opts ...LogsOption) (*Match, error) {
	m, err := c.find(s.Logs(ctx, append(opts[:len(opts):len(opts)], WithFollow(true))...))
	if m != nil || err != nil {
		return m, err
	}
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	info := s.Info()
	return nil, protocol.Errorf(protocol.FailedPrecondition, info.Reason,
		"sandbox %s is %s, and no line of the output %s", info.ID, info.State, c.what)
}

// find returns the first line that meets the condition, or nil if no line does.
func (c Condition) find(chunks iter.Seq2[Chunk, error]) (*Match, error) {
	if c.bad != nil {
		return nil, c.bad
	}
	if c.holds == nil {
		return nil, protocol.Invalid("condition", "must be made by OutputContains or OutputMatches")
	}
	lines := map[string]*openLine{Stdout: {}, Stderr: {}}
	for k, err := range chunks {
		if err != nil {
			return nil, err
		}
		if m := lines[k.Stream].add(c, k); m != nil {
			return m, nil
		}
	}
	for _, stream := range []string{Stdout, Stderr} {
		if l := lines[stream]; len(l.text) > 0 && c.holds(l.text, true) {
			return l.match(stream, l.text), nil
		}
	}
	return nil, nil
}

// openLine is the part of a line that has arrived.
type openLine struct {
	start int64 // offset of its first byte in the stream
	text  []byte
}

// add adds a chunk, and returns the first line that meets the condition, or nil.
func (l *openLine) add(c Condition, k Chunk) *Match {
	if k.Offset != l.start+int64(len(l.text)) { // the read began here, or output was lost
		l.start, l.text = k.Offset, l.text[:0]
	}
	for data := k.Data; len(data) > 0; {
		n := bytes.IndexByte(data, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(data)
		}
		if n = min(n, MaxLine-len(l.text)); n == 0 {
			l.start, l.text = l.start+int64(len(l.text)), l.text[:0]
			continue
		}
		l.text, data = append(l.text, data[:n]...), data[n:]
		whole = whole && l.text[len(l.text)-1] == '\n'
		text := bytes.TrimSuffix(bytes.TrimSuffix(l.text, []byte("\n")), []byte("\r"))
		if c.holds(text, whole || len(l.text) == MaxLine) {
			return l.match(k.Stream, text)
		}
		if whole {
			l.start, l.text = l.start+int64(len(l.text)), l.text[:0]
		}
	}
	return nil
}

func (l *openLine) match(stream string, text []byte) *Match {
	return &Match{Stream: stream, Offset: l.start, Line: string(text)}
}
