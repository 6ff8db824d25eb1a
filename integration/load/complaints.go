package main

import (
	"context"
	"log/slog"
	"maps"
	"sync"
)

// complaints counts the warnings and errors of a process by level and message.
type complaints struct {
	slog.Handler
	counts *counts
}

type counts struct {
	mu sync.Mutex
	of map[string]int
}

func newComplaints(h slog.Handler) *complaints {
	return &complaints{h, &counts{of: map[string]int{}}}
}

// Handle implements slog.Handler.
func (c *complaints) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return nil
	}
	c.counts.mu.Lock()
	what := r.Level.String() + " " + r.Message
	c.counts.of[what]++
	first := c.counts.of[what] <= firstShown
	c.counts.mu.Unlock()
	if !first {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

// firstShown is how many warnings of each kind are logged. Later warnings are only counted: when a thousand workers
// lose their server, each of them warns.
const firstShown = 5

// WithAttrs implements slog.Handler.
func (c *complaints) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &complaints{c.Handler.WithAttrs(attrs), c.counts}
}

// WithGroup implements slog.Handler.
func (c *complaints) WithGroup(name string) slog.Handler {
	return &complaints{c.Handler.WithGroup(name), c.counts}
}

// take returns the counts and resets them.
func (c *complaints) take() map[string]int {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	taken := maps.Clone(c.counts.of)
	clear(c.counts.of)
	return taken
}
