package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// measurement is one line of the table: samples of one figure for Boxfleet and, if it is compared with something
// without Boxfleet, samples of that: of the bare Engine, unless the name says otherwise.
type measurement struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	More   bool      `json:"more_is_better,omitempty"`
	Ours   []float64 `json:"samples"`
	Bare   []float64 `json:"bare_samples,omitempty"`
	Target target    `json:"target,omitzero"`

	// judge computes the fields below.
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"` // nine of ten samples are at least this good
	BareP50 float64 `json:"bare_p50,omitempty"`
	BareP90 float64 `json:"bare_p90,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"` // P50 / BareP50
	Missed  bool    `json:"missed,omitempty"`
}

// The figures that a target can limit.
const (
	ofP50   = "p50"
	ofP99   = "p99"
	ofRatio = "ratio"
	ofWorst = "worst" // the worst sample
)

// target limits a figure from above, or from below if higher is better.
type target struct {
	Of    string  `json:"of"`
	Bound float64 `json:"bound"`
}

// at returns the target for a measurement of this size, or no target if the target was set for another size. The
// parameter of is the size that the target was set for.
func (t target) at(size, of int) target {
	if size != of {
		return target{}
	}
	return t
}

// Units of measurements.
const (
	unitMilliseconds = "ms"
	unitMemory       = "MiB"
	unitThroughput   = "MiB/s"
)

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// judge computes the figures from the samples and compares them with the target. slack is a factor that widens the
// limit; 1 does not change the limit.
func (m *measurement) judge(slack float64) {
	m.P50, m.P90 = m.figures(m.Ours)
	m.BareP50, m.BareP90 = m.figures(m.Bare)
	if m.BareP50 > 0 {
		m.Ratio = m.P50 / m.BareP50
	}
	if m.Target == (target{}) {
		return
	}
	figure := m.bounded()
	m.Missed = len(m.Ours) == 0 || m.Target.Of == ofRatio && len(m.Bare) == 0 ||
		m.More && figure < m.Target.Bound/slack || !m.More && figure > m.Target.Bound*slack
}

// bounded returns the figure that the target limits.
func (m *measurement) bounded() float64 {
	switch {
	case m.Target.Of == ofRatio:
		return m.Ratio
	case m.Target.Of == ofP50 || len(m.Ours) == 0:
		return m.P50
	case m.Target.Of == ofP99 && !m.More:
		return percentile(slices.Sorted(slices.Values(m.Ours)), 0.99)
	case m.More:
		return slices.Min(m.Ours)
	}
	return slices.Max(m.Ours)
}

func (m *measurement) figures(samples []float64) (p50, p90 float64) {
	if len(samples) == 0 {
		return 0, 0
	}
	best := slices.Sorted(slices.Values(samples))
	if m.More {
		slices.Reverse(best)
	}
	return percentile(best, 0.5), percentile(best, 0.9)
}

// percentile returns the sample of the nearest rank. It never interpolates.
func percentile(sorted []float64, p float64) float64 {
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// goal returns the target as text.
func (m *measurement) goal() string {
	if m.Target == (target{}) {
		return ""
	}
	relation := "<="
	if m.More {
		relation = ">="
	}
	return fmt.Sprintf("%s %s %s", m.Target.Of, relation, figure(m.Target.Bound))
}

// figure returns a number with about three significant digits.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
