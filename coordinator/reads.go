package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// reader answers reads.
type reader struct {
	*coordinator
	names            *nameRegistry
	getting, listing *readSlots // limit reads of past execs
	paging           *readSlots // limits reads of events and output
	following        *readSlots // limits reads by clients that follow a history or output
	reporting        *readSlots // limits reads of tenants' use and checkups, which ask the leader
	unknown          *readSlots // limits reads that ask NATS whether a sandbox exists
	checking         *readSlots // limits checkups
	measuring        *readSlots // limits questions to workers
	served           []string   // the names of all endpoints, sorted
}

func newReader(c *coordinator) *reader {
	return &reader{
		coordinator: c, names: &nameRegistry{c},
		getting: newReadSlots(getsAtOnce), listing: newReadSlots(listsAtOnce), paging: newReadSlots(pagesAtOnce),
		following: newReadSlots(followersAtOnce), reporting: newReadSlots(reportsAtOnce),
		unknown: newReadSlots(unknownAtOnce), checking: newReadSlots(checkupsAtOnce),
		measuring: newReadSlots(measuresAtOnce),
	}
}

// endpoints returns the reads. Reads are answered from memory, so that no read waits for a host, except those of usage
// and processes. A read of one sandbox first checks whether the log has newer events: a caller that has just seen an
// event, in this process or another, never reads an older state. Lists may lack the newest events.
func (rd *reader) endpoints() map[string]jetstream.Endpoint {
	all := rd.byName(map[string]jetstream.Endpoint{
		protocol.EndpointPing:    uses(rd.ping),
		protocol.EndpointGet:     uses(rd.get, "sandbox", "min_sequence"),
		protocol.EndpointList:    uses(rd.list, "labels", "name", "states", "limit", "page"),
		protocol.EndpointExec:    uses(rd.getExec, "sandbox", "exec", "min_sequence"),
		protocol.EndpointExecs:   uses(rd.listExecs, "sandbox", "states", "limit", "page", "min_sequence"),
		protocol.EndpointExplain: uses(rd.explain, "sandbox"),
		protocol.EndpointHosts:   manyAtOnce(uses(rd.listHosts, "limit", "page")),

		protocol.EndpointEvents: uses(rd.events, "sandbox", "from", "limit"),
		protocol.EndpointOutput: uses(rd.output, "sandbox", "exec?", "service", "stream", "offset", "limit"),

		protocol.EndpointTenant:  uses(rd.readTenant),
		protocol.EndpointTenants: manyAtOnce(uses(rd.listTenants, "limit", "page")),

		protocol.EndpointCheckup: uses(rd.checkup),

		protocol.EndpointUsage:     uses(rd.usage, "sandbox"),
		protocol.EndpointProcesses: uses(rd.processes, "sandbox"),

		protocol.EndpointSecrets:  uses(rd.listSecrets, "limit", "page"),
		protocol.EndpointFleetKey: uses(rd.fleetKey),

		protocol.EndpointDefaults: uses(rd.defaults),
		protocol.EndpointAwaited:  uses(rd.awaited, "images"),
	})
	maps.Copy(all, rd.storedPages())
	rd.served = slices.Sorted(maps.Keys(all))
	// A query goes to one of the coordinators that serve the endpoint, so leave it to those with the key.
	if keyless(rd.coordinator) {
		delete(all, protocol.EndpointFleetKey)
	}
	for name, endpoint := range all {
		all[name] = withoutValues(endpoint)
	}
	return all
}

// withoutValues wraps an endpoint so that its answers show no sealed values.
func withoutValues(endpoint jetstream.Endpoint) jetstream.Endpoint {
	return func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		reply, err := endpoint(ctx, tenant, q)
		if reply != nil {
			reply = reply.WithoutValues()
		}
		return reply, err
	}
}

