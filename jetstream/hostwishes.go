package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// ChangeHostWish changes what an operator wants of a host, by compare-and-set: change is called with what is wanted
// now, perhaps more than once, and an error of it ends the change. It returns what is wanted then.
func (c *Conn) ChangeHostWish(ctx context.Context, hostID string, change func(w *protocol.HostWish) error) (*protocol.HostWish, error) {
	b := c.kv(protocol.BucketHosts)
	ctx, cancel := c.bound(ctx)
	defer cancel()
	pause := backoff.New(firstPause, retryPause)
	for {
		w, revision, err := c.hostWish(ctx, b, hostID)
		if err != nil {
			return nil, err
		}
		before := w.Empty()
		if err := change(w); err != nil {
			return nil, err
		}
		w.Version, w.HostID, w.Time = protocol.Version, hostID, c.Now()
		switch {
		case before && w.Empty():
			return w, nil
		case w.Empty():
			err = b.remove(ctx, hostID, int64(revision))
		default:
			_, err = b.put(ctx, hostID, protocol.Encode(w), int64(revision))
		}
		if err != ErrConflict || !pause.Wait(ctx) {
			return w, err
		}
	}
}

// HostWish reads what an operator wants of a host.
func (c *Conn) HostWish(ctx context.Context, hostID string) (*protocol.HostWish, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	w, _, err := c.hostWish(ctx, c.kv(protocol.BucketHosts), hostID)
	return w, err
}

func (c *Conn) hostWish(ctx context.Context, b kv, hostID string) (w *protocol.HostWish, revision uint64, err error) {
	w = &protocol.HostWish{HostID: hostID}
	if err := protocol.ValidateID("host", hostID); err != nil {
		return nil, 0, err
	}
	value, revision, err := b.get(ctx, hostID)
	if protocol.CodeOf(err) == protocol.NotFound {
		return w, 0, nil
	}
	if err == nil && value != nil {
		err = protocol.Decode(value, w)
	}
	return w, revision, err
}

// FollowHostWishes hears what is wanted of each host and each change, until ctx ends; w is nil where nothing is
// wanted any more.
func (c *Conn) FollowHostWishes(ctx context.Context, handle func(hostID string, w *protocol.HostWish), caughtUp func()) error {
	return c.kv(protocol.BucketHosts).follow(ctx, func(key string, value []byte, _ uint64) {
		if value == nil {
			handle(key, nil)
			return
		}
		w := &protocol.HostWish{}
		if err := protocol.Decode(value, w); err != nil || w.HostID != key {
			c.log.Error("what is wanted of a host cannot be read", "host", key, "error", err)
			return
		}
		handle(key, w)
	}, caughtUp)
}
