package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Text for people contains parts from untrusted sources: names, labels, errors of registries and commands. A terminal
// interprets some characters as commands, for example to move the cursor, rewrite earlier lines, or send input. plain
// and plainLine escape these characters. The output of a sandbox's commands is passed through unchanged.

// plain escapes terminal control characters except newlines and tabs.
func plain(text string) string { return harmless(text, "\n\t") }

// plainLine escapes all terminal control characters. The result is one line.
func plainLine(text string) string { return harmless(text, "") }

func harmless(text, allowed string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return controls(r) && !strings.ContainsRune(allowed, r) }) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case !controls(r) || strings.ContainsRune(allowed, r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == utf8.RuneError:
			if _, size := utf8.DecodeRuneInString(text[i:]); size > 1 {
				b.WriteRune(r)
			} else {
				fmt.Fprintf(&b, `\x%02x`, text[i])
			}
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// controls reports whether a terminal may interpret a character as a command, or display the text after it in another
// order. Invalid UTF-8 may contain such characters.
func controls(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' ||
		r == utf8.RuneError
}

// indented indents the second and later lines of a text.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }

// plainText writes text for people: it escapes control characters, and uses colours if colour is set.
type plainText struct {
	io.Writer
	colours bool
}

// plain wraps w for text that people read.
func (con *console) plain(w io.Writer) *plainText { return &plainText{w, coloured(w)} }

func (w *plainText) Write(data []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, plain(string(data))); err != nil {
		return 0, err
	}
	return len(data), nil
}

// jsonText writes JSON and replaces control characters by equivalent \u escapes. encoding/json has already escaped all
// characters below 0x20, except the newline after each value.
type jsonText struct{ io.Writer }

func (w jsonText) Write(data []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, harmless(string(data), "\n\t\ufffd\x7f")); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Colours, by their numbers in terminal escape sequences.
const (
	red    = 31
	green  = 32
	yellow = 33
)

// tinted is text with a colour; 0 means no colour.
type tinted struct {
	colour int
	text   string
}

func (t tinted) String() string { return t.text }

// coloured reports whether to use colours on w. w must be a terminal that supports colours, and NO_COLOR must not be
// set.
func coloured(w io.Writer) bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return isTerminal(w)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w any) bool {
	if g, ok := w.(*pipe); ok {
		w = g.Writer
	}
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

func (w *plainText) paint(colour int, text string) string {
	if !w.colours || colour == 0 {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

// stateColour colours a state by its first word.
func stateColour(state string) tinted {
	first, _, _ := strings.Cut(state, ",")
	switch first {
	case "ready", "running":
		return tinted{green, state}
	case "failed", "lost", "timed_out":
		return tinted{red, state}
	case "pending", "accepted", "deleting", "cancelled", "draining":
		return tinted{yellow, state}
	}
	return tinted{0, state}
}
