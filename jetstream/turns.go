package jetstream

import (
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// answersAtOnce is how many queries of one endpoint are answered concurrently, tenantsAnswers how many of one tenant.
	answersAtOnce  = 256
	tenantsAnswers = answersAtOnce * 3 / 4
	// Further queries of a tenant to one endpoint wait, up to these limits. Queries beyond them are dropped: the client
	// asks again.
	waitingQueries = 1024
	waitingBytes   = 8 << 20
)

// turns answers the queries to one endpoint. While queries wait, the tenants take turns, so that a flood of one
// tenant's queries delays no other tenant. The NATS client would queue and drop the queries of all tenants together.
type turns struct {
	answer func(*nats.Msg)

	mu      sync.Mutex
	running int
	tenants map[string]*tenantsTurns // those with a query that runs or waits
	order   []string                 // the tenants with a waiting query, the next one first
}

// tenantsTurns are the queries of one tenant.
type tenantsTurns struct {
	running int
	waiting []*nats.Msg
	bytes   int // of the waiting queries
}

func newTurns(answer func(*nats.Msg)) *turns {
	return &turns{answer: answer, tenants: map[string]*tenantsTurns{}}
}

// add answers a query when it is its tenant's turn. It does not block.
func (t *turns) add(m *nats.Msg) {
	tenant, user, _, _ := protocol.SplitAPISubject(m.Subject)
	if strings.HasPrefix(user, "@") { // workers and operators query in a tenant's name, but do not share its turns
		tenant += " @"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.tenants[tenant]
	if of == nil {
		of = &tenantsTurns{}
	}
	if len(of.waiting) >= waitingQueries || of.bytes+m.Size() > waitingBytes {
		return
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
