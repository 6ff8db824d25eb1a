package jetstream

import (
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

// FollowHosts hears every entry of the table of hosts and each change, until ctx ends. h is nil
// for an entry that was removed.
func (c *Conn) FollowHosts(ctx context.Context, handle func(worker string, h *protocol.Host), caughtUp func()) error {
	return c.kv(protocol.BucketWorkers).follow(ctx, func(key string, value []byte, _ uint64) {
		if value == nil {
			handle(key, nil)
			return
		}
		h := &protocol.Host{}
		if err := protocol.Decode(value, h); err != nil {
			c.log.Error("an entry of the table of hosts cannot be read", "worker", key, "error", err)
			return
		}
		handle(key, h)
	}, caughtUp)
}

// Beat publishes a heartbeat.
func (c *Conn) Beat(h *protocol.Heartbeat) error {
	h.Version = protocol.Version
	return translate(c.nc.Publish(protocol.HeartbeatSubject(h.Worker), protocol.Encode(h)), "heartbeat")
}

// Heartbeats hears every worker's heartbeats until stop is called.
func (c *Conn) Heartbeats(handle func(*protocol.Heartbeat)) (stop func(), err error) {
	sub, err := c.nc.Subscribe(protocol.HeartbeatSubject("*"), func(m *nats.Msg) {
		h := &protocol.Heartbeat{}
		// The name in the subject is the one that permissions vouch for.
		if protocol.Decode(m.Data, h) == nil && m.Subject == protocol.HeartbeatSubject(h.Worker) {
			handle(h)
		}
	})
	if err != nil {
		return nil, translate(err, "listen for heartbeats")
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed
}
