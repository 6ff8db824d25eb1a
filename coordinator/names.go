package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// A name points to a sandbox. Names are in their own bucket, written by compare-and-set. A create takes its name before
// it reserves its id. A create that is refused because its name is taken therefore uses up no id. Two living sandboxes
// never have the same name: a create may take a name from its holder only when the log says that the holder will never
// be living again. If the holder is a create without a first event, the holder's id is ended in the log first, so that
// it cannot become a living sandbox later.
//
// A name stays with its last holder until another sandbox takes the name, or until the holder's history is purged.

// nameRegistry takes and resolves names.
type nameRegistry struct{ *coordinator }

// reserve takes a create's name, if it has one, and reserves its id. It returns the reservation that the id had before.
// If refused is not nil, it takes neither the name nor the id.
func (n *nameRegistry) reserve(
	ctx context.Context, d *jetstream.Delivery, k key, r *protocol.Request, mine protocol.Reservation, refused error,
) (before *protocol.Reservation, err error) {
	if refused == nil && !protocol.IsGeneratedID(k.ID) {
		refused = n.checkIDNotName(ctx, k)
		if refused != nil && !isNameTaken(refused) {
			return nil, refused
		}
	}
	if r.Name == "" && refused == nil {
		n.cfg.Probe("create-before-reserve")
		return n.conn.ReserveSandbox(ctx, k.Tenant, k.ID, mine)
	}
	before, err = n.conn.SandboxReservation(ctx, k.Tenant, k.ID)
	switch {
	case err == nil && !sameReservation(before, &mine):
		return before, nil
	case err == nil: // an earlier attempt of this request reserved the id, and may have stopped there
		if _, err := n.projection.find(ctx, k, 0); err == nil || protocol.CodeOf(err) != protocol.NotFound {
			return before, err
		}
	case protocol.CodeOf(err) != protocol.NotFound:
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	if err := n.takeName(ctx, d, k, r); err != nil {
		return nil, err
	}
	n.cfg.Probe("create-before-reserve")
	if before == nil {
		before, err = n.conn.ReserveSandbox(ctx, k.Tenant, k.ID, mine)
	}
	if err == nil && before != nil && !sameReservation(before, &mine) { // another create got the id first
		err = n.leaveName(ctx, k, r.Name)
	}
	return before, err
}

// leaveName is called for a create that took a name but lost its id to another create. It frees the name if the id's
// history shows that the other create asked for a different name. While the id has no history, the name stays taken.
// The next create that wants the name checks the name's holder again.
func (n *nameRegistry) leaveName(ctx context.Context, k key, name string) error {
	j, err := n.projection.find(ctx, k, 0)
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
	return n.conn.FreeName(ctx, k.Tenant, name, k.ID)
}

func sameReservation(a, b *protocol.Reservation) bool {
	return a.Request == b.Request && a.Fingerprint == b.Fingerprint
}

// named returns the identity of a create: its spec, and its name if it has one.
func named(s *protocol.SandboxSpec, name string) any {
	if name == "" {
		return s
	}
	return &protocol.Request{Sandbox: s, Name: name}
}

// takeName gives a name to the sandbox of a create. It returns already_exists if a living sandbox has the name.
func (n *nameRegistry) takeName(ctx context.Context, d *jetstream.Delivery, k key, r *protocol.Request) error {
	name, fingerprint := r.Name, protocol.Fingerprint(r.Sandbox.WithoutValues())
	for pause := time.Duration(0); ; pause = min(2*pause+time.Millisecond, 100*time.Millisecond) {
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
		hold, revision, err := n.conn.SandboxName(ctx, k.Tenant, name)
		if err != nil {
			return err
		}
		next := protocol.NameHold{Sandbox: k.ID, Request: d.ID, Fingerprint: fingerprint, Stored: d.Sequence}
		if hold != nil {
			if hold.Sandbox == k.ID {
				return nil
			}
			if err := n.releaseName(ctx, key{Tenant: k.Tenant, ID: hold.Sandbox}, name, hold.Request); err != nil {
				return err
			}
			next.Before, next.BeforeStored = hold.Sandbox, hold.Stored
		}
		if other, state, err := n.unrecordedHolder(ctx, k.Tenant, name, hold); err != nil {
			return err
		} else if other != "" && other != k.ID {
			return nameTaken("%s is the name of sandbox %s, which is %s", name, other, state)
		}
		if _, err := n.conn.SandboxReservation(ctx, k.Tenant, name); err == nil {
			e := nameTaken("%s is, or was, the id of a sandbox, and an id is never used again: choose another name", name)
			e.Reason = protocol.ReasonNameIsID // unlike a taken name, this name never becomes free
			return e
		} else if protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
		n.cfg.Probe("create-before-name")
		if _, err = n.conn.TakeName(ctx, k.Tenant, name, revision, next); err != jetstream.ErrConflict {
			return err
		}
	}
}

// releaseName checks that the holder of a name will never be living again. If the holder has no history, releaseName
// ends the holder's id, so that the id never becomes a living sandbox.
func (n *nameRegistry) releaseName(ctx context.Context, holder key, name, request string) error {
	state, holds, err := n.holdsName(ctx, holder, name)
	if protocol.CodeOf(err) == protocol.NotFound {
		queued, err := n.conn.RequestQueued(ctx, holder.Tenant, protocol.VerbCreate, holder.ID)
		if err != nil {
			return err
		}
		if queued {
			return nameTaken("a create of sandbox %s with the name %s is being decided", holder.ID, name)
		}
		r := protocol.Reservation{Request: request, Time: n.conn.Now()}
		if _, err := n.conn.ReserveSandbox(ctx, holder.Tenant, holder.ID, r); err != nil {
			return err
		}
		if err := n.abandon(ctx, holder, request, protocol.Errorf(protocol.Internal, protocol.ReasonAbandoned,
			"the name %s was reserved, but the request was not carried out", name)); err != nil {
			return err
		}
		state, holds, err = n.holdsName(ctx, holder, name) // the holder may have been accepted since the first read
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

// holdsName reads from the log whether a sandbox holds a name, and in which state the sandbox is. It returns not_found
// if the sandbox has no history.
func (n *nameRegistry) holdsName(
	ctx context.Context, k key, name string,
) (state protocol.SandboxState, holds bool, err error) {
	j, err := n.projection.find(ctx, k, 0)
	if err == nil && n.projection.read.get(k) != nil {
		err = j.Refresh(ctx)
	}
	if err != nil {
		return "", false, err
	}
	j.View(func(s *protocol.State, _ uint64) {
		state, holds = s.Sandbox.State, s.Sandbox.Name == name && s.Sandbox.State.ReservesName()
	})
	return state, holds, nil
}

// checkIDNotName refuses an id that is a living sandbox's name: requests with that name would reach the new sandbox.
func (n *nameRegistry) checkIDNotName(ctx context.Context, k key) error {
	hold, state, err := n.holder(ctx, k.Tenant, k.ID)
	if err != nil || hold == nil || hold.Sandbox == k.ID {
		return err
	}
	return nameTaken("%s is the name of sandbox %s, which is %s, and cannot be an id", k.ID, hold.Sandbox, state)
}

// holder returns which living sandbox has a name according to the log, and the state of that sandbox. It returns nil if
// no sandbox has the name.
func (n *nameRegistry) holder(
	ctx context.Context, tenant, name string,
) (*protocol.NameHold, protocol.SandboxState, error) {
	hold, _, err := n.conn.SandboxName(ctx, tenant, name)
	if err != nil {
		return nil, "", err
	}
	if id, state, err := n.unrecordedHolder(ctx, tenant, name, hold); err != nil || id != "" {
		return &protocol.NameHold{Sandbox: id}, state, err
	}
	if hold == nil {
		return nil, "", nil
	}
	state, holds, err := n.holdsName(ctx, key{Tenant: tenant, ID: hold.Sandbox}, name)
	switch {
	case protocol.CodeOf(err) == protocol.NotFound, err == nil && !holds:
		return nil, "", nil
	case err != nil:
		return nil, "", err
	}
	return hold, state, nil
}

// unrecordedHolder returns the living sandbox that holds a name according to the log, if the bucket names another
// sandbox or no sandbox. Log and bucket differ if the bucket was lost, or if one of them was rewound.
func (n *nameRegistry) unrecordedHolder(
	ctx context.Context, tenant, name string, hold *protocol.NameHold,
) (id string, state protocol.SandboxState, err error) {
	id = n.projection.read.named(tenant, name)
	if id == "" || hold != nil && hold.Sandbox == id {
		return "", "", nil
	}
	state, holds, err := n.holdsName(ctx, key{Tenant: tenant, ID: id}, name)
	if protocol.CodeOf(err) == protocol.NotFound {
		err = nil
	}
	if err != nil || !holds {
		return "", "", err
	}
	return id, state, nil
}

func isNameTaken(err error) bool { return protocol.AsError(err).Reason == protocol.ReasonNameTaken }

func nameTaken(format string, args ...any) *protocol.Error {
	e := protocol.Errorf(protocol.AlreadyExists, protocol.ReasonNameTaken, format, args...)
	e.Field = "name"
	return e
}

// meant returns the sandbox that a request names, by its id or by its name. A request that was stored before the
// present holder's create means the previous holder: another coordinator may have decided the request already, and its
// answer may have been lost.
func (n *nameRegistry) meant(ctx context.Context, d *jetstream.Delivery) (key, error) {
	k := key{Tenant: d.Tenant, ID: d.Sandbox}
	hold, err := n.nameHold(ctx, k)
	if err != nil || hold == nil {
		return k, err
	}
	if d.Sequence < hold.Stored {
		last, err := n.conn.LastRequest(ctx)
		switch {
		case err != nil:
			return k, err
		case last < hold.Stored: // the queue is newer than the name, so sequences cannot be compared
		case hold.Before == "", d.Sequence < hold.BeforeStored: // the request means a holder that is no longer known
			return k, errNoSandbox()
		default:
			return key{Tenant: k.Tenant, ID: hold.Before}, nil
		}
	}
	return key{Tenant: k.Tenant, ID: hold.Sandbox}, nil
}

// nameHold reads which sandbox holds the name k.ID. It returns nil if k.ID is the id of a sandbox, or if no sandbox has
// this name.
func (n *nameRegistry) nameHold(ctx context.Context, k key) (*protocol.NameHold, error) {
	if protocol.IsGeneratedID(k.ID) || protocol.ValidateID("name", k.ID) != nil || n.projection.read.knows(k) {
		return nil, nil
	}
	hold, _, err := n.conn.SandboxName(ctx, k.Tenant, k.ID)
	if err != nil {
		return nil, err
	}
	id, _, err := n.unrecordedHolder(ctx, k.Tenant, k.ID, hold)
	switch {
	case err != nil:
		return nil, err
	case id != "":
		return &protocol.NameHold{Sandbox: id}, nil
	case hold == nil:
		return nil, nil
	}
	// The create that took the name did not get the id for its sandbox: another create reserved that id first.
	if b := n.projection.read.get(key{Tenant: k.Tenant, ID: hold.Sandbox}); b != nil && b.Name != k.ID {
		return nil, nil
	}
	return hold, nil
}
