package seldom

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// quietLog returns a logger with a level, and the buffer that it writes to.
func quietLog(level slog.Level) (*slog.Logger, *bytes.Buffer) {
	out := &bytes.Buffer{}
	return Logger(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))), out
}

func lines(out *bytes.Buffer) int { return strings.Count(out.String(), "\n") }

func TestRepeatedLinesAreLoggedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := quietLog(slog.LevelWarn)
		var at []time.Duration
		for seen, passed := 0, time.Duration(0); passed < time.Hour; passed += 500 * time.Millisecond {
			log.Warn("waiting for NATS", "error", errors.New("connection refused"))
			if n := lines(out); n > seen {
				seen, at = n, append(at, passed)
			}
			time.Sleep(500 * time.Millisecond)
		}
		want := "[0s 1m0s 3m0s 7m0s 15m0s 25m0s 35m0s 45m0s 55m0s]"
		if got := fmt.Sprint(at); got != want {
			t.Errorf("logged after %s, want %s", got, want)
		}
		if !strings.Contains(out.String(), "left_out=119\n") {
			t.Errorf("does not count the lines that were left out:\n%s", out)
		}
		time.Sleep(30 * time.Minute)
		before := out.Len()
		log.Warn("waiting for NATS", "error", errors.New("connection refused"))
		if out.Len() == before {
			t.Error("a line that returns after a long silence is not logged at once")
		}
	})
}

func TestLinesWithTheSameMessageAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := quietLog(slog.LevelWarn)
		for i := range 100_000 {
			log.With("sandbox", i).Warn("output waits")
		}
		log.Warn("something else")
		time.Sleep(time.Minute)
		log.With("sandbox", "last").Warn("output waits")
		if n := lines(out); n != alikeMost+2 {
			t.Errorf("%d lines", n)
		}
		if !strings.Contains(out.String(), "sandbox=last left_out=") {
			t.Errorf("does not count the lines that were left out:\n%s", out)
		}
	})
}

// A sandbox provokes the same message without end, each time with other attributes. Only a few of its lines are
// logged, and the line of another sandbox is logged too.
func TestOneSandboxCannotFillTheLog(t *testing.T) {
	for name, own := range map[string]func(log *slog.Logger, sandbox string) (*slog.Logger, []any){
		"its logger's": func(log *slog.Logger, sandbox string) (*slog.Logger, []any) {
			return log.With("sandbox", sandbox),
				nil
		},
		"each record's": func(log *slog.Logger, sandbox string) (*slog.Logger, []any) {
			return log,
				[]any{"sandbox", sandbox}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			log, out := quietLog(slog.LevelWarn)
			warn := func(sandbox string, pid int) {
				log, attrs := own(log, sandbox)
				log.Warn("an unknown process connected", append(attrs, "pid", pid)...)
			}
			for pid := range 300_000 {
				warn("hostile", pid)
			}
			warn("other", 1)
			if n := strings.Count(out.String(), "sandbox=hostile"); n != oneMost {
				t.Errorf("%s: logged %d lines of the hostile sandbox", name, n)
			}
			if !strings.Contains(out.String(), "sandbox=other") {
				t.Errorf("%s: does not log the line of the other sandbox:\n%s", name, out)
			}
			time.Sleep(time.Minute)
			warn("hostile", 0)
			warn("hostile", 1_000_000)
			if !strings.Contains(out.String(), fmt.Sprintf("left_out=%d\n", 300_000-oneMost)) {
				t.Errorf("%s: does not count the lines that were left out:\n%s", name, out)
			}
		})
	}
}

func TestDebugLevelLimitsOnlyOneSandboxsRepetitions(t *testing.T) {
	log, out := quietLog(slog.LevelDebug)
	for range 1000 {
		log.Warn("waiting for NATS")
	}
	if n := lines(out); n != 1000 {
		t.Errorf("%d lines", n)
	}
	out.Reset()
	for range 10_000 {
		log.Debug("step", "sandbox", "s")
	}
	if n := lines(out); n != debugMost {
		t.Errorf("logged %d lines of one sandbox", n)
	}
}

func TestALoggerIsWrappedOnce(t *testing.T) {
	log, _ := quietLog(slog.LevelWarn)
	if again := Logger(log.With("worker", "w")); again.Handler().(*Handler).told != log.Handler().(*Handler).told {
		t.Error("wraps a Handler again")
	}
}