// uses wraps an endpoint that uses only the given fields of a query. It refuses queries with other fields, and
// validates the given fields. A sandbox or exec is required unless its field is given with "?" at the end. For an
// endpoint with an offset, the limit counts bytes.
func uses(endpoint jetstream.Endpoint, fields ...string) jetstream.Endpoint {
	return func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		if err := protocol.ValidateID("tenant", tenant); err != nil {
			return nil, err
		}
		for field, present := range map[string]bool{
			"sandbox": q.Sandbox != "", "exec": q.Exec != "", "min_sequence": q.MinSequence != 0,
			"labels": len(q.Labels) > 0, "states": len(q.States) > 0, "limit": q.Limit != 0, "page": q.Page != "",
			"images": len(q.Images) > 0, "from": q.From != 0, "service": q.Service != "", "stream": q.Stream != "",
			"offset": q.Offset != 0, "name": q.Name != "", "after": q.After != 0, "newest": q.Newest,
			"digest": q.Digest != "", "keys": len(q.Keys) > 0,
		} {
			if present && !slices.Contains(fields, field) && !slices.Contains(fields, field+"?") {
				return nil, protocol.Invalid(field, "is not used by this read")
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

// manyAtOnce wraps an endpoint so that queries without a limit get the longest possible pages.
func manyAtOnce(endpoint jetstream.Endpoint) jetstream.Endpoint {
	return func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		if q.Limit == 0 {
			q.Limit = maxLimit
		}
		return endpoint(ctx, tenant, q)
	}
}

func (rd *reader) ping(ctx context.Context, _ string, _ *protocol.Query) (*protocol.Reply, error) {
	storage := rd.conn.Storage(ctx)
	hosts := rd.hosts.list()
	skew, clocks := rd.clocks(hosts)
	return &protocol.Reply{Ping: &protocol.Ping{
		Version: rd.cfg.Build, Coordinator: rd.cfg.Name, Deployment: rd.conn.Deployment(),
		Durability: rd.conn.Durability(storage, rd.cfg.SyncAlways),
		Leader:     rd.elected.Load(), Hosts: len(hosts), Time: rd.conn.Now(), Storage: storage,
		Skew: skew, Clocks: clocks, Refused: rd.conn.Refused(), Endpoints: rd.served,
		FleetKey: fleetKeySaid(rd.coordinator),
	}}, nil
}

func (rd *reader) defaults(_ context.Context, tenant string, _ *protocol.Query) (*protocol.Reply, error) {
	defaults := rd.cfg.Defaults.For(tenant)
	return &protocol.Reply{Defaults: &defaults}, nil
}

func (rd *reader) get(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	j, err := rd.projection.findFresh(ctx, key{Tenant: tenant, ID: q.Sandbox}, q.MinSequence)
	if err != nil {
		return nil, err
	}
	r := sandboxReply(j, false)
	rd.conditions(r.Sandbox, rd.hosts.states())
	return r, nil
}

// conditions sets the fields of a handle that do not come from its history.
func (rd *reader) conditions(b *protocol.Sandbox, hosts map[string]protocol.HostState) {
	switch b.State {
	case protocol.StateDeleted, protocol.StateFailed:
		return
	}
	b.Unreachable = b.Worker != "" && hosts[b.HostID] != protocol.HostReady
}

func (rd *reader) list(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	for i, s := range q.States {
		switch protocol.SandboxState(s) {
		case protocol.StatePending, protocol.StateReady, protocol.StateStopped, protocol.StateFailed,
			protocol.StateDeleting, protocol.StateDeleted:
		default:
			return nil, protocol.Invalid(fmt.Sprintf("states[%d]", i), "is not a state of a sandbox: %.40q", s)
		}
	}
	var found []*protocol.Sandbox
	for _, b := range rd.projection.read.livingOf(tenant) {
		if (len(q.States) == 0 || slices.Contains(q.States, string(b.State))) && selects(q, b) {
			found = append(found, b)
		}
	}
	if slices.Contains(q.States, string(protocol.StateDeleted)) {
		over, err := rd.listDeleted(ctx, tenant, q)
		if err != nil {
			return nil, err
		}
		found = append(found, over...)
	}
	order := func(a, b *protocol.Sandbox) int { // the newest first
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	}
	page, next, err := paginate(found, order, func(b *protocol.Sandbox) string { return pageToken(b.CreatedAt, b.ID) },
		encoded, q)
	if err != nil {
		return nil, err
	}
	r := &protocol.Reply{Next: next}
	hosts := rd.hosts.states()
	for _, b := range page {
		handle := *b
		rd.conditions(&handle, hosts)
		r.Sandboxes = append(r.Sandboxes, &handle)
	}
	return r, nil
}

// selects reports whether a sandbox has a query's labels and name.
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

func (rd *reader) listHosts(_ context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
	order := func(a, b *protocol.Host) int { return cmp.Compare(a.Worker, b.Worker) }
	token := func(h *protocol.Host) string { return fmt.Sprintf("%020d.%s", 0, h.Worker) }
	list := rd.hosts.list()
	rd.projection.work.countOn(list)
	page, next, err := paginate(list, order, token, encoded, q)
	return &protocol.Reply{Hosts: page, Next: next}, err
}
