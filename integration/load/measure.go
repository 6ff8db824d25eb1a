package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/integration/part"
)

// measurement is one run: the deployment, its log and the report.
type measurement struct {
	*deployment
	*report
	watch   *watch
	creator *creator
}

// measure carries out every step that the options ask for.
func measure(ctx context.Context, o options, r *report) (err error) {
	r.begun = time.Now()
	m := &measurement{deployment: &deployment{options: o}, report: r}
	if err := m.makeDir(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.deployment.end()) }()
	steps := []struct {
		what string
		do   func(context.Context) error
		want bool
	}{
		{"begin", m.begin, true},
		{"creates", m.creates, true},
		{"rest", m.rest, o.settle > 0},
		{"store", m.store, true},
		{"restart", m.restartNATS, o.restart},
		{"fail-over", m.failSchedulerOver, o.failOver},
		{"complaints", m.complaints, true},
	}
	for _, s := range steps {
		if !s.want {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, o.limit)
		err := s.do(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w%s", s.what, err, m.logEnds())
		}
	}
	return nil
}

// logEnds returns the end of each coordinator's log.
func (m *measurement) logEnds() string {
	words := ""
	for name, p := range m.deciding {
		words += "\n" + name + " says:\n" + p.LogEnd()
	}
	return words
}

// begin starts the deployment.
func (m *measurement) begin(ctx context.Context) error {
	m.line("fleet", "%d workers, %d coordinators, %d living sandboxes, %d ended, %d to create", m.workers,
		m.coordinators, m.living, m.over, m.sandboxes)
	if m.living+m.over > 0 {
		begin := time.Now()
		if err := m.fill(ctx); err != nil {
			return err
		}
		m.line("filled", "in %.1f s", time.Since(begin).Seconds())
	}
	if err := m.startServer(ctx, false); err != nil {
		return err
	}
	took, err := m.startCoordinators(ctx)
	if err != nil {
		return err
	}
	m.goal("coordinator, start to serving", took.Seconds(), "s", true, 3, m.over >= 100000 && m.living >= 10000)
	m.coordinatorMemory("coordinator's memory after its start", m.over >= 100000 && m.living >= 10000)
	if err := m.connect(ctx); err != nil {
		return err
	}
	creds, err := m.access.Unlimited()
	if err != nil {
		return err
	}
	if m.watch, err = newWatch(ctx, m.at.URL, creds); err != nil {
		return err
	}
	m.creator = newCreator(m.client)
	if m.backlog {
		return nil
	}
	return m.hostsCome(ctx)
}

func (m *measurement) hostsCome(ctx context.Context) error {
	begin := time.Now()
	if err := m.startWorkers(ctx); err != nil {
		return err
	}
	if err := m.allAlive(ctx); err != nil {
		return err
	}
	m.line("all hosts ready", "%.1f s after their start", time.Since(begin).Seconds())
	return nil
}

func (m *measurement) coordinatorMemory(name string, counts bool) {
	for _, p := range m.deciding {
		rss, _, err := part.Resident(p.Pid())
		if err != nil {
			m.fail("%v", err)
			continue
		}
		m.goal(name, rss, "MiB", true, 400, counts)
	}
}

// pids returns the process ids of the coordinators.
func (m *measurement) pids() (pids []int) {
	for _, p := range m.deciding {
		pids = append(pids, p.Pid())
	}
	return pids
}

// creates creates the sandboxes and judges the result.
func (m *measurement) creates(ctx context.Context) error {
	endProfiles, err := m.profiles(ctx, "creates")
	if err != nil {
		return err
	}
	before, err := part.Busy(m.pids()...)
	if err != nil {
		return err
	}
	begin := time.Now()
	created := make(chan struct{})
	go func() {
		defer close(created)
		if m.rate > 0 {
			m.creator.open(ctx, m.sandboxes, m.rate)
		} else {
			m.creator.closed(ctx, m.sandboxes, m.parallel)
		}
	}()
	if err := m.watch.await(ctx, "accepted", m.sandboxes, isAccepted); err != nil {
		return err
	}
	m.line("accepted", "%d after %.1f s", m.sandboxes, time.Since(begin).Seconds())
	if m.backlog {
		before, _ = part.Busy(m.pids()...) // all sandboxes are accepted now; measure their placement
		if err := m.hostsCome(ctx); err != nil {
			return err
		}
	}
	if err := m.watch.await(ctx, "assigned", m.sandboxes, isAssigned); err != nil {
		return err
	}
	after, err := part.Busy(m.pids()...)
	if err != nil {
		return err
	}
	m.line("assigned", "%d after %.1f s", m.sandboxes, time.Since(begin).Seconds())
	m.line("coordinators' CPU per sandbox so far", "%s ms", figure(milliseconds(after-before)/float64(m.sandboxes)))
	if err := m.watch.await(ctx, "ready, or failed", m.sandboxes, isOver); err != nil {
		return err
	}
	m.line("ready", "%d after %.1f s", m.sandboxes, time.Since(begin).Seconds())
	<-created
	m.latencies()
	m.coordinatorMemory("coordinator's memory", false)
	return errors.Join(m.judge(m.sandboxes), endProfiles())
}

