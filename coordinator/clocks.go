package coordinator

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// noteClock records whether a host's clock is off, and logs each change once.
func (e *hostEntry) noteClock(log *slog.Logger) {
	e.host.ClockOff = e.host.Skew != nil && e.host.Skew.Std().Abs() > protocol.MaxSkew
	switch {
	case e.host.ClockOff && !e.clockReported:
		log.Warn("a host's clock is wrong: no decision uses it, but programs in sandboxes do; synchronize this clock",
			"worker", e.host.Worker, "skew", *e.host.Skew)
	case !e.host.ClockOff && e.clockReported:
		log.Info("a host's clock is right again", "worker", e.host.Worker)
	}
	e.clockReported = e.host.ClockOff
}

// clocks compares clocks with the store's clock. skew is how far this coordinator's wall clock is ahead of the store's;
// nil: unknown. off has a message for each clock of this coordinator and of the hosts that is wrong.
func (c *coordinator) clocks(hosts []*protocol.Host) (skew *protocol.Duration, off []string) {
	if ahead, known := c.conn.Skew(); known {
		rounded := protocol.Duration(ahead.Round(time.Millisecond))
		skew = &rounded
		if ahead.Abs() > protocol.MaxSkew {
			off = append(off, clockOff("coordinator "+c.cfg.Name, ahead))
		}
	}
	slices.SortFunc(hosts, func(a, b *protocol.Host) int { return cmp.Compare(a.Worker, b.Worker) })
	for _, h := range hosts {
		if h.ClockOff {
			off = append(off, clockOff("the host of worker "+h.Worker, h.Skew.Std()))
		}
	}
	return skew, off
}

func clockOff(whose string, skew time.Duration) string {
	direction := "ahead of"
	if skew < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("the clock of %s is %s %s that of the NATS server that leads the event log", whose,
		skew.Abs().Round(time.Second/10), direction)
}
