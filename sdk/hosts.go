package sdk

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// Hosts reads and controls the hosts of the fleet. Hosts belong to the fleet, not to a tenant, so the methods of Hosts
// are for operators. The methods accept the name of a host's worker or a host id.
type Hosts struct{ client *Client }

// Hosts gives access to the calls about hosts.
func (c *Client) Hosts() *Hosts { return &Hosts{c} }

// List reads all hosts as a coordinator knows them now. The sequence ends after the first error. Errors: unavailable if
// no coordinator is running.
func (h *Hosts) List(ctx context.Context) iter.Seq2[*Host, error] {
	return pages("", func(page string) (*Page[*Host], error) {
		reply, err := h.client.query(ctx, protocol.EndpointHosts, protocol.Query{Page: page})
		if err != nil {
			return nil, err
		}
		return &Page[*Host]{Items: reply.Hosts, Next: reply.Next}, nil
	})
}

// Get reads one host. Errors: not_found; unavailable if no coordinator is running.
func (h *Hosts) Get(ctx context.Context, name string) (*Host, error) {
	if name == "" {
		return nil, protocol.Invalid("host", "must not be empty")
	}
	hosts, err := ReadAll(h.List(ctx))
	if err != nil {
		return nil, err
	}
	for _, host := range hosts {
		if host.Worker == name || host.HostID == name {
			return host, nil
		}
	}
	return nil, unknownHost("host", name, hosts)
}

// maxNamed is how many workers an error lists.
const maxNamed = 20

