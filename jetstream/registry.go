package jetstream

import (
	"context"
	"strings"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// Registry holds the ids and names of sandboxes. An id is never used twice; a name belongs to one sandbox at a time.
type Registry struct{ *streams }

// ReserveSandbox reserves a sandbox id forever. If the id was already reserved, before is that reservation, which may
// be from an earlier attempt of the same request. Otherwise before is nil. After an error the outcome is unknown;
// repeating the call is safe.
func (reg *Registry) ReserveSandbox(ctx context.Context, tenant, sandbox string, r protocol.Reservation) (
	before *protocol.Reservation, err error) {
	return reg.reserve(ctx, reg.kv(protocol.BucketIDs), tenant+"."+sandbox, r)
}

func (reg *Registry) reserve(
	ctx context.Context, b kv, key string, r protocol.Reservation,
) (*protocol.Reservation, error) {
	ctx, cancel := b.streams.bound(ctx)
	defer cancel()
	r.Version = protocol.Version
	pause := backoff.New(firstPause, retryPause)
	for {
		_, err := b.put(ctx, key, protocol.Encode(&r), 0)
		if err == nil {
			return nil, nil
		}
		// Only the registry knows the id's owner: the write may have succeeded despite the error.
		value, _, getErr := b.get(ctx, key)
		if getErr == nil {
			before := &protocol.Reservation{}
			return before, protocol.Decode(value, before)
		}
		if protocol.CodeOf(getErr) != protocol.NotFound {
			return nil, getErr
		}
		if err != ErrConflict {
			return nil, err
		}
		// In a cluster, the stored entry may not be readable yet.
		if !pause.Wait(ctx) {
			return nil, protocol.Errorf(
				protocol.Unavailable,
				"",
				"reserve %s: another request is reserving it now",
				key,
			)
		}
	}
}

// SandboxReservation reads the reservation of a sandbox id. Error: not_found.
func (reg *Registry) SandboxReservation(ctx context.Context, tenant, sandbox string) (*protocol.Reservation, error) {
	value, _, err := reg.kv(protocol.BucketIDs).get(ctx, tenant+"."+sandbox)
	if err != nil {
		return nil, err
	}
	var r protocol.Reservation
	return &r, protocol.Decode(value, &r)
}

// FollowReservations calls handle for every sandbox id that was reserved after a revision of the registry, and for each
// new id, until ctx ends. caughtUp is called once, after all reservations that existed at the start were handled; it
// may be nil.
func (reg *Registry) FollowReservations(
	ctx context.Context,
	after uint64,
	handle func(tenant, sandbox string, r *protocol.Reservation, revision uint64),
	caughtUp func(),
) error {
	b := reg.kv(protocol.BucketIDs)
	return b.followFrom(ctx, ">", after, func(key string, value []byte, revision uint64) {
		tenant, sandbox, ok := cutKey(key)
		r := &protocol.Reservation{}
		if !ok || protocol.Decode(value, r) != nil {
			reg.log.Error("could not decode the reservation of a sandbox id", "key", key)
			return
		}
		handle(tenant, sandbox, r, revision)
	}, caughtUp)
}

func cutKey(key string) (tenant, sandbox string, ok bool) { return strings.Cut(key, ".") }
