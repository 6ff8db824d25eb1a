package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

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

// ago formats how long ago t was. Both times must come from the clock of the event log.
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

// stamp formats a time in the local time zone, to the millisecond. The flag --since accepts this form.
func stamp(t time.Time) string { return t.Local().Format("2006-01-02T15:04:05.000Z07:00") }

// cut shortens a text to at most this many characters and marks where it was cut.
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
