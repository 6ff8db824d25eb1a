package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// quietLog is a log at a level, with a clock that the test sets.
func quietLog(level slog.Level) (log *slog.Logger, out *screen, now *time.Time) {
	out, now = &screen{}, new(time.Time)
	*now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := newSeldom(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	h.told.now = func() time.Time { return *now }
	return slog.New(h), out, now
}

func TestWhatGoesOnForLongIsLoggedMoreAndMoreRarely(t *testing.T) {
	log, out, now := quietLog(slog.LevelWarn)
	var at []time.Duration
	for lines, passed := 0, time.Duration(0); passed < time.Hour; passed += 500 * time.Millisecond {
		log.Warn("waiting for NATS", "error", errors.New("connection refused"))
		if n := strings.Count(out.String(), "\n"); n > lines {
			lines, at = n, append(at, passed)
		}
		*now = now.Add(500 * time.Millisecond)
	}
	want := "[0s 1m0s 3m0s 7m0s 15m0s 25m0s 35m0s 45m0s 55m0s]"
	if got := fmt.Sprint(at); got != want {
		t.Errorf("logged after %s, want %s", got, want)
	}
	if !strings.Contains(out.String(), "left_out=119\n") {
		t.Errorf("what was left out is not counted:\n%s", out)
	}
	*now = now.Add(30 * time.Minute)
	before := len(out.String())
	log.Warn("waiting for NATS", "error", errors.New("connection refused"))
	if len(out.String()) == before {
		t.Error("what begins again is not logged at once")
	}
}

func TestManyThingsAtOnceDoNotFillTheLog(t *testing.T) {
	log, out, now := quietLog(slog.LevelWarn)
	for i := range 100_000 {
		log.With("sandbox", i).Warn("output waits")
	}
	log.Warn("something else")
	*now = now.Add(time.Minute)
	log.With("sandbox", "last").Warn("output waits")
	got := out.String()
	if n := strings.Count(got, "\n"); n != alikeMost+2 {
		t.Errorf("%d lines", n)
	}
	if !strings.Contains(got, fmt.Sprintf("sandbox=last left_out=%d\n", 100_000-alikeMost)) {
		t.Errorf("what was left out is not counted:\n%s", got)
	}
}

func TestDebuggingLeavesNothingOut(t *testing.T) {
	log, out, _ := quietLog(slog.LevelDebug)
	for range 100 {
		log.Warn("waiting for NATS")
	}
	if n := strings.Count(out.String(), "\n"); n != 100 {
		t.Errorf("%d lines", n)
	}
}
