package jetstream

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Pages of exec ids as an older version wrote and read them.

// WriteExecIDs stores a page of the ids of a sandbox's execs, as hashes, over that of a revision, 0 if unknown, and
// returns the new revision, 0 if unknown. Ids that any process has stored stay: a page without one would let its id be
// accepted a second time.
func (c *Conn) WriteExecIDs(
	ctx context.Context,
	tenant, sandbox string,
	page int,
	hashes []uint64,
	revision uint64,
) (uint64, error) {
	key, others := tenant+"."+sandbox+"."+strconv.Itoa(page), false
	written, err := c.kv(protocol.BucketExecIDs).replace(ctx, key, revision, func(old []byte) ([]byte, error) {
		stored, err := decodeExecIDs(old)
		if err != nil {
			c.log.Error("a page of exec ids cannot be read, and is written again", "key", key)
			stored = nil
		}
		all := union(stored, hashes)
		others = len(all) > len(hashes)
		if old != nil && len(all) == len(stored) {
			return nil, nil
		}
		p := execIDPage{Version: protocol.Version, Hashes: make([]byte, 0, 8*len(all))}
		for _, h := range all {
			p.Hashes = binary.BigEndian.AppendUint64(p.Hashes, h)
		}
		return protocol.Encode(&p), nil
	})
	if others {
		written = 0 // what is there is not only the caller's
	}
	return written, err
}

// union returns the stored hashes followed by new ones of more.
func union(stored, more []uint64) []uint64 {
	if len(stored) <= len(more) && slices.Equal(stored, more[:len(stored)]) {
		return more
	}
	known := make(map[uint64]bool, len(stored))
	for _, h := range stored {
		known[h] = true
	}
	all := slices.Clone(stored)
	for _, h := range more {
		if !known[h] {
			all = append(all, h)
		}
	}
	return all
}

func decodeExecIDs(value []byte) ([]uint64, error) {
	if value == nil {
		return nil, nil
	}
	var p execIDPage
	if err := protocol.Decode(value, &p); err != nil {
		return nil, err
	}
	if err := protocol.CheckVersion(p.Version); err != nil {
		return nil, err
	}
	hashes := make([]uint64, 0, len(p.Hashes)/8)
	for b := p.Hashes; len(b) >= 8; b = b[8:] {
		hashes = append(hashes, binary.BigEndian.Uint64(b))
	}
	return hashes, nil
}

// ReadExecIDs reads every page of exec ids, in no particular order.
func (c *Conn) ReadExecIDs(ctx context.Context, visit func(tenant, sandbox string, page int, hashes []uint64)) error {
	return c.readAll(ctx, c.kv(protocol.BucketExecIDs), func(key string, value []byte) {
		parts := strings.Split(key, ".")
		hashes, err := decodeExecIDs(value)
		if len(parts) != 3 || err != nil {
			c.log.Error("could not read a page of exec ids", "key", key)
			return
		}
		page, err := strconv.Atoi(parts[2])
		if err != nil || page < 0 {
			c.log.Error("could not read a page of exec ids", "key", key)
			return
		}
		visit(parts[0], parts[1], page, hashes)
	})
}
