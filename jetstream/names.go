package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// SandboxName reads from the leader which sandbox holds a name or held it last. The revision is for
// [Registry.TakeName]. hold is nil if no sandbox holds the name.
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

// TakeName gives a name to a sandbox if it has not changed since it was read. Error: [ErrConflict] if it has. After any
// other error the outcome is unknown until the name is read.
func (reg *Registry) TakeName(ctx context.Context, tenant, name string, revision uint64, hold protocol.NameHold) (
	taken uint64, err error) {
	hold.Version = protocol.Version
	return reg.kv(protocol.BucketNames).put(ctx, tenant+"."+name, protocol.Encode(&hold), int64(revision))
}

// FreeName takes a name away from a sandbox. It does nothing if another sandbox holds the name.
func (reg *Registry) FreeName(ctx context.Context, tenant, name, sandbox string) error {
	hold, revision, err := reg.SandboxName(ctx, tenant, name)
	if err != nil || hold == nil || hold.Sandbox != sandbox {
		return err
	}
	b := reg.kv(protocol.BucketNames)
	// A purge leaves no delete marker, which would stay forever.
	return reg.purgeThrough(ctx, b.stream(), b.subject(tenant+"."+name), revision)
}
