package jetstream

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// kv is a key-value bucket. Each write is a plain publish that names the revision that it expects.
type kv struct {
	streams *streams
	name    string
}

func (s *streams) kv(name string) kv { return kv{s, name} }

func (b kv) stream() string            { return "KV_" + b.name }
func (b kv) subject(key string) string { return "$KV." + b.name + "." + key }
func (b kv) key(subject string) string { return strings.TrimPrefix(subject, "$KV."+b.name+".") }

// put writes a value. expected is the revision of the value to be replaced, 0 if the key must have no revision, or
// anySequence.
func (b kv) put(ctx context.Context, key string, value []byte, expected int64) (revision uint64, err error) {
	m := nats.NewMsg(b.subject(key))
	m.Data = value
	return b.streams.publish(ctx, m, expected)
}

// replace updates a key by compare-and-set. The function write gets the current value, or nil if the key has no value.
// It returns the new value, or nil to leave the key unchanged. replace returns the new revision, or 0 if nothing was
// written.
//
// The parameter revision is the revision of the caller's own last write, or 0 if unknown. If it is known, replace first
// calls write with nil and tries to replace that revision without reading the key. If the key has vanished since the
// caller's last write, another process purged the key, and replace writes nothing.
func (b kv) replace(ctx context.Context, key string, revision uint64,
	write func(old []byte) ([]byte, error)) (uint64, error) {
	ctx, cancel := b.streams.bound(ctx)
	defer cancel()
	if revision != 0 {
		value, err := write(nil)
		if value == nil || err != nil {
			return 0, err
		}
		if written, err := b.put(ctx, key, value, int64(revision)); err != ErrConflict {
			return written, err
		}
	}
	pause := backoff.New(firstPause, retryPause)
	for {
		old, current, err := b.get(ctx, key)
		if protocol.CodeOf(err) == protocol.NotFound && revision == 0 {
			err = nil
		}
		if protocol.CodeOf(err) == protocol.NotFound {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		value, err := write(old)
		if value == nil || err != nil {
			return 0, err
		}
		written, err := b.put(ctx, key, value, int64(current))
		if err != ErrConflict || !pause.Wait(ctx) {
			return written, err
		}
	}
}

// remove deletes a key if its revision is the expected one. A delete marker replaces the value.
func (b kv) remove(ctx context.Context, key string, expected int64) error {
	m := nats.NewMsg(b.subject(key))
	m.Header.Set("KV-Operation", "DEL")
	_, err := b.streams.publish(ctx, m, expected)
	return err
}

// get reads a key from the leader. A deleted key has value nil and the revision of its marker.
// Error: not_found for a key that never existed or has expired.
func (b kv) get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	m, err := b.streams.lastOnSubject(ctx, b.stream(), b.subject(key))
	if err != nil {
		return nil, 0, err
	}
	if m.deleted() {
		return nil, m.sequence, nil
	}
	return m.data, m.sequence, nil
}

func (m *stored) deleted() bool { return m.header.Get("KV-Operation") != "" }

// create writes a key that must not exist. It overwrites a delete marker. Error: [ErrConflict] if the key exists.
func (b kv) create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	ctx, cancel := b.streams.bound(ctx)
	defer cancel()
	pause := backoff.New(firstPause, retryPause)
	for {
		revision, err = b.put(ctx, key, value, 0)
		if err != ErrConflict {
			return revision, err
		}
		old, marker, err := b.get(ctx, key)
		switch {
		case old != nil:
			return 0, ErrConflict
		case err == nil:
			return b.put(ctx, key, value, int64(marker))
		case protocol.CodeOf(err) != protocol.NotFound:
			return 0, err
		}
		// The key was deleted between the two calls, or the replica that answered does not have the key yet.
		if !pause.Wait(ctx) {
			return 0, ErrConflict
		}
	}
}

// A keyHandler is called with the newest value of a key. value is nil if the key was deleted.
type keyHandler func(key string, value []byte, revision uint64)

// follow calls handle for every key and then for each change, until ctx ends. It does not report that a key has
// expired.
func (b kv) follow(ctx context.Context, handle keyHandler, caughtUp func()) error {
	return b.followKeys(ctx, ">", handle, caughtUp)
}

// followKeys is like follow, but only for the keys that match a pattern.
func (b kv) followKeys(ctx context.Context, pattern string, handle keyHandler, caughtUp func()) error {
	return b.followFrom(ctx, pattern, 0, handle, caughtUp)
}

// followFrom is like followKeys, but only for the changes after a revision.
func (b kv) followFrom(ctx context.Context, pattern string, after uint64, handle keyHandler, caughtUp func()) error {
	for {
		err := b.streams.follow(ctx, b.stream(), b.subject(pattern), after+1, func(m *stored) {
			value := m.data
			if m.deleted() {
				value = nil
			} else if value == nil {
				value = []byte{}
			}
			handle(b.key(m.subject), value, m.sequence)
		}, caughtUp)
		if !IsRewound(err) {
			return err
		}
		b.streams.log.Warn("a bucket lacks changes that were read before; reading the whole bucket again",
			"bucket", b.name)
		after = 0
	}
}
