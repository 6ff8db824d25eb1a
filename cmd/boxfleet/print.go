package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/boxfleet/boxfleet/protocol"
)

// json reports whether the output format is JSON.
func (p *program) json() bool { return p.config.Output == outputJSON }

// show prints a value as one line of JSON, or calls text to print it for people.
func (p *program) show(value any, text func(w io.Writer)) error {
	if p.json() {
		return p.line(value)
	}
	text(p.plain(p.stdout))
	return nil
}

// line prints a value as one line of JSON.
func (p *program) line(value any) error { return json.NewEncoder(jsonText{p.stdout}).Encode(value) }

// note prints a message for people to stderr.
func (p *program) note(format string, args ...any) {
	w := p.plain(p.stderr)
	fmt.Fprintf(p.stderr, "%s %s\n", w.paint(yellow, "boxfleet:"),
		plain(indented(p.redacted(fmt.Sprintf(format, args...)))))
}

// showNames prints names, one per line.
func (p *program) showNames(names []string) error {
	return p.show(names, func(w io.Writer) {
		for _, name := range names {
			fmt.Fprintln(w, name)
		}
	})
}

// table prints rows in aligned columns. Line breaks in cells are escaped.
func table(w io.Writer, rows ...[]any) {
	var widths []int
	texts := make([][]string, len(rows))
	for r, row := range rows {
		for i, cell := range row {
			text := plainLine(fmt.Sprint(cell))
			texts[r] = append(texts[r], text)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	out, colours := w, &plainText{Writer: w}
	if known, ok := w.(*plainText); ok {
		out, colours = known.Writer, known
	}
	for r, row := range rows {
		var line strings.Builder
		for i, text := range texts[r] {
			shown := text
			if t, ok := row[i].(tinted); ok {
				shown = colours.paint(t.colour, text)
			}
			line.WriteString(shown)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]+3-utf8.RuneCountInString(text)))
			}
		}
		fmt.Fprintln(out, line.String())
	}
}

// ago formats how long ago t was. Both times must come from the store's clock.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// stamp formats a time in the local zone, to the millisecond, in a form that --since accepts.
func stamp(t time.Time) string { return t.Local().Format("2006-01-02T15:04:05.000Z07:00") }

// progress shows a progress line on a terminal until done is called. It prints nothing elsewhere.
func (p *program) progress(what string) (done func()) {
	_, done = p.progressing(what)
	return done
}

// progressing is like progress, but tell can change the text.
func (p *program) progressing(what string) (tell func(what string), done func()) {
	if !p.watched() {
		return func(string) {}, func() {}
	}
	var text atomic.Value
	text.Store(what)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		started, tick := time.Now(), time.NewTicker(120*time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				fmt.Fprint(p.stderr, "\r\x1b[K")
				return
			case <-tick.C:
				spinner := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10]
				line := fmt.Sprintf("%c %s (%.0fs)", spinner, plainLine(text.Load().(string)),
					time.Since(started).Seconds())
				fmt.Fprintf(p.stderr, "\r\x1b[K%s", cut(line, p.width()-1))
			}
		}
	})
	var once sync.Once
	return func(what string) { text.Store(what) }, func() { once.Do(func() { close(stop); wg.Wait() }) }
}

// cut shortens a text to at most this many characters and marks the cut.
func cut(text string, most int) string {
	letters := []rune(text)
	if len(letters) <= most {
		return text
	}
	if most <= 0 {
		return ""
	}
	return string(letters[:most-1]) + "…"
}

// width returns the width of the terminal on stderr. A longer progress line would wrap and fill the screen.
func (p *program) width() int {
	if f, ok := p.stderr.(interface{ Fd() uintptr }); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// watched reports whether stderr is a terminal.
func (p *program) watched() bool { return isTerminal(p.stderr) }

// bar draws a progress bar.
func bar(done, total int64) string {
	const width = 24
	full := int(width * done / max(total, 1))
	return fmt.Sprintf("[%s%s] %d%% of %s", strings.Repeat("█", full), strings.Repeat("░", width-full),
		100*done/max(total, 1), protocol.Bytes(total))
}
