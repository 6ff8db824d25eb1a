package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// Snapshot is the fold of one sandbox's history at a record, kept so that a start need not replay
// everything. The log remains the truth: a snapshot may be lost.
type Snapshot struct {
	Version int             `json:"v"`
	Record  uint64          `json:"record"`
	State   *protocol.State `json:"state"`
}

// checkpointKey holds the record up to which every sandbox's snapshot is current.
const checkpointKey = "_checkpoint"

// WriteSnapshot stores a sandbox's snapshot.
func (c *Conn) WriteSnapshot(ctx context.Context, s *protocol.State, record uint64) error {
	data := protocol.Encode(&Snapshot{Version: protocol.Version, Record: record, State: s})
	_, err := c.kv(protocol.BucketSandboxes).put(ctx, s.Sandbox.Tenant+"."+s.Sandbox.ID, data, anySequence)
	return err
}

// WriteCheckpoint says that every event up to record is in some snapshot.
func (c *Conn) WriteCheckpoint(ctx context.Context, record uint64) error {
	_, err := c.kv(protocol.BucketSandboxes).put(ctx, checkpointKey, protocol.Encode(&Snapshot{Version: protocol.Version, Record: record}), anySequence)
	return err
}

// ReadSnapshots reads every snapshot, and returns the record that the log must be followed from.
// Snapshots that cannot be read, or do not reach back to the checkpoint, mean a full replay: 1.
func (c *Conn) ReadSnapshots(ctx context.Context, visit func(s *protocol.State, record uint64)) (from uint64, err error) {
	b := c.kv(protocol.BucketSandboxes)
	value, _, err := b.get(ctx, checkpointKey)
	if protocol.CodeOf(err) == protocol.NotFound {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	var checkpoint Snapshot
	if protocol.Decode(value, &checkpoint) != nil || protocol.CheckVersion(checkpoint.Version) != nil {
		return 1, nil
	}
	from = checkpoint.Record + 1
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := false
	err = b.follow(ctx, func(key string, value []byte, _ uint64) {
		if key == checkpointKey || value == nil {
			return
		}
		s := &Snapshot{}
		if protocol.Decode(value, s) != nil || protocol.CheckVersion(s.Version) != nil || s.State == nil {
			from = 1
			return
		}
		visit(s.State, s.Record)
	}, func() { done = true; cancel() })
	if done {
		err = nil
	}
	return from, err
}
