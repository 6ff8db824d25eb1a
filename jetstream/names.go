package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// SandboxName reads which sandbox has a name, or had it last, from the leader. The revision is for [Conn.TakeName].
// hold is nil where nobody has the name.
func (c *Conn) SandboxName(ctx context.Context, tenant, name string) (hold *protocol.NameHold, revision uint64, err error) {
	value, revision, err := c.kv(protocol.BucketNames).get(ctx, tenant+"."+name)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, 0, nil
	}
	if err != nil || value == nil {
		return nil, revision, err
	}
	hold = &protocol.NameHold{}
	return hold, revision, protocol.Decode(value, hold)
}

// TakeName gives a name to a sandbox, if it still stands as it was read. Error: [ErrConflict] where it does not; any
// other leaves the outcome open, and reading the name tells it.
func (c *Conn) TakeName(ctx context.Context, tenant, name string, revision uint64, hold protocol.NameHold) (taken uint64, err error) {
	hold.Version = protocol.Version
	return c.kv(protocol.BucketNames).put(ctx, tenant+"."+name, protocol.Encode(&hold), int64(revision))
}

// FreeName takes a name away from a sandbox; nothing happens where another one has it by now.
func (c *Conn) FreeName(ctx context.Context, tenant, name, sandbox string) error {
	hold, revision, err := c.SandboxName(ctx, tenant, name)
	if err != nil || hold == nil || hold.Sandbox != sandbox {
		return err
	}
	b := c.kv(protocol.BucketNames)
	return c.purgeThrough(ctx, b.stream(), b.subject(tenant+"."+name), revision) // a marker of its end would stay for ever
}
