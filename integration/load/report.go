package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// report prints results as soon as they are known, and collects the failures.
type report struct {
	short  bool // do not check goals
	out    io.Writer
	begun  time.Time
	missed []string // goals that were missed
	wrong  []string

	placing  float64 // assignments per second
	messages float64 // number of messages that one create adds to the log
}

// line prints one figure.
func (r *report) line(name, format string, args ...any) {
	fmt.Fprintf(r.out, "%-46s %s\n", name, fmt.Sprintf(format, args...))
}

// goal prints a figure with its goal. The parameter counts says whether a run of this size must reach the goal.
func (r *report) goal(name string, value float64, unit string, atMost bool, bound float64, counts bool) {
	relation, ok := ">=", value >= bound
	if atMost {
		relation, ok = "<=", value <= bound
	}
	verdict := "ok"
	switch {
	case r.short || !counts:
		verdict = "(not for this size)"
	case !ok:
		verdict = "MISSED"
		r.missed = append(r.missed, name)
	}
	r.line(name, "%s   goal %s %s   %s", strings.TrimSpace(figure(value)+" "+unit), relation, figure(bound), verdict)
}

// fail records a failure.
func (r *report) fail(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// classes prints a line for each key of a map, such as an outcome or a reason, with how often it occurred.
func (r *report) classes(name string, of map[string]int) {
	for _, what := range slices.Sorted(maps.Keys(of)) {
		r.line(name, "%d × %s", of[what], what)
	}
}

func (r *report) ok() bool { return len(r.wrong) == 0 && len(r.missed) == 0 }

func (r *report) end(err error) {
	for _, what := range r.wrong {
		fmt.Fprintln(r.out, "WRONG:", what)
	}
	for _, what := range r.missed {
		fmt.Fprintln(r.out, "MISSED:", what)
	}
	if err != nil {
		fmt.Fprintln(r.out, "error:", err)
	}
	r.line("total time", "%.0f s", time.Since(r.begun).Seconds())
}

// percentile returns the sample of the nearest rank, or 0 if there are no samples.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// figure returns a number without an exponent and with at most two decimals.
func figure(v float64) string {
	switch {
	case v >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
