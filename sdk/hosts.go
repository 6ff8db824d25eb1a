package sdk

import (
	"context"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Hosts are the fleet's, not the tenant's: what follows here is for operators.

// Host reads what is known of one host, by the name of its worker or by its own id. Error: not_found.
func (c *Client) Host(ctx context.Context, name string) (*protocol.Host, error) {
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, h := range hosts {
		if h.Worker == name || h.HostID == name {
			return h, nil
		}
		names = append(names, h.Worker)
	}
	return nil, unknownHost("host", name, names)
}

// CordonHost has a host get no new work, resumes of what is stopped on it included. What runs there goes on. It
// holds until [Client.UncordonHost], also over a restart of its worker. Error: not_found.
func (c *Client) CordonHost(ctx context.Context, name string) error {
	return c.wishOf(ctx, name, func(w *protocol.HostWish) error {
		w.Cordoned = true
		return nil
	})
}

// UncordonHost takes a cordon back, and a drain with it. Error: not_found.
func (c *Client) UncordonHost(ctx context.Context, name string) error {
	return c.wishOf(ctx, name, func(w *protocol.HostWish) error {
		w.Cordoned, w.Drain = false, nil
		return nil
	})
}

// DrainHost cordons a host and has what runs on it go. A sandbox with on_host_loss replace is made again elsewhere
// once none of its execs is active and another host takes it. The others are waited for; what still runs so long
// from now is ended with reason drained: one with replace is made again elsewhere, one with fail fails, one with
// wait is stopped. 0 waits for ever; a repeated call with 0 leaves the deadline as it was. It does not wait for the
// host to be empty, see [Client.WaitDrained]. Errors: invalid_argument, not_found.
func (c *Client) DrainHost(ctx context.Context, name string, deadline time.Duration) error {
	if deadline < 0 {
		return protocol.Invalid("deadline", "must not be negative, got %s", deadline)
	}
	return c.wishOf(ctx, name, func(w *protocol.HostWish) error {
		now := c.Now(ctx)
		drain := protocol.HostDrain{Since: now}
		if w.Drain != nil {
			drain = *w.Drain
		}
		if deadline > 0 {
			drain.Deadline = now.Add(deadline)
		}
		w.Cordoned, w.Drain = true, &drain
		return nil
	})
}

const hostPoll = 300 * time.Millisecond

// WaitDrained waits until no sandbox runs on a host, or is being removed there. report hears of the host as it is,
// at first and with each change; it may be nil. Errors: failed_precondition where the drain was taken back;
// not_found.
func (c *Client) WaitDrained(ctx context.Context, name string, report func(*protocol.Host)) error {
	var before *protocol.Host
	for {
		h, err := c.Host(ctx, name)
		if isTransient(err) && pause(ctx, hostPoll) {
			continue
		}
		if err != nil {
			return failed(ctx, err, "wait for the drain")
		}
		if report != nil && (before == nil || before.Sandboxes != h.Sandboxes || before.Execs != h.Execs || before.State != h.State) {
			report(h)
		}
		before = h
		switch {
		case h.Drain != nil && h.Sandboxes == 0:
			return nil
		case h.Drain == nil:
			w, err := c.conn.HostWish(ctx, h.HostID) // a coordinator may not have heard of it yet
			if err == nil && w.Drain == nil {
				return protocol.Errorf(protocol.FailedPrecondition, "", "the drain of worker %s was taken back", name)
			}
		}
		if !pause(ctx, hostPoll) {
			return ctxEnded(ctx.Err(), "wait for the drain")
		}
	}
}

// ForgetHost gives up a host that does not come back, and waits until that is decided: its sandboxes that were to be
// deleted become deleted; those that are made again elsewhere, are; the others fail with reason host_forgotten, the
// stopped ones too. Only a host that is lost can be forgotten. One that comes back later removes what is left on it
// before it takes work. Errors: failed_precondition for a host that is not lost; not_found.
func (c *Client) ForgetHost(ctx context.Context, name string) error {
	h, err := c.Host(ctx, name)
	if err != nil {
		return err
	}
	if h.State != protocol.HostLost {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld,
			"the host of worker %s is %s, and only one that is lost can be forgotten: stop its worker, and wait until `host list` shows it as lost", h.Worker, h.State)
	}
	if _, err := c.conn.ChangeHostWish(ctx, h.HostID, func(w *protocol.HostWish) error {
		if w.Worker = h.Worker; w.Forget == nil || w.Forget.Refused != nil {
			w.Forget = &protocol.HostForget{Since: c.Now(ctx)}
		}
		return nil
	}); err != nil {
		return failed(ctx, err, "forget the host")
	}
	for {
		w, err := c.conn.HostWish(ctx, h.HostID)
		switch {
		case isTransient(err):
		case err != nil:
			return failed(ctx, err, "forget the host")
		case w.Forget == nil || w.Forget.Done && c.isGone(ctx, h.HostID):
			return nil
		case w.Forget.Refused != nil:
			return w.Forget.Refused
		}
		if !pause(ctx, hostPoll) {
			return ctxEnded(ctx.Err(), "wait until the host is forgotten")
		}
	}
}

// isGone says whether the host is listed no more.
func (c *Client) isGone(ctx context.Context, hostID string) bool {
	hosts, err := c.Hosts(ctx)
	return err == nil && !slices.ContainsFunc(hosts, func(h *protocol.Host) bool { return h.HostID == hostID })
}

// wishOf changes what is wanted of a host.
func (c *Client) wishOf(ctx context.Context, name string, change func(w *protocol.HostWish) error) error {
	h, err := c.Host(ctx, name)
	if err != nil {
		return err
	}
	_, err = c.conn.ChangeHostWish(ctx, h.HostID, func(w *protocol.HostWish) error {
		w.Worker = h.Worker
		return change(w)
	})
	return failed(ctx, err, "write what is wanted of the host")
}
