package jetstream

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// answersAtOnce is how many queries of one endpoint are answered concurrently, tenantsAnswers how many of one tenant.
	answersAtOnce  = 256
	tenantsAnswers = answersAtOnce * 3 / 4
	// Further queries of a tenant to one endpoint wait, up to these limits. Queries beyond them are refused.
	waitingQueries = 1024
	waitingBytes   = 8 << 20

	// The client learns of at most this many refusals a second. To answer all queries of a flood would take longer than
	// to receive them, and queries of other tenants would wait behind them.
	toldRefusals = 100

	refusedQueriesAgain = 5 * time.Second // pause between two log lines about refused queries of one endpoint
)

// turns answers the queries to one endpoint. While queries wait, the tenants take turns, so that a flood of one
// tenant's queries delays no other tenant. The NATS client would queue and drop the queries of all tenants together.
type turns struct {
	answer func(*nats.Msg)
	refuse func(m *nats.Msg, tell bool)
	log    *slog.Logger

	mu      sync.Mutex
	running int
	tenants map[string]*tenantsTurns // those with a query that runs or waits
	order   []string                 // the tenants with a waiting query, the next one first
	refused map[string]int           // refused queries by tenant, since the last log line
	said    time.Time                // when the last log line was written
}

// tenantsTurns are the queries of one tenant.
type tenantsTurns struct {
	running int
	waiting []*nats.Msg
	bytes   int // of the waiting queries

	told   int       // refusals that the client was told of since second
	second time.Time // at most a second ago, once told is above 0
}

func newTurns(answer func(*nats.Msg), refuse func(m *nats.Msg, tell bool), log *slog.Logger) *turns {
	return &turns{answer: answer, refuse: refuse, log: log, tenants: map[string]*tenantsTurns{}, refused: map[string]int{}}
}

// add answers a query when it is its tenant's turn, or refuses it at once. It does not wait for answers.
func (t *turns) add(m *nats.Msg) {
	tenant, user, _, _ := protocol.SplitAPISubject(m.Subject)
	if strings.HasPrefix(user, "@") { // workers and operators query in a tenant's name, but do not share its turns
		tenant += " @"
	}
	if waits, tell := t.queue(m, tenant); !waits {
		t.refuse(m, tell)
	}
}

// queue makes a query wait for its tenant's turn. If too many queries of the tenant wait already, waits is false, and
// tell says whether the client is told so.
func (t *turns) queue(m *nats.Msg, tenant string) (waits, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.tenants[tenant]
	if of == nil {
		of = &tenantsTurns{}
	}
	if len(of.waiting) >= waitingQueries || of.bytes+m.Size() > waitingBytes {
		t.refusedLocked(m.Subject, tenant)
		return false, of.tell()
	}
	t.tenants[tenant] = of
	if len(of.waiting) == 0 {
		t.order = append(t.order, tenant)
	}
	of.waiting = append(of.waiting, m)
	of.bytes += m.Size()
	if t.running < answersAtOnce && of.running < tenantsAnswers {
		t.running++
		go t.run()
	}
	return true, false
}

// tell reports whether the client is told of a refusal now.
func (of *tenantsTurns) tell() bool {
	if time.Since(of.second) >= time.Second {
		of.second, of.told = time.Now(), 0
	}
	of.told++
	return of.told <= toldRefusals
}

// refusedLocked logs refused queries, but not each of them.
func (t *turns) refusedLocked(subject, tenant string) {
	t.refused[tenant]++
	if time.Since(t.said) < refusedQueriesAgain {
		return
	}
	t.said = time.Now()
	_, _, endpoint, _ := protocol.SplitAPISubject(subject)
	for tenant, queries := range t.refused {
		t.log.Warn("refused queries of a tenant: too many of them wait already", "endpoint", endpoint, "tenant", tenant,
			"queries since the last such line", queries)
	}
	clear(t.refused)
}

// run answers queries until it is the turn of none.
func (t *turns) run() {
	for {
		tenant, m := t.begin()
		if m == nil {
			return
		}
		t.answer(m)
		t.end(tenant)
	}
}

// begin takes the query whose turn it is. If there is none, it returns nil, and its caller ends.
func (t *turns) begin() (tenant string, m *nats.Msg) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.order, func(tenant string) bool { return t.tenants[tenant].running < tenantsAnswers })
	if i < 0 {
		t.running--
		return "", nil
	}
	tenant = t.order[i]
	t.order = slices.Delete(t.order, i, i+1)
	of := t.tenants[tenant]
	m, of.waiting[0] = of.waiting[0], nil
	of.waiting = of.waiting[1:]
	of.bytes -= m.Size()
	of.running++
	if len(of.waiting) > 0 {
		t.order = append(t.order, tenant)
	}
	return tenant, m
}

func (t *turns) end(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.tenants[tenant]
	if of.running--; of.running == 0 && len(of.waiting) == 0 {
		delete(t.tenants, tenant)
	}
}
