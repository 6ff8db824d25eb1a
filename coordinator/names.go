package coordinator

import (
	"context"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// A name points to a sandbox. It stands in a bucket of its own, written by compare-and-set, and is taken before the
// id is reserved: a create that is refused for its name burns no id. What keeps two living sandboxes from one name
// is that a name passes on only when the log says that the one that has it will never live again; where a create took
// the name and came no further, its id is given an end in the log first, so that it cannot come to life later.
//
// A name stays with the last sandbox that had it until another takes it, or the history of that one is purged.

// reserve takes a create's name, where it has one, and its id. It returns the reservation that was there before.
// Nothing is taken where the create is refused.
func (c *coordinator) reserve(ctx context.Context, d *jetstream.Delivery, k key, name string, mine protocol.Reservation, refused error) (before *protocol.Reservation, err error) {
	if refused == nil && !protocol.GeneratedID(k.ID) {
		refused = c.mayBeID(ctx, k)
		if refused != nil && !isNameTaken(refused) {
			return nil, refused
		}
	}
	if name == "" && refused == nil {
		c.cfg.Probe("create-before-reserve")
		return c.conn.ReserveSandbox(ctx, k.Tenant, k.ID, mine)
	}
	before, err = c.conn.SandboxReservation(ctx, k.Tenant, k.ID)
	switch {
	case err == nil && !sameReservation(before, &mine):
		return before, nil
	case err == nil: // it is this request's own, which may have come no further
		if _, err := c.projection.find(ctx, k, 0); err == nil || protocol.CodeOf(err) != protocol.NotFound {
			return before, err
		}
	case protocol.CodeOf(err) != protocol.NotFound:
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	if err := c.takeName(ctx, d, k, name); err != nil {
		return nil, err
	}
	c.cfg.Probe("create-before-reserve")
	if before == nil {
		before, err = c.conn.ReserveSandbox(ctx, k.Tenant, k.ID, mine)
	}
	if err == nil && before != nil && !sameReservation(before, &mine) { // somebody was faster with the id
		err = c.leaveName(ctx, k, name)
	}
	return before, err
}

// leaveName gives back a name that was taken for a sandbox whose id another create got. That one may have asked for
// the same name, and then it has it. As long as nobody knows, the name stays, and the next create that wants it looks.
func (c *coordinator) leaveName(ctx context.Context, k key, name string) error {
	j, err := c.projection.find(ctx, k, 0)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	its := ""
	j.View(func(s *protocol.State, _ uint64) { its = s.Sandbox.Name })
	if its == name {
		return nil
	}
	return c.conn.FreeName(ctx, k.Tenant, name, k.ID)
}

func sameReservation(a, b *protocol.Reservation) bool {
	return a.Request == b.Request && a.Fingerprint == b.Fingerprint
}

// named is what identifies a create: its spec, and its name where it has one.
func named(s *protocol.SandboxSpec, name string) any {
	if name == "" {
		return s
	}
	return &protocol.Request{Sandbox: s, Name: name}
}

// takeName gives a name to the sandbox of a create, unless a living one has it. Error: already_exists.
func (c *coordinator) takeName(ctx context.Context, d *jetstream.Delivery, k key, name string) error {
	for pause := time.Duration(0); ; pause = min(2*pause+time.Millisecond, 100*time.Millisecond) {
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		hold, revision, err := c.conn.SandboxName(ctx, k.Tenant, name)
		if err != nil {
			return err
		}
		next := protocol.NameHold{Sandbox: k.ID, Request: d.ID, Stored: d.Sequence}
		if hold != nil {
			if hold.Sandbox == k.ID {
				return nil
			}
			if err := c.mayTake(ctx, key{Tenant: k.Tenant, ID: hold.Sandbox}, name, hold.Request); err != nil {
				return err
			}
			next.Before, next.BeforeStored = hold.Sandbox, hold.Stored
		}
		if other, state, err := c.unsaid(ctx, k.Tenant, name, hold); err != nil {
			return err
		} else if other != "" && other != k.ID {
			return nameTaken("%s is the name of sandbox %s, which is %s", name, other, state)
		}
		if _, err := c.conn.SandboxReservation(ctx, k.Tenant, name); err == nil {
			return nameTaken("%s is, or was, the id of a sandbox, and an id is never used again: choose another name", name)
		} else if protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
		c.cfg.Probe("create-before-name")
		if _, err = c.conn.TakeName(ctx, k.Tenant, name, revision, next); err != jetstream.ErrConflict {
			return err
		}
	}
}

// mayTake says whether the sandbox that has a name leaves it to another one, and sees to it that this stays so.
func (c *coordinator) mayTake(ctx context.Context, holder key, name, request string) error {
	state, holds, err := c.holdsName(ctx, holder, name)
	if protocol.CodeOf(err) == protocol.NotFound {
		queued, err := c.conn.RequestQueued(ctx, holder.Tenant, protocol.VerbCreate, holder.ID)
		if err != nil {
			return err
		}
		if queued {
			return nameTaken("a create of sandbox %s with the name %s is just being decided", holder.ID, name)
		}
		r := protocol.Reservation{Request: request, Time: c.conn.Now()}
		if _, err := c.conn.ReserveSandbox(ctx, holder.Tenant, holder.ID, r); err != nil {
			return err
		}
		if err := c.abandon(ctx, holder, request, protocol.Errorf(protocol.Internal, protocol.ReasonAbandoned,
			"the name %s was reserved, and the request was not carried out", name)); err != nil {
			return err
		}
		state, holds, err = c.holdsName(ctx, holder, name) // it may have been accepted meanwhile
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if holds {
		return nameTaken("%s is the name of sandbox %s, which is %s", name, holder.ID, state)
	}
	return nil
}

// holdsName says whether a sandbox keeps its name from others, by what the log has now. Error: not_found.
func (c *coordinator) holdsName(ctx context.Context, k key, name string) (state protocol.SandboxState, holds bool, err error) {
	j, err := c.projection.find(ctx, k, 0)
	if err == nil && c.projection.get(k) != nil {
		err = j.Refresh(ctx)
	}
	if err != nil {
		return "", false, err
	}
	j.View(func(s *protocol.State, _ uint64) {
		state, holds = s.Sandbox.State, s.Sandbox.Name == name && s.Sandbox.State.HoldsName()
	})
	return state, holds, nil
}

// mayBeID refuses an id that is a living sandbox's name: requests by that name would reach another sandbox.
func (c *coordinator) mayBeID(ctx context.Context, k key) error {
	hold, _, err := c.conn.SandboxName(ctx, k.Tenant, k.ID)
	if err != nil {
		return err
	}
	holder, state, err := c.unsaid(ctx, k.Tenant, k.ID, hold)
	if err != nil {
		return err
	}
	if holder == "" && hold != nil && hold.Sandbox != k.ID {
		var holds bool
		if state, holds, err = c.holdsName(ctx, key{Tenant: k.Tenant, ID: hold.Sandbox}, k.ID); holds {
			holder = hold.Sandbox
		}
		if err != nil && protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
	}
	if holder != "" && holder != k.ID {
		return nameTaken("%s is the name of sandbox %s, which is %s, and cannot be an id", k.ID, holder, state)
	}
	return nil
}

// unsaid is the living sandbox that has a name by the log while the bucket says another one, or none: the bucket was
// lost, or either was set back.
func (c *coordinator) unsaid(ctx context.Context, tenant, name string, hold *protocol.NameHold) (id string, state protocol.SandboxState, err error) {
	id = c.projection.named(key{Tenant: tenant, ID: name})
	if id == "" || hold != nil && hold.Sandbox == id {
		return "", "", nil
	}
	state, holds, err := c.holdsName(ctx, key{Tenant: tenant, ID: id}, name)
	if protocol.CodeOf(err) == protocol.NotFound {
		err = nil
	}
	if err != nil || !holds {
		return "", "", err
	}
	return id, state, nil
}

func isNameTaken(err error) bool { return protocol.AsError(err).Reason == protocol.ReasonNameTaken }

func nameTaken(format string, args ...any) error {
	e := protocol.Errorf(protocol.AlreadyExists, protocol.ReasonNameTaken, format, args...)
	e.Field = "name"
	return e
}

// meant is the sandbox that a request is about, which says its id or its name. A request that was stored before the
// create of the sandbox which has the name now means the one that had it before: it may have been decided before
// this coordinator got it, and the answer lost.
func (c *coordinator) meant(ctx context.Context, d *jetstream.Delivery) (key, error) {
	k := key{Tenant: d.Tenant, ID: d.Sandbox}
	hold, err := c.nameHold(ctx, k)
	if err != nil || hold == nil {
		return k, err
	}
	if d.Sequence < hold.Stored {
		last, err := c.conn.LastRequest(ctx)
		switch {
		case err != nil:
			return k, err
		case last < hold.Stored: // the queue is another one than when the name was taken
		case hold.Before == "", d.Sequence < hold.BeforeStored: // or an earlier one, which is not known any more
			return k, errNoSandbox()
		default:
			return key{Tenant: k.Tenant, ID: hold.Before}, nil
		}
	}
	return key{Tenant: k.Tenant, ID: hold.Sandbox}, nil
}

// nameHold reads which sandbox has a name, nil where it is no name: ids win.
func (c *coordinator) nameHold(ctx context.Context, k key) (*protocol.NameHold, error) {
	if protocol.GeneratedID(k.ID) || protocol.ValidateID("name", k.ID) != nil || c.projection.knows(k) {
		return nil, nil
	}
	hold, _, err := c.conn.SandboxName(ctx, k.Tenant, k.ID)
	if err != nil {
		return nil, err
	}
	id, _, err := c.unsaid(ctx, k.Tenant, k.ID, hold)
	switch {
	case err != nil:
		return nil, err
	case id != "":
		return &protocol.NameHold{Sandbox: id}, nil
	case hold == nil:
		return nil, nil
	}
	if b := c.projection.get(key{Tenant: k.Tenant, ID: hold.Sandbox}); b != nil && b.Name != k.ID { // its create lost the id to another one
		return nil, nil
	}
	return hold, nil
}

// byName has the reads take a sandbox's name for its id, and adds the one that also takes prefixes.
func (c *coordinator) byName(endpoints map[string]jetstream.Endpoint) map[string]jetstream.Endpoint {
	all := make(map[string]jetstream.Endpoint, len(endpoints)+1)
	for name, read := range endpoints {
		all[name] = func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
			if q.Sandbox != "" && protocol.ValidateID("tenant", tenant) == nil {
				hold, err := c.nameHold(ctx, key{Tenant: tenant, ID: q.Sandbox})
				if err != nil {
					return nil, err
				}
				if hold != nil {
					q.Sandbox = hold.Sandbox
				}
			}
			return read(ctx, tenant, q)
		}
	}
	get := all[protocol.EndpointGet]
	all[protocol.EndpointResolve] = uses(func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
		reply, err := get(ctx, tenant, &protocol.Query{Version: q.Version, Sandbox: q.Sandbox})
		if protocol.CodeOf(err) != protocol.NotFound || !protocol.IDPrefix(q.Sandbox) {
			return reply, err
		}
		id, err := c.projection.withPrefix(tenant, q.Sandbox)
		if err != nil {
			return nil, err
		}
		return get(ctx, tenant, &protocol.Query{Version: q.Version, Sandbox: id})
	}, "sandbox")
	return all
}

// candidates is how many ids an error names at most that begin with a prefix.
const candidates = 5

// withPrefix is the generated id that begins with a prefix: of a living sandbox, or, where there is none, of one that
// is over. Errors: not_found; failed_precondition where there are several.
func (p *projection) withPrefix(tenant, prefix string) (string, error) {
	p.mu.RLock()
	found := p.livingIDs.withPrefix(tenant, prefix, candidates+1)
	if len(found) == 0 {
		found = p.overIDs.withPrefix(tenant, prefix, candidates+1)
	}
	p.mu.RUnlock()
	switch {
	case len(found) <= 1 && !p.overRead.isGiven() && (len(found) == 0 || p.isOver(key{Tenant: tenant, ID: found[0]})):
		return "", protocol.Errorf(protocol.Unavailable, "", "the coordinator is still reading what is stored of deleted sandboxes; try again")
	case len(found) == 0:
		return "", errNoSandbox()
	case len(found) == 1:
		return found[0], nil
	}
	more := ""
	if len(found) > candidates {
		found, more = found[:candidates], " and others"
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonAmbiguousPrefix, "%s is the beginning of several ids: %s%s", prefix, strings.Join(found, ", "), more)
	e.Field = "sandbox"
	return "", e
}

// freeName takes the name away from a sandbox whose history is purged.
func (c *coordinator) freeName(ctx context.Context, k key) error {
	if !c.projection.overHasName(k) {
		return nil
	}
	handles, err := c.readHandles(ctx, []overRow{{key: k}})
	if err != nil || handles[0] == nil || handles[0].Name == "" {
		return err
	}
	return c.conn.FreeName(ctx, k.Tenant, handles[0].Name, k.ID)
}

func (p *projection) overHasName(k key) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.over[k].named
}

// named is the living sandbox that has a name by what is in memory, "" where none has.
func (p *projection) named(name key) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.livingNames[name]
}

// renameLocked notes which name a sandbox holds now; after is nil where it is none of the living ones any more. p.mu is
// held for writing.
func (p *projection) renameLocked(k key, before, after *protocol.Sandbox) {
	if before != nil && before.Name != "" && p.livingNames[key{Tenant: k.Tenant, ID: before.Name}] == k.ID {
		delete(p.livingNames, key{Tenant: k.Tenant, ID: before.Name})
	}
	if after != nil && after.Name != "" && after.State.HoldsName() {
		p.livingNames[key{Tenant: k.Tenant, ID: after.Name}] = k.ID
	}
}
