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

// What people read has parts that others wrote: names, labels, errors of registries and of commands. To a
// terminal some characters are orders: to move the cursor, to change what is above, to answer as if somebody
// typed. They are shown as what they are instead. What a command prints is passed on as it is.

// plain is a text without characters that order something. Lines and tabs stay.
func plain(text string) string { return harmless(text, "\n\t") }

// plainLine is plain on one line.
func plainLine(text string) string { return harmless(text, "") }

func harmless(text, allowed string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return orders(r) && !strings.ContainsRune(allowed, r) }) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case !orders(r) || strings.ContainsRune(allowed, r):
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

// orders says whether a terminal may obey a character, or show what follows it in another order. Bytes that
// are no text may be such characters.
func orders(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' ||
		r == utf8.RuneError
}

// indented has the second and later lines of a text behind its first.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }

// plainText is where text for people goes. It makes it plain, and has colours where a terminal shows them.
type plainText struct {
	io.Writer
	colours bool
}

// plain is w for people.
func (p *program) plain(w io.Writer) *plainText { return &plainText{w, coloured(w)} }

func (w *plainText) Write(data []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, plain(string(data))); err != nil {
		return 0, err
	}
	return len(data), nil
}

// jsonText is where JSON goes: characters that order something are written as their numbers, which says the
// same. What encoding/json writes has none below 0x20 but the ends of lines.
type jsonText struct{ io.Writer }

func (w jsonText) Write(data []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, harmless(string(data), "\n\t\ufffd\x7f")); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Colours, as terminals number them.
const (
	red    = 31
	green  = 32
	yellow = 33
)

// tinted is a text in a colour; 0 is none.
type tinted struct {
	colour int
	text   string
}

func (t tinted) String() string { return t.text }

// coloured says whether colours are for w: it is a terminal that has them, and nobody asked for none.
func coloured(w io.Writer) bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return isTerminal(w)
}

// isTerminal says whether somebody watches what is written to w.
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

// stateColour is the colour of a state, by its first word.
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
