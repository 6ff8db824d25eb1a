package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// judgeClock notes whether a host's clock is off, and says it once.
func (h *hosts) judgeClock(e *hostEntry) {
	e.host.ClockOff = e.host.Skew != nil && e.host.Skew.Std().Abs() > protocol.MaxSkew
	switch {
	case e.host.ClockOff && !e.off:
		h.log.Warn("a host's clock is off; nothing is decided by it, but what runs there sees it: have its time synchronized",
			"worker", e.host.Worker, "skew", *e.host.Skew)
	case !e.host.ClockOff && e.off:
		h.log.Info("a host's clock is right again", "worker", e.host.Worker)
	}
	e.off = e.host.ClockOff
}

// clocks says how far this coordinator's wall clock is ahead of the store's, nil where that is not known,
// and whose clocks are off.
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
	return fmt.Sprintf("the clock of %s is %s %s that of the NATS server that leads the event log", whose, skew.Abs().Round(time.Second/10), direction)
}
