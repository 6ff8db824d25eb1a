package jetstream

import (
	"context"
	"encoding/binary"
	"strconv"
	"strings"

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
	err = c.readAll(ctx, b, func(key string, value []byte) {
		if key == checkpointKey {
			return
		}
		s := &Snapshot{}
		if protocol.Decode(value, s) != nil || protocol.CheckVersion(s.Version) != nil || s.State == nil {
			from = 1
			return
		}
		visit(s.State, s.Record)
	})
	return from, err
}

// execIDPage is the value of a key in the registry of exec ids: the hashes of so many ids, in the
// order of the sandbox's history, eight bytes each.
type execIDPage struct {
	Version int    `json:"v"`
	Hashes  []byte `json:"hashes"`
}

// WriteExecIDs stores a page of the ids of a sandbox's execs, as hashes.
func (c *Conn) WriteExecIDs(ctx context.Context, tenant, sandbox string, page int, hashes []uint64) error {
	p := execIDPage{Version: protocol.Version, Hashes: make([]byte, 0, 8*len(hashes))}
	for _, h := range hashes {
		p.Hashes = binary.BigEndian.AppendUint64(p.Hashes, h)
	}
	key := tenant + "." + sandbox + "." + strconv.Itoa(page)
	_, err := c.kv(protocol.BucketExecIDs).put(ctx, key, protocol.Encode(&p), anySequence)
	return err
}

// ReadExecIDs reads every page of exec ids, in no order.
func (c *Conn) ReadExecIDs(ctx context.Context, visit func(tenant, sandbox string, page int, hashes []uint64)) error {
	return c.readAll(ctx, c.kv(protocol.BucketExecIDs), func(key string, value []byte) {
		var p execIDPage
		parts := strings.Split(key, ".")
		if len(parts) != 3 || protocol.Decode(value, &p) != nil || protocol.CheckVersion(p.Version) != nil {
			c.log.Error("a page of exec ids cannot be read", "key", key)
			return
		}
		page, err := strconv.Atoi(parts[2])
		if err != nil || page < 0 {
			c.log.Error("a page of exec ids cannot be read", "key", key)
			return
		}
		hashes := make([]uint64, 0, len(p.Hashes)/8)
		for b := p.Hashes; len(b) >= 8; b = b[8:] {
			hashes = append(hashes, binary.BigEndian.Uint64(b))
		}
		visit(parts[0], parts[1], page, hashes)
	})
}

// readAll reads every key that has a value now.
func (c *Conn) readAll(ctx context.Context, b kv, visit func(key string, value []byte)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := false
	err := b.follow(ctx, func(key string, value []byte, _ uint64) {
		if value != nil {
			visit(key, value)
		}
	}, func() { done = true; cancel() })
	if done {
		return nil
	}
	return err
}
