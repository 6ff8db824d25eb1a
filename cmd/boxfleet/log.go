package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	repeatFirst = time.Minute      // until the same line is logged again, doubled each time
	repeatMost  = 10 * time.Minute // at most
	alikeMost   = 20               // lines with one message, within alikeIn
	alikeIn     = time.Minute
	linesKept   = 2000
)

// seldom is a log that can be left alone: what goes on for long, or happens to many things at once, is said
// from time to time, with a count of what was left out, and does not fill a disk.
type seldom struct {
	next slog.Handler
	with string // what every record of this logger has
	told *told
}

// told is what was logged, by all loggers of a process.
type told struct {
	now func() time.Time

	mu       sync.Mutex
	lines    map[string]*line
	messages map[string]*message
}

// line is a record in all its words.
type line struct {
	next     time.Time // logged again from then on
	interval time.Duration
	left     int // out, since it was logged last
}

// message is what records with one message have together.
type message struct {
	since time.Time
	count int
	left  int
}

func newSeldom(next slog.Handler) *seldom {
	return &seldom{next: next, told: &told{now: time.Now, lines: map[string]*line{}, messages: map[string]*message{}}}
}

func (h *seldom) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h *seldom) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &seldom{h.next.WithAttrs(attrs), h.with + fmt.Sprint(attrs), h.told}
}

func (h *seldom) WithGroup(name string) slog.Handler {
	return &seldom{h.next.WithGroup(name), h.with + name + ".", h.told}
}

// Handle logs a record, or counts it as left out. With debug everything is logged.
func (h *seldom) Handle(ctx context.Context, r slog.Record) error {
	if h.next.Enabled(ctx, slog.LevelDebug) {
		return h.next.Handle(ctx, r)
	}
	var words strings.Builder
	words.WriteString(r.Message + h.with)
	r.Attrs(func(a slog.Attr) bool { words.WriteString(a.String()); return true })
	left, ok := h.told.may(r.Message, words.String())
	if !ok {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return h.next.Handle(ctx, r)
}

// may says whether a line is to be logged, and how many like it were left out since the last one.
func (t *told) may(text, words string) (left int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	m := t.messages[text]
	if m == nil {
		m = &message{}
		t.messages[text] = m
	}
	if now.Sub(m.since) >= alikeIn {
		m.since, m.count = now, 0
	}
	l := t.lines[words]
	switch {
	case l == nil || now.Sub(l.next) >= l.interval: // new, or it had ended
		if l == nil {
			l = &line{}
			t.keep(now, words, l)
		}
		l.interval = repeatFirst
	case now.Before(l.next):
		l.left++
		return 0, false
	default:
		l.interval = min(2*l.interval, repeatMost)
	}
	if m.count++; m.count > alikeMost {
		m.left++
		return 0, false
	}
	left = l.left + m.left
	l.next, l.left, m.left = now.Add(l.interval), 0, 0
	return left, true
}

// keep remembers a line. What is over is forgotten, and everything where that is not enough: some lines then
// come again early.
func (t *told) keep(now time.Time, words string, l *line) {
	if len(t.lines) >= linesKept {
		for words, old := range t.lines {
			if now.Sub(old.next) >= old.interval {
				delete(t.lines, words)
			}
		}
	}
	if len(t.lines) >= linesKept {
		clear(t.lines)
	}
	t.lines[words] = l
}