// latencies prints how long sandboxes waited for a host.
func (m *measurement) latencies() {
	var waits, whole []time.Duration
	var first, last time.Time
	m.watch.each(func(_ string, l *life) {
		waits = append(waits, l.assigned.Sub(l.accepted))
		if !l.ready.IsZero() {
			whole = append(whole, l.ready.Sub(l.accepted))
		}
		if first.IsZero() || l.assigned.Before(first) {
			first = l.assigned
		}
		if l.assigned.After(last) {
			last = l.assigned
		}
	})
	slices.Sort(waits)
	slices.Sort(whole)
	steady := m.rate >= 100 && m.workers >= 1000
	m.goal("accepted to assigned, p50", milliseconds(percentile(waits, 0.5)), "ms", true, 20, steady)
	m.goal("accepted to assigned, p99", milliseconds(percentile(waits, 0.99)), "ms", true, 250, steady)
	m.line("accepted to ready, p50 and p99", "%s ms, %s ms", figure(milliseconds(percentile(whole, 0.5))),
		figure(milliseconds(percentile(whole, 0.99))))
	m.placing = float64(len(waits)) / max(last.Sub(first).Seconds(), 1e-3)
	m.line("assignments", "%s a second", figure(m.placing))
}

// judge reports each fault that the log shows of the n created sandboxes.
func (m *measurement) judge(n int) error {
	outcomes, onHost, messages, most := map[string]int{}, map[string]int{}, 0, 0
	m.watch.each(func(id string, l *life) {
		messages += l.messages
		most = max(most, l.messages)
		onHost[l.worker]++
		switch {
		case !l.failed.IsZero():
			outcomes["failed "+l.reason]++
		case l.assignments != 1:
			outcomes[fmt.Sprintf("assigned %d times", l.assignments)]++
		}
	})
	m.messages = float64(messages) / float64(n)
	m.goal("messages of a create on the log", m.messages, "", true, 4, true)
	m.line("  the most", "%d", most)
	m.line("hosts that got some", "%d, at most %d each", len(onHost),
		slices.MaxFunc(mapValues(onHost), cmp.Compare[int]))
	m.classes("creates", outcomes)
	m.classes("refused creates", m.creator.refused)
	for what, times := range outcomes {
		m.fail("%d creates: %s", times, what)
	}
	for what, times := range m.creator.refused {
		m.fail("%d creates were refused: %s", times, what)
	}
	for _, what := range m.watch.broke {
		m.fail("the log: %s", what)
	}
	if ready := m.watch.count(func(l *life) bool { return !l.ready.IsZero() }); ready != n {
		m.fail("%d of %d sandboxes became ready", ready, n)
	}
	return nil
}

func mapValues(m map[string]int) (values []int) {
	for _, v := range m {
		values = append(values, v)
	}
	return values
}

// rest measures the cost of idle coordinators.
func (m *measurement) rest(ctx context.Context) (err error) {
	begin := time.Now()
	if err := m.untilWritten(ctx); err != nil {
		return err
	}
	m.line("all snapshots are written", "after %.1f s", time.Since(begin).Seconds())
	endProfiles, err := m.profiles(ctx, "idle")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endProfiles()) }()
	before := map[string]time.Duration{}
	for name, p := range m.deciding {
		if before[name], err = part.Busy(p.Pid()); err != nil {
			return err
		}
	}
	begin = time.Now()
	if !sleep(ctx, m.settle) {
		return ctx.Err()
	}
	passed := time.Since(begin).Seconds()
	for name, p := range m.deciding {
		after, err := part.Busy(p.Pid())
		if err != nil {
			return err
		}
		m.goal("idle coordinator "+name, 100*(after-before[name]).Seconds()/passed, "% of a core", true, 3,
			m.living >= 100000)
	}
	return nil
}

// store measures how many durable appends per second the store accepts, and compares the placement rate with this
// number.
func (m *measurement) store(ctx context.Context) error {
	creds, err := m.access.Unlimited()
	if err != nil {
		return err
	}
	rate, err := storeRate(ctx, m.at.URL, creds)
	if err != nil {
		return err
	}
	m.line("durable appends of the store", "%s a second, %d at once", figure(rate), appendsAtOnce)
	if rate == 0 {
		m.fail("the store accepted no append")
	}
	// In addition to its messages on the log, a create durably stores a request and an id. With -backlog, the request,
	// the id and the first message were stored before the measurement.
	perCreate := m.messages + 2
	if m.backlog {
		perCreate = m.messages - 1
	}
	allowed := rate / perCreate
	m.line("  of a create", "%s, so that the store allows %s creates a second", figure(perCreate), figure(allowed))
	burst := m.rate == 0 && m.sandboxes >= 10000 && m.workers >= 1000
	m.goal("assignments a second", m.placing, "", false, min(500, 0.9*allowed), burst)
	return nil
}

// complaints prints the warnings and errors of the processes.
func (m *measurement) complaints(ctx context.Context) error {
	all := map[string]map[string]int{"workers": {}, "coordinators": {}}
	take := func(of string, p *part.Process) error {
		var c map[string]int
		if err := p.Ask(ctx, "complaints", &c); err != nil {
			return err
		}
		for what, n := range c {
			all[of][what] += n
		}
		return nil
	}
	for _, p := range m.parks {
		if err := take("workers", p); err != nil {
			return err
		}
	}
	for _, p := range m.deciding {
		if err := take("coordinators", p); err != nil {
			return err
		}
	}
	for _, of := range []string{"coordinators", "workers"} {
		m.classes(of+" log", all[of])
		for what, n := range all[of] {
			// Warnings are always acceptable: they report temporary conditions. Errors are acceptable only in runs that
			// kill processes, and in short runs, which may use a slow machine.
			if strings.HasPrefix(what, slog.LevelError.String()) && !m.options.short && !m.restart && !m.failOver {
				m.fail("%s logged %d times: %s", of, n, what)
			}
		}
	}
	return nil
}
