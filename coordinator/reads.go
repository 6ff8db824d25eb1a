package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// endpoints are the reads. Each answers from memory, so that a hung host freezes none of them; those
// of one sandbox look first whether the log has more, so that who has just seen an event, here or in
// another process, reads no older state. Lists may be behind by what is under way.
func (c *coordinator) endpoints() map[string]jetstream.Endpoint {
	return map[string]jetstream.Endpoint{
		protocol.EndpointPing:    uses(c.ping),
		protocol.EndpointGet:     uses(c.get, "sandbox", "min_sequence"),
		protocol.EndpointList:    uses(c.list, "labels", "name", "states", "limit", "page"),
		protocol.EndpointExec:    uses(c.getExec, "sandbox", "exec", "min_sequence"),
		protocol.EndpointExecs:   uses(c.listExecs, "sandbox", "states", "limit", "page", "min_sequence"),
		protocol.EndpointExplain: uses(c.explain, "sandbox"),
		protocol.EndpointHosts:   manyAtOnce(uses(c.listHosts, "limit", "page")),

		protocol.EndpointEvents: uses(c.events, "sandbox", "from", "limit"),
		protocol.EndpointOutput: uses(c.output, "sandbox", "exec?", "service", "stream", "offset", "limit"),

		protocol.EndpointDefaults: uses(c.defaults),
		protocol.EndpointAwaited:  uses(c.awaited, "images"),
	}
}

// uses refuses queries with fields that the endpoint would ignore, and checks the others. An id is required but where
// its field is marked with "?". The limit of what has offsets counts bytes.
func uses(endpoint jetstream.Endpoint, fields ...string) jetstream.Endpoint {
	return func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		if err := protocol.ValidateID("tenant", tenant); err != nil {
			return nil, err
		}
		for field, present := range map[string]bool{
			"sandbox": q.Sandbox != "", "exec": q.Exec != "", "min_sequence": q.MinSequence != 0,
			"labels": len(q.Labels) > 0, "states": len(q.States) > 0, "limit": q.Limit != 0, "page": q.Page != "",
			"images": len(q.Images) > 0, "from": q.From != 0, "service": q.Service != "", "stream": q.Stream != "", "offset": q.Offset != 0, "name": q.Name != "",
		} {
			if present && !slices.Contains(fields, field) && !slices.Contains(fields, field+"?") {
				return nil, protocol.Invalid(field, "is not used by this question")
			}
		}
		for field, id := range map[string]string{"sandbox": q.Sandbox, "exec": q.Exec} {
			if slices.Contains(fields, field) || id != "" && slices.Contains(fields, field+"?") {
				if err := protocol.ValidateID(field, id); err != nil {
					return nil, err
				}
			}
		}
		most, unless := maxLimit, defaultLimit
		if slices.Contains(fields, "offset") {
			most, unless = protocol.MaxOutputPage, protocol.MaxOutputPage
		}
		if q.Limit < 0 || q.Limit > most {
			return nil, protocol.Invalid("limit", "must be 1 to %d, got %d", most, q.Limit)
		}
		if q.Limit == 0 {
			q.Limit = unless
		}
		return endpoint(ctx, tenant, q)
	}
}

// manyAtOnce makes pages as long as they may be where the query does not say.
func manyAtOnce(endpoint jetstream.Endpoint) jetstream.Endpoint {
	return func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		if q.Limit == 0 {
			q.Limit = maxLimit
		}
		return endpoint(ctx, tenant, q)
	}
}

func (c *coordinator) ping(ctx context.Context, _ string, _ *protocol.Query) (*protocol.Reply, error) {
	storage := c.conn.Storage(ctx)
	hosts := c.hosts.list()
	skew, clocks := c.clocks(hosts)
	return &protocol.Reply{Ping: &protocol.Ping{
		Version: c.cfg.Build, Coordinator: c.cfg.Name, Deployment: c.conn.Deployment(), Durability: c.conn.Durability(storage, c.cfg.SyncAlways),
		Leader: c.elected.Load(), Hosts: len(hosts), Time: c.conn.Now(), Storage: storage,
		Skew: skew, Clocks: clocks,
	}}, nil
}

