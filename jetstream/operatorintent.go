package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// ChangeOperatorIntent changes the operator intent for a host by compare-and-set, and returns the new intent. change
// gets the current intent and modifies it; change may be called more than once. If change fails, the stored intent does
// not change.
func (hs *Hosts) ChangeOperatorIntent(ctx context.Context, hostID string,
	change func(w *protocol.OperatorIntent) error) (*protocol.OperatorIntent, error) {
	b := hs.kv(protocol.BucketHosts)
	ctx, cancel := hs.bound(ctx)
	defer cancel()
	pause := backoff.New(firstPause, retryPause)
	for {
		w, revision, err := hs.hostWish(ctx, b, hostID)
		if err != nil {
			return nil, err
		}
		wasEmpty := w.Empty()
		if err := change(w); err != nil {
			return nil, err
		}
		w.Version, w.HostID, w.Time = protocol.Version, hostID, hs.Now()
		switch {
		case wasEmpty && w.Empty():
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

// OperatorIntent reads the operator intent for a host.
func (hs *Hosts) OperatorIntent(ctx context.Context, hostID string) (*protocol.OperatorIntent, error) {
	ctx, cancel := hs.bound(ctx)
	defer cancel()
	w, _, err := hs.hostWish(ctx, hs.kv(protocol.BucketHosts), hostID)
	return w, err
}

func (hs *Hosts) hostWish(ctx context.Context, b kv, hostID string) (
	w *protocol.OperatorIntent, revision uint64, err error) {
	w = &protocol.OperatorIntent{HostID: hostID}
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

// FollowOperatorIntents calls handle for each host's operator intent and for each change, until ctx ends. w is nil if a
// host no longer has an intent.
func (hs *Hosts) FollowOperatorIntents(ctx context.Context, handle func(hostID string, w *protocol.OperatorIntent),
	caughtUp func()) error {
	return hs.kv(protocol.BucketHosts).follow(ctx, func(key string, value []byte, _ uint64) {
		if value == nil {
			handle(key, nil)
			return
		}
		w := &protocol.OperatorIntent{}
		if err := protocol.Decode(value, w); err != nil || w.HostID != key {
			hs.log.Error("could not decode the operator intent for a host", "host", key, "error", err)
			return
		}
		handle(key, w)
	}, caughtUp)
}