// unknownHost returns the error for a worker or host that is not in the fleet.
func unknownHost(field, name string, hosts []*Host) error {
	names := make([]string, len(hosts))
	for i, host := range hosts {
		names[i] = host.Worker
	}
	known := "it has none"
	if slices.Sort(names); len(names) > maxNamed {
		known = fmt.Sprintf("it has %s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	} else if len(names) > 0 {
		known = "it has " + strings.Join(names, ", ")
	}
	message := fmt.Sprintf("the fleet has no worker %.80s; %s", name, known)
	return &Error{Code: protocol.NotFound, Field: field, Message: message}
}

// Cordon makes the fleet give a host no new work, not even resumes of sandboxes that are stopped on the host. Sandboxes
// and execs that run on the host continue. The cordon survives restarts of the worker and lasts until [Hosts.Uncordon].
// If ctx ends first, the change may still be made; repeating the call is safe. Errors: not_found.
func (h *Hosts) Cordon(ctx context.Context, name string) error {
	return h.changeIntent(ctx, name, func(w *protocol.OperatorIntent) error {
		w.Cordoned = true
		return nil
	})
}

// Uncordon ends a cordon and any drain of the host. Sandboxes that the drain has ended are not restored. If ctx ends
// first, the change may still be made; repeating the call is safe. Errors: not_found.
func (h *Hosts) Uncordon(ctx context.Context, name string) error {
	return h.changeIntent(ctx, name, func(w *protocol.OperatorIntent) error {
		w.Cordoned, w.Drain = false, nil
		return nil
	})
}

// Drain cordons a host and empties it. A sandbox with on_host_loss replace is recreated on another host as soon as it
// has no active exec and another host accepts it. For all other sandboxes the drain waits until they end or are
// stopped.
//
// deadline counts from now. When it has passed, the remaining sandboxes are ended with reason drained: a sandbox with
// on_host_loss replace is recreated on another host, a sandbox with fail fails, a sandbox with wait is stopped. A
// deadline of 0 sets no limit, but keeps the deadline of a drain that has already begun.
//
// Drain returns once the drain is recorded; [Hosts.WaitDrained] waits for its end. If ctx ends first, the change may
// still be made; repeating the call is safe. Errors: invalid_argument; not_found.
func (h *Hosts) Drain(ctx context.Context, name string, deadline time.Duration) error {
	if deadline < 0 {
		return protocol.Invalid("deadline", "must not be negative, got %s", deadline)
	}
	return h.changeIntent(ctx, name, func(w *protocol.OperatorIntent) error {
		now := h.client.Now(ctx)
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

// WaitDrained waits until no sandbox runs or is being removed on a host. If report is not nil, WaitDrained calls it
// with the host at the beginning and after each change. Ending ctx ends only the wait. Errors: failed_precondition if
// the host is not being drained; not_found.
func (h *Hosts) WaitDrained(ctx context.Context, name string, report func(*Host)) error {
	var before *Host
	for {
		host, err := h.Get(ctx, name)
		if isTransient(err) && backoff.Sleep(ctx, hostPoll) {
			continue
		}
		if err != nil {
			return failed(ctx, err, "wait for the drain")
		}
		if report != nil && hasProgressed(before, host) {
			report(host)
		}
		before = host
		switch {
		case host.Drain != nil && host.Sandboxes == 0:
			return nil
		case host.Drain == nil:
			w, err := h.client.conn.OperatorIntent(ctx, host.HostID) // coordinators may not have read the drain yet
			if err == nil && w.Drain == nil {
				return protocol.Errorf(protocol.FailedPrecondition, "",
					"worker %s is not being drained: no drain was begun, or it was undone", name)
			}
		}
		if !backoff.Sleep(ctx, hostPoll) {
			return ctxEnded(ctx.Err(), "wait for the drain")
		}
	}
}

// hasProgressed reports whether a draining host changed between two reads. before is nil at the first read.
func hasProgressed(before, now *Host) bool {
	return before == nil || before.Sandboxes != now.Sandboxes || before.Execs != now.Execs || before.State != now.State
}

// lostWithin is how long one coordinator may call a host suspect that another one already calls lost.
const lostWithin = 3 * time.Second

// Forget gives up a lost host for good, and waits until the fleet has decided what happens to its sandboxes. Sandboxes
// that were being deleted become deleted. Sandboxes with on_host_loss replace are recreated on another host. All other
// sandboxes, including stopped ones, fail with reason host_forgotten. If the host returns later, its worker removes the
// remains of these sandboxes before it takes work. Ending ctx ends only the wait. Errors: failed_precondition for a
// host that is not lost; not_found.
func (h *Hosts) Forget(ctx context.Context, name string) error {
	host, err := h.Get(ctx, name)
	for began := time.Now(); err == nil && host.State == protocol.HostSuspect && time.Since(began) < lostWithin; {
		if !backoff.Sleep(ctx, hostPoll) {
			return ctxEnded(ctx.Err(), "forget the host")
		}
		host, err = h.Get(ctx, name)
	}
	if err != nil {
		return err
	}
	if host.State != protocol.HostLost {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld,
			"the host of worker %s is %s, and only a lost host can be forgotten: "+
				"stop its worker, and wait until `host list` shows the host as lost",
			host.Worker, host.State)
	}
	if _, err := h.client.conn.ChangeOperatorIntent(ctx, host.HostID, func(w *protocol.OperatorIntent) error {
		if w.Worker = host.Worker; w.Forget == nil || w.Forget.Refused != nil {
			w.Forget = &protocol.HostForget{Since: h.client.Now(ctx)}
		}
		return nil
	}); err != nil {
		return failed(ctx, err, "forget the host")
	}
	return h.waitForgotten(ctx, host.HostID)
}

func (h *Hosts) waitForgotten(ctx context.Context, hostID string) error {
	for {
		w, err := h.client.conn.OperatorIntent(ctx, hostID)
		switch {
		case isTransient(err):
		case err != nil:
			return failed(ctx, err, "forget the host")
		case w.Forget == nil || w.Forget.Done && h.isGone(ctx, hostID):
			return nil
		case w.Forget.Refused != nil:
			return w.Forget.Refused
		}
		if !backoff.Sleep(ctx, hostPoll) {
			return ctxEnded(ctx.Err(), "wait until the host is forgotten")
		}
	}
}

// isGone reports whether coordinators no longer list the host.
func (h *Hosts) isGone(ctx context.Context, hostID string) bool {
	hosts, err := ReadAll(h.List(ctx))
	return err == nil && !slices.ContainsFunc(hosts, func(host *Host) bool { return host.HostID == hostID })
}

// changeIntent changes the operator intent for a host.
func (h *Hosts) changeIntent(ctx context.Context, name string, change func(w *protocol.OperatorIntent) error) error {
	host, err := h.Get(ctx, name)
	if err != nil {
		return err
	}
	_, err = h.client.conn.ChangeOperatorIntent(ctx, host.HostID, func(w *protocol.OperatorIntent) error {
		w.Worker = host.Worker
		return change(w)
	})
	return failed(ctx, err, "store what the operator wants of the host")
}
