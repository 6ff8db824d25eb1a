package jetstream

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// These functions write and read pages of exec ids as an earlier version of Boxfleet did.

// WriteExecIDs stores the hashes of the ids of a sandbox's execs in a page and returns the page's new revision.
// revision is the revision of the stored page. A revision of 0 means that it is unknown. WriteExecIDs never removes ids
// that another process has stored: if a page lost an id, an exec with this id could be accepted a second time.
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
			c.log.Error("could not decode a page of exec ids; replacing it", "key", key)
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
		written = 0 // the page also has ids of another process
	}
	return written, err
}

// union returns the stored hashes, followed by those hashes of the parameter more that are not stored.
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
			c.log.Error("could not decode a page of exec ids", "key", key)
			return
		}
		page, err := strconv.Atoi(parts[2])
		if err != nil || page < 0 {
			c.log.Error("could not decode a page of exec ids", "key", key)
			return
		}
		visit(parts[0], parts[1], page, hashes)
	})
}
