package jetstream

import (
	"bytes"
	"context"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// RegisterHost writes a worker's entry in the table of hosts. It lasts a minute, and is written
// again before that. An entry of the same name that belongs to another host is not overwritten:
// already_exists.
func (c *Conn) RegisterHost(ctx context.Context, h *protocol.Host) error {
	b := c.kv(protocol.BucketWorkers)
	h.Version = protocol.Version
	for {
		value, revision, err := b.get(ctx, h.Worker)
		expected := int64(revision)
		if protocol.CodeOf(err) == protocol.NotFound {
			expected = 0
		} else if err != nil {
			return err
		}
		var old protocol.Host
		if value != nil && protocol.Decode(value, &old) == nil && old.HostID != h.HostID {
			return protocol.Errorf(protocol.AlreadyExists, protocol.ReasonHostHeld,
				"worker name %s is taken by host %s; it is free a minute after the last sign of life of that host's worker", h.Worker, old.HostID)
		}
		if _, err = b.put(ctx, h.Worker, protocol.Encode(h), expected); err != ErrConflict {
			return err
		}
	}
}

// ForgetHost removes a worker's entry.
func (c *Conn) ForgetHost(ctx context.Context, worker string) error {
	return c.kv(protocol.BucketWorkers).remove(ctx, worker, anySequence)
}

// FollowHosts hears every entry of the table of hosts and each change, with its revision, until ctx ends. h is
// nil for an entry that was removed.
func (c *Conn) FollowHosts(ctx context.Context, handle func(worker string, h *protocol.Host, revision uint64), caughtUp func()) error {
	return c.kv(protocol.BucketWorkers).follow(ctx, func(key string, value []byte, revision uint64) {
		if value == nil {
			handle(key, nil, revision)
			return
		}
		h := &protocol.Host{}
		if err := protocol.Decode(value, h); err != nil {
			c.log.Error("an entry of the table of hosts cannot be read", "worker", key, "error", err)
			return
		}
		handle(key, h, revision)
	}, caughtUp)
}

// HostsRevision is the revision of the newest change of the table of hosts.
func (c *Conn) HostsRevision(ctx context.Context) (uint64, error) {
	return c.lastSequence(ctx, c.kv(protocol.BucketWorkers).stream())
}

// Beat publishes a heartbeat.
func (c *Conn) Beat(h *protocol.Heartbeat) error {
	h.Version = protocol.Version
	return translate(c.nc.Publish(protocol.HeartbeatSubject(h.Worker), protocol.Encode(h)), "heartbeat")
}

// heard is a heartbeat as it came, and what it says.
type heard struct {
	data []byte
	beat *protocol.Heartbeat
}

// mostHeard is how many workers' last heartbeats are kept.
const mostHeard = 10_000

// Heartbeats hears every worker's heartbeats until stop is called. handle must not change them.
func (c *Conn) Heartbeats(handle func(*protocol.Heartbeat)) (stop func(), err error) {
	last := map[string]heard{} // by subject: most heartbeats say what the one before said
	sub, err := c.nc.Subscribe(protocol.HeartbeatSubject("*"), func(m *nats.Msg) {
		if l, known := last[m.Subject]; known && bytes.Equal(l.data, m.Data) {
			handle(l.beat)
			return
		}
		h := &protocol.Heartbeat{}
		// The name in the subject is the one that permissions vouch for.
		if protocol.Decode(m.Data, h) != nil || m.Subject != protocol.HeartbeatSubject(h.Worker) {
			return
		}
		if len(last) >= mostHeard {
			clear(last)
		}
		last[m.Subject] = heard{m.Data, h}
		handle(h)
	})
	if err != nil {
		return nil, translate(err, "listen for heartbeats")
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed
}
