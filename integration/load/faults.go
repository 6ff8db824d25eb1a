package main

import (
	"context"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// restartNATS kills and restarts the NATS server. It then waits until every worker has again received notifications for
// all its sandboxes.
func (m *measurement) restartNATS(ctx context.Context) error {
	before, err := m.heard(ctx, "mark")
	if err != nil {
		return err
	}
	begin := time.Now()
	m.server.Kill()
	if err := m.startServer(ctx, false); err != nil {
		return err
	}
	m.line("NATS is back", "%.1f s after it was killed", time.Since(begin).Seconds())
	lost := 0
	after := heard{}
	err = until(ctx, "all sandboxes are notified again, and all hosts are ready", askEvery, func() (bool, string, error) {
		if after, err = m.heard(ctx, "told"); err != nil {
			return false, "", err
		}
		states, err := m.hostStates(ctx)
		if err != nil {
			return false, fmt.Sprintf("%+v", after), nil // no coordinator answers yet
		}
		lost = max(lost, states[protocol.HostLost])
		return after.Told >= before.Living &&
			states[protocol.HostReady] == m.workers, fmt.Sprintf("%+v %v", after, states), nil
	})
	large := m.workers >= 1000 && m.living+m.sandboxes >= 100000
	m.line("notified again", "%d of %d sandboxes", after.Told, before.Living)
	m.goal("all sandboxes notified again after", time.Since(begin).Seconds(), "s", true, 60, large)
	m.goal("hosts lost meanwhile", float64(lost), "", true, 0, true)
	m.line("locks taken again meanwhile", "%d", after.Tenures-before.Tenures)
	if lost > 0 {
		m.fail("%d hosts were declared lost after a restart of NATS", lost)
	}
	if before.Living == 0 {
		m.fail("there was no living sandbox to notify of")
	}
	return err
}

// failSchedulerOver kills the scheduling coordinator while sandboxes are created, and measures the time to the first
// placement by another coordinator.
func (m *measurement) failSchedulerOver(ctx context.Context) error {
	const rate, creates = 20, 200
	before := m.watch.count(isAccepted)
	go m.creator.open(ctx, creates, rate)
	if err := m.watch.await(ctx, "assigned", before+creates/4, isAssigned); err != nil {
		return err
	}
	leader, newest := "", time.Time{}
	m.watch.each(func(_ string, l *life) {
		if l.assigned.After(newest) {
			leader, newest = l.scheduler, l.assigned
		}
	})
	p := m.deciding[leader]
	if p == nil {
		return fmt.Errorf("unknown coordinator %q placed the last sandbox", leader)
	}
	killed := time.Now()
	p.Kill()
	delete(m.deciding, leader)
	if err := m.watch.await(ctx, "ready, or failed", before+creates, isOver); err != nil {
		return err
	}
	first := time.Time{}
	m.watch.each(func(_ string, l *life) {
		if l.scheduler != leader && l.assigned.After(killed) && (first.IsZero() || l.assigned.Before(first)) {
			first = l.assigned
		}
	})
	if first.IsZero() {
		m.fail("no coordinator placed a sandbox after %s was killed", leader)
		return nil
	}
	m.goal("fail-over of the scheduler", first.Sub(killed).Seconds(), "s", true, 3, true)
	return m.judge(before + creates)
}
