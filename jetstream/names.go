package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// SandboxName reads from the leader which sandbox holds a name, or held it last. hold is nil if nothing is stored about
// the name. Callers pass revision to [Registry.TakeName].
func (reg *Registry) SandboxName(ctx context.Context, tenant, name string) (
	hold *protocol.NameHold, revision uint64, err error) {
	value, revision, err := reg.kv(protocol.BucketNames).get(ctx, tenant+"."+name)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, 0, nil
	}
	if err != nil || value == nil {
		return nil, revision, err
	}
	hold = &protocol.NameHold{}
	return hold, revision, protocol.Decode(value, hold)
}

// TakeName stores that a sandbox holds a name. Error: [ErrConflict] if the name was changed after revision was read.
// After any other error, read the name again to learn whether it was taken.
func (reg *Registry) TakeName(ctx context.Context, tenant, name string, revision uint64, hold protocol.NameHold) (
	taken uint64, err error) {
	hold.Version = protocol.Version
	return reg.kv(protocol.BucketNames).put(ctx, tenant+"."+name, protocol.Encode(&hold), int64(revision))
}

// FreeName removes a name from a sandbox. It does nothing if another sandbox holds the name.
func (reg *Registry) FreeName(ctx context.Context, tenant, name, sandbox string) error {
	hold, revision, err := reg.SandboxName(ctx, tenant, name)
	if err != nil || hold == nil || hold.Sandbox != sandbox {
		return err
	}
	b := reg.kv(protocol.BucketNames)
	// Purge instead of deleting: a delete would leave a marker forever.
	return reg.purgeThrough(ctx, b.stream(), b.subject(tenant+"."+name), revision)
}
