package seldom

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	repeatFirst = time.Minute      // pause before the same line is logged again; it doubles each time
	repeatMost  = 10 * time.Minute // the longest pause
	alikeIn     = time.Minute
	alikeMost   = 20  // maximum lines with the same message within alikeIn
	oneMost     = 6   // like alikeMost, for one sandbox; lower, so that lines of other sandboxes are logged too
	debugMost   = 600 // like oneMost, while debug logging is enabled
	linesKept   = 2000
	sandboxKey  = "sandbox" // the attribute that names the sandbox
)

// Handler passes on only some of the records that repeat each other.
type Handler struct {
	next    slog.Handler
	with    string // the attributes that every record of this logger has
	sandbox string // the sandbox that every record of this logger is about
	groups  bool
	told    *told
}

// told remembers which lines were logged. A logger and all loggers derived from it share one told.
type told struct {
	mu       sync.Mutex
	lines    map[string]*line
	messages map[string]*message // by message, for all sandboxes; a program has a limited number of messages
	ofOne    map[alike]*message  // by message and sandbox
}

// line is the memory of one line: a record with all its attributes, as text.
type line struct {
	next     time.Time // when the same line may be logged again
	interval time.Duration
	left     int // how many repetitions were left out since the line was last logged
}

// alike identifies similar records: they have the same message and the same sandbox.
type alike struct{ text, sandbox string }

// message counts records with one message.
type message struct {
	since time.Time
	count int
	left  int
}

// New returns a Handler that passes records on to next. If next is already a Handler, New returns next itself.
func New(next slog.Handler) *Handler {
	if h, ok := next.(*Handler); ok {
		return h
	}
	return &Handler{
		next: next,
		told: &told{lines: map[string]*line{}, messages: map[string]*message{}, ofOne: map[alike]*message{}},
	}
}

// Logger returns l with its handler wrapped.
func Logger(l *slog.Logger) *slog.Logger { return slog.New(New(l.Handler())) }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.next, c.with = h.next.WithAttrs(attrs), h.with+fmt.Sprint(attrs)
	for _, a := range attrs {
		if a.Key == sandboxKey && !h.groups {
			c.sandbox = a.Value.String()
		}
	}
	return &c
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	c := *h
	c.next, c.with, c.groups = h.next.WithGroup(name), h.with+name+".", true
	return &c
}

// Handle logs a record, or counts it as left out. While debug logging is enabled, Handle leaves out only records about
// a sandbox, whatever their level, and only those beyond debugMost with the same message and sandbox within alikeIn.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	sandbox := h.sandbox
	if sandbox == "" && !h.groups {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == sandboxKey {
				sandbox = a.Value.String()
			}
			return sandbox == ""
		})
	}
	left, ok := 0, false
	if h.next.Enabled(ctx, slog.LevelDebug) {
		left, ok = h.told.mayInDetail(r.Message, sandbox)
	} else {
		left, ok = h.told.may(r.Message, sandbox, func() string { return h.words(r) })
	}
	if !ok {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return h.next.Handle(ctx, r)
}

func (h *Handler) words(r slog.Record) string {
	var words strings.Builder
	words.WriteString(r.Message + h.with)
	r.Attrs(func(a slog.Attr) bool { words.WriteString(a.String()); return true })
	return words.String()
}

// may reports whether to log a line, and how many similar lines were left out since the last logged line. It calls
// words, which returns the complete line, only while the limits on similar lines are not reached. A flood of records
// therefore costs little.
func (t *told) may(text, sandbox string, words func() string) (left int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	all := t.messages[text]
	if all == nil {
		all = &message{}
		t.messages[text] = all
	}
	if all.begin(now); all.count >= alikeMost {
		all.left++
		return 0, false
	}
	own := all
	if sandbox != "" {
		if own = t.own(alike{text, sandbox}, now); own.count >= oneMost {
			own.left++
			return 0, false
		}
	}
	l, due := t.line(now, words())
	if !due {
		l.left++
		return 0, false
	}
	left = l.left + all.left
	all.count, l.left, all.left = all.count+1, 0, 0
	if own != all {
		left += own.left
		own.count, own.left = own.count+1, 0
	}
	return left, true
}

// mayInDetail is like may, for the time while debug logging is enabled. It limits only records about a sandbox.
func (t *told) mayInDetail(text, sandbox string) (left int, ok bool) {
	if sandbox == "" {
		return 0, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.own(alike{text, sandbox}, time.Now())
	if m.count >= debugMost {
		m.left++
		return 0, false
	}
	left, m.left = m.left, 0
	m.count++
	return left, true
}

// begin restarts the count every alikeIn.
func (m *message) begin(now time.Time) {
	if now.Sub(m.since) >= alikeIn {
		m.since, m.count = now, 0
	}
}

// own returns the count of one sandbox's records. If there are too many counts, it drops the counts that have expired.
// If there are still too many, it drops all counts. The caller holds t.mu.
func (t *told) own(k alike, now time.Time) *message {
	m := t.ofOne[k]
	if m == nil {
		if len(t.ofOne) >= linesKept {
			for k, old := range t.ofOne {
				if now.Sub(old.since) >= alikeIn && old.left == 0 {
					delete(t.ofOne, k)
				}
			}
		}
		if len(t.ofOne) >= linesKept {
			clear(t.ofOne)
		}
		m = &message{}
		t.ofOne[k] = m
	}
	m.begin(now)
	return m
}

// line reports whether a line is due, and records when it is due again. The caller holds t.mu.
func (t *told) line(now time.Time, words string) (l *line, due bool) {
	l = t.lines[words]
	switch {
	case l == nil || now.Sub(l.next) >= l.interval: // the line is new, or returns after a whole interval of silence
		if l == nil {
			l = &line{}
			t.keep(now, words, l)
		}
		l.interval = repeatFirst
	case now.Before(l.next):
		return l, false
	default:
		l.interval = min(2*l.interval, repeatMost)
	}
	l.next = now.Add(l.interval)
	return l, true
}

// keep remembers a line. If it remembers too many, it forgets the expired ones. If there are still too many, it forgets
// all of them; some lines are then logged again too early.
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