func (c *coordinator) defaults(_ context.Context, tenant string, _ *protocol.Query) (*protocol.Reply, error) {
	defaults := c.cfg.Defaults.For(tenant)
	return &protocol.Reply{Defaults: &defaults}, nil
}

func (c *coordinator) get(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	j, err := c.projection.findFresh(ctx, key{Tenant: tenant, ID: q.Sandbox}, q.MinSequence)
	if err != nil {
		return nil, err
	}
	r := sandboxReply(j, false)
	c.conditions(r.Sandbox, c.hosts.states())
	return r, nil
}

// conditions adds to a handle what is not in its history.
func (c *coordinator) conditions(b *protocol.Sandbox, hosts map[string]protocol.HostState) {
	switch b.State {
	case protocol.StateDeleted, protocol.StateFailed:
		return
	}
	b.Unreachable = b.Worker != "" && hosts[b.HostID] != protocol.HostReady
}

func (c *coordinator) list(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	for i, s := range q.States {
		switch protocol.SandboxState(s) {
		case protocol.StatePending, protocol.StateReady, protocol.StateStopped, protocol.StateFailed, protocol.StateDeleting, protocol.StateDeleted:
		default:
			return nil, protocol.Invalid(fmt.Sprintf("states[%d]", i), "is not a state of a sandbox: %.40q", s)
		}
	}
	var found []*protocol.Sandbox
	for _, b := range c.projection.living(tenant) {
		if (len(q.States) == 0 || slices.Contains(q.States, string(b.State))) && selects(q, b) {
			found = append(found, b)
		}
	}
	if slices.Contains(q.States, string(protocol.StateDeleted)) {
		over, err := c.listOver(ctx, tenant, q)
		if err != nil {
			return nil, err
		}
		found = append(found, over...)
	}
	order := func(a, b *protocol.Sandbox) int { // the newest first
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	}
	page, next, err := paginate(found, order, func(b *protocol.Sandbox) string { return pageToken(b.CreatedAt, b.ID) }, encoded, q)
	if err != nil {
		return nil, err
	}
	r := &protocol.Reply{Next: next}
	hosts := c.hosts.states()
	for _, b := range page {
		handle := *b
		c.conditions(&handle, hosts)
		r.Sandboxes = append(r.Sandboxes, &handle)
	}
	return r, nil
}

// selects says whether a query's labels and name are a sandbox's.
func selects(q *protocol.Query, b *protocol.Sandbox) bool {
	return matches(b.Spec.Labels, q.Labels) && (q.Name == "" || q.Name == b.Name)
}

