package jetstream

import (
	"slices"
	"strings"
	"sync"
)

// turns runs the jobs of tenants. While jobs wait, the tenants take turns, so that a flood of one tenant's jobs delays
// no other tenant. The NATS client would queue and drop the jobs of all tenants together.
type turns[J any] struct {
	run    func(J)
	limits turnLimits

	mu      sync.Mutex
	running int
	waiting amount              // amount of the waiting jobs in all lines
	lines   map[string]*line[J] // by name: the lines with a job that runs or waits
	order   []string            // the lines with a waiting job, the next one first
}

// turnLimits say how many jobs run concurrently, how many of them may be of one line, and how many jobs may wait.
type turnLimits struct {
	running, ofOneLine int
	waiting            amount
}

// amount is a number of jobs and their size.
type amount struct{ jobs, bytes int }

func (a amount) plus(b amount) amount  { return amount{a.jobs + b.jobs, a.bytes + b.bytes} }
func (a amount) minus(b amount) amount { return amount{a.jobs - b.jobs, a.bytes - b.bytes} }

// half is how much can wait in a line while no other line has a waiting job.
func (a amount) half() amount { return amount{a.jobs / 2, a.bytes / 2} }

// line holds the jobs of one tenant.
type line[J any] struct {
	running int
	waiting []job[J]
	amount  amount // amount of the waiting jobs
}

type job[J any] struct {
	what   J
	amount amount
}

func newTurns[J any](limits turnLimits, run func(J)) *turns[J] {
	return &turns[J]{run: run, limits: limits, lines: map[string]*line[J]{}}
}

// lineOf returns the name of the line for a tenant's user. Workers and operators act in a tenant's name, but do not
// share its line.
func lineOf(tenant, user string) string {
	if strings.HasPrefix(user, "@") {
		return tenant + " @"
	}
	return tenant
}

// add runs a job when it is the turn of its line. It does not block. A line may use at most as much room as is
// still free after all lines are counted, so another line always finds room. If a line uses more, add drops its oldest
// jobs: it returns them, and they never run. It does not drop the only job of a line, or a job with the amount 0.
func (t *turns[J]) add(name string, what J, of amount) (dropped []J) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[name]
	if l == nil {
		l = &line[J]{}
		t.lines[name] = l
	}
	if len(l.waiting) == 0 {
		t.order = append(t.order, name)
	}
	l.waiting = append(l.waiting, job[J]{what, of})
	l.amount, t.waiting = l.amount.plus(of), t.waiting.plus(of)
	for l.amount.jobs > 1 && t.isTooLong(l) {
		dropped = append(dropped, t.takeFirst(l))
	}
	if t.running < t.limits.running && l.running < t.limits.ofOneLine {
		t.running++
		go t.runWaiting()
	}
	return dropped
}

func (t *turns[J]) isTooLong(l *line[J]) bool {
	both := t.waiting.plus(l.amount)
	return both.jobs > t.limits.waiting.jobs || both.bytes > t.limits.waiting.bytes
}

func (t *turns[J]) takeFirst(l *line[J]) J {
	first := l.waiting[0]
	l.waiting[0] = job[J]{}
	l.waiting = l.waiting[1:]
	l.amount, t.waiting = l.amount.minus(first.amount), t.waiting.minus(first.amount)
	return first.what
}

// runWaiting runs one job after another until no waiting job may start.
func (t *turns[J]) runWaiting() {
	for {
		name, what, ok := t.begin()
		if !ok {
			return
		}
		t.run(what)
		t.end(name)
	}
}

// begin takes the next job that may start. If there is none, ok is false, and the caller's goroutine no longer counts
// as running.
func (t *turns[J]) begin() (name string, what J, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.order, func(name string) bool { return t.lines[name].running < t.limits.ofOneLine })
	if i < 0 {
		t.running--
		return "", what, false
	}
	name = t.order[i]
	t.order = slices.Delete(t.order, i, i+1)
	l := t.lines[name]
	what = t.takeFirst(l)
	l.running++
	if len(l.waiting) > 0 {
		t.order = append(t.order, name)
	}
	return name, what, true
}

func (t *turns[J]) end(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[name]
	if l.running--; l.running == 0 && len(l.waiting) == 0 {
		delete(t.lines, name)
	}
}
