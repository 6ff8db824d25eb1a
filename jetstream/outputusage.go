package jetstream

import (
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// StoredOutput is a chunk of output as far as its size is concerned.
type StoredOutput struct {
	Tenant, Sandbox string
	Record          uint64 // of the output stream
	Bytes           int64  // that it takes there, about
}

// OutputRoom is how much output is kept.
type OutputRoom struct {
	First uint64 // the oldest record
	Last  uint64 // the newest
	Bytes int64
	Limit int64 // beyond it the server removes the oldest output of all sandboxes; 0: no limit
}

// storedBeside is what the server's store adds to a message.
const storedBeside = 34

// OutputSizes reads how large the chunks are that are stored from a record on, without their data, and says
// where to go on later. [IsRewound] says that what was read before is not there any more.
func (c *Conn) OutputSizes(ctx context.Context, from uint64, visit func(StoredOutput)) (next uint64, err error) {
	ctx, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	f := &follower{conn: c, stream: protocol.StreamLogs, filter: protocol.LogFilter, next: max(from, 1), headersOnly: true,
		caughtUp: func() { enough(errAllRead) },
		handle: func(m *stored) {
			if tenant, sandbox, ok := protocol.SplitLogSubject(m.subject); ok {
				visit(StoredOutput{Tenant: tenant, Sandbox: sandbox, Record: m.sequence, Bytes: storedSize(m)})
			}
		}}
	if err := f.run(ctx); context.Cause(ctx) != errAllRead {
		return f.next, err
	}
	return f.next, nil
}

var errAllRead = errors.New("all that there was is read")

// storedSize is about what a message takes that came without its data.
func storedSize(m *stored) int64 {
	size, _ := strconv.ParseInt(m.header.Get(nats.MsgSize), 10, 64) // 0: no data
	size += int64(len(m.subject)) + storedBeside
	for name, values := range m.header {
		if name == nats.MsgSize { // the server's own, for those that want no data
			continue
		}
		for _, v := range values {
			size += int64(len(name) + len(v) + len(": \r\n"))
		}
	}
	return size
}

// OutputRoom asks how much output is kept.
func (c *Conn) OutputRoom(ctx context.Context) (OutputRoom, error) {
	info, err := c.streamInfo(ctx, protocol.StreamLogs)
	if err != nil {
		return OutputRoom{}, err
	}
	return OutputRoom{First: info.State.FirstSeq, Last: info.State.LastSeq, Bytes: int64(info.State.Bytes), Limit: max(info.Config.MaxBytes, 0)}, nil
}

// PurgeOutput removes a sandbox's output up to a record. Readers of it are told where it begins now.
func (c *Conn) PurgeOutput(ctx context.Context, tenant, sandbox string, through uint64) error {
	return c.purgeThrough(ctx, protocol.StreamLogs, protocol.LogSubject(tenant, sandbox, "*"), through)
}