func matches(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// pageToken names the last row of a page by its place in the order, newest first: rows that come
// or go between two pages neither repeat nor hide others.
func pageToken(t time.Time, id string) string {
	return fmt.Sprintf("%020d.%s", uint64(1<<63-1)-uint64(t.UnixNano()), id)
}

// maxPage bounds a page, encoded, beyond its first row: an answer has to fit into one message.
const maxPage = 512 << 10

// paginate sorts rows and cuts the page that the query asks for, a shorter one where rows are large.
func paginate[T any](rows []T, order func(a, b T) int, token func(T) string, size func(T) int, q *protocol.Query) (page []T, next string, err error) {
	slices.SortFunc(rows, order)
	if q.Page != "" {
		if at, _, ok := strings.Cut(q.Page, "."); !ok || len(at) != 20 {
			return nil, "", protocol.Invalid("page", "is not a page token")
		}
		i := slices.IndexFunc(rows, func(row T) bool { return token(row) > q.Page })
		if i < 0 {
			return nil, "", nil
		}
		rows = rows[i:]
	}
	total := 0
	for i, row := range rows {
		if total += size(row); i == q.Limit || i > 0 && total > maxPage {
			return rows[:i], token(rows[i-1]), nil
		}
	}
	return rows, "", nil
}

func encoded[T any](row T) int { return len(protocol.Encode(row)) }

func (c *coordinator) listHosts(_ context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
	order := func(a, b *protocol.Host) int { return cmp.Compare(a.Worker, b.Worker) }
	token := func(h *protocol.Host) string { return fmt.Sprintf("%020d.%s", 0, h.Worker) }
	list := c.hosts.list()
	c.projection.holds(list)
	page, next, err := paginate(list, order, token, encoded, q)
	return &protocol.Reply{Hosts: page, Next: next}, err
}

// explainExecs says what the execs of a sandbox wait for that were not started.
func (c *coordinator) explainExecs(e *protocol.Explanation) {
	b := e.Sandbox
	waiting := 0
	c.projection.journal(key{Tenant: b.Tenant, ID: b.ID}).View(func(s *protocol.State, _ uint64) {
		for _, x := range s.Active() {
			if x.State != protocol.ExecStateAccepted {
				continue
			}
			if waiting++; waiting == 1 || x.AcceptedAt.Before(e.Since) {
				e.Since, e.Deadline = x.AcceptedAt, x.AcceptedAt.Add(x.Spec.StartWithin())
			}
		}
	})
	if waiting == 0 {
		return
	}
	var host *protocol.Host
	for _, h := range c.hosts.list() {
		if h.HostID == b.HostID {
			host = h
		}
	}
	e.Waiting = fmt.Sprintf("%d execs are accepted and not started: %s", waiting, execWaits(b, host))
}

// explain says what a sandbox waits for.
func (c *coordinator) explain(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	r, err := c.get(ctx, tenant, q)
	if err != nil {
		return nil, err
	}
	b := r.Sandbox
	e := &protocol.Explanation{Sandbox: b, Since: b.StateChangedAt}
	switch {
	case b.State == protocol.StatePending && (!b.Assigned || c.hosts.states()[b.HostID] == protocol.HostLost || c.hosts.forgotten(b.HostID)):
		hosts := c.hosts.list()
		_, e.Hosts = placement.Place(placement.WithoutExpiredRefusals(b, c.conn.Now()), hosts, c.images.list())
		e.Waiting, e.Deadline = "no host takes it now", c.queueDeadline(b)
		if len(hosts) == 0 {
			e.Waiting = "there is no host"
		}
		e.Position = 1 + slices.IndexFunc(c.waiting(hosts), func(w *protocol.Sandbox) bool { return w.Tenant == b.Tenant && w.ID == b.ID })
	case b.State == protocol.StatePending:
		e.Waiting, e.Since = "worker "+b.Worker+" prepares it", b.AssignedAt
		if b.Phase != "" {
			e.Waiting += ", phase " + b.Phase
		}
		if p := b.Pull; p != nil && !p.Complete {
			e.Waiting += fmt.Sprintf(": it pulls %s, %s of %s so far", p.Image, p.Done, p.Total)
		}
		e.Deadline = b.AssignedAt.Add(b.Spec.CreateTimeout.Std())
	case b.State == protocol.StateReady && b.Desired == protocol.StateStopped:
		e.Waiting = "worker " + b.Worker + " stops it"
	case b.State == protocol.StateReady && b.Error != nil:
		e.Waiting = "worker " + b.Worker + " starts it again: " + b.Error.Error()
	case b.State == protocol.StateDeleting:
		e.Waiting = "worker " + b.Worker + " removes it"
	case b.Error != nil:
		e.Waiting = "nothing: it failed: " + b.Error.Error()
	default:
		e.Waiting = "nothing"
		c.explainExecs(e)
	}
	if b.Unreachable {
		e.Waiting += "; its host does not answer"
	}
	return &protocol.Reply{Explain: e, Sequence: b.Sequence}, nil
}
