package jetstream

import (
	"bytes"
	"context"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// Hosts holds the table of hosts, their heartbeats and the operator intent for them.
type Hosts struct{ *streams }

// RegisterHost writes a worker's entry in the table of hosts. The entry expires after a minute unless it is written
// again. Error: already_exists if an entry with the same name belongs to another host.
func (hs *Hosts) RegisterHost(ctx context.Context, h *protocol.Host) error {
	b := hs.kv(protocol.BucketWorkers)
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
			return protocol.Errorf(
				protocol.AlreadyExists,
				protocol.ReasonHostHeld,
				"worker name %s is taken by host %s; it becomes free a minute after that host's worker stops",
				h.Worker,
				old.HostID,
			)
		}
		if _, err = b.put(ctx, h.Worker, protocol.Encode(h), expected); err != ErrConflict {
			return err
		}
	}
}

// ForgetHost removes a worker's entry.
func (hs *Hosts) ForgetHost(ctx context.Context, worker string) error {
	return hs.kv(protocol.BucketWorkers).remove(ctx, worker, anySequence)
}

// FollowHosts calls handle for every entry of the table of hosts and then for each change, until ctx ends. revision is
// the revision of the entry or of its removal. h is nil if the entry was removed.
func (hs *Hosts) FollowHosts(ctx context.Context, handle func(worker string, h *protocol.Host, revision uint64),
	caughtUp func()) error {
	return hs.kv(protocol.BucketWorkers).follow(ctx, func(key string, value []byte, revision uint64) {
		if value == nil {
			handle(key, nil, revision)
			return
		}
		h := &protocol.Host{}
		if err := protocol.Decode(value, h); err != nil {
			hs.log.Error("could not decode an entry of the table of hosts", "worker", key, "error", err)
			return
		}
		if h.Worker != key { // NATS permissions protect only the key
			hs.log.Error("ignoring an entry of the table of hosts that names another worker than its key", "worker", key,
				"named", h.Worker)
			return
		}
		handle(key, h, revision)
	}, caughtUp)
}

// HostsRevision returns the revision of the latest change of the table of hosts.
func (hs *Hosts) HostsRevision(ctx context.Context) (uint64, error) {
	return hs.lastSequence(ctx, hs.kv(protocol.BucketWorkers).stream())
}

// Beat publishes a heartbeat.
func (hs *Hosts) Beat(h *protocol.Heartbeat) error {
	h.Version = protocol.Version
	return translate(hs.nc.Publish(protocol.HeartbeatSubject(h.Worker), protocol.Encode(h)), "publish a heartbeat")
}

// receivedBeat is a heartbeat in its encoded and decoded form.
type receivedBeat struct {
	data []byte
	beat *protocol.Heartbeat
}

// mostBeats is how many workers' last heartbeats are cached.
const mostBeats = 10_000

// Heartbeats calls handle with every worker's heartbeats until stop is called. handle must not change a heartbeat.
func (hs *Hosts) Heartbeats(handle func(*protocol.Heartbeat)) (stop func(), err error) {
	last := map[string]receivedBeat{} // last heartbeat by subject: most heartbeats repeat the previous one
	sub, err := hs.nc.Subscribe(protocol.HeartbeatSubject("*"), func(m *nats.Msg) {
		if l, known := last[m.Subject]; known && bytes.Equal(l.data, m.Data) {
			handle(l.beat)
			return
		}
		h := &protocol.Heartbeat{}
		// NATS permissions protect only the name in the subject.
		if protocol.Decode(m.Data, h) != nil || m.Subject != protocol.HeartbeatSubject(h.Worker) {
			return
		}
		if len(last) >= mostBeats {
			clear(last)
		}
		last[m.Subject] = receivedBeat{m.Data, h}
		handle(h)
	})
	if err != nil {
		return nil, translate(err, "listen for heartbeats")
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed
}
