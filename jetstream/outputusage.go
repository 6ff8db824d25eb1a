package jetstream

import (
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// StoredOutput is the size of a stored chunk of output.
type StoredOutput struct {
	Tenant, Sandbox string
	Host            string // id of the host whose worker published the chunk; empty: a worker of an earlier version did
	Record          uint64 // record in the output's stream
	Bytes           int64  // approximate size in the store
}

// OutputRoom is the size and limit of the stored output.
type OutputRoom struct {
	First uint64 // the oldest record
	Last  uint64 // the newest record
	Bytes int64
	Limit int64 // size at which the server removes the oldest output of all sandboxes; 0: no limit
}

// storedBeside is how many bytes the server needs for each message in addition to its content.
const storedBeside = 34

// OutputSizes reads the sizes of the chunks from a record on, without their data, and returns the record to continue
// from. It fails if the stream no longer has the messages that were read before; [IsRewound] recognizes this error.
func (o *OutputLog) OutputSizes(ctx context.Context, from uint64, visit func(StoredOutput)) (next uint64, err error) {
	ctx, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	f := &follower{
		streams:     o.streams,
		stream:      protocol.StreamLogs,
		filter:      protocol.OutputAll,
		next:        max(from, 1),
		headersOnly: true,
		caughtUp:    func() { enough(errAllRead) },
		handle: func(m *stored) {
			if host, tenant, sandbox, _, ok := protocol.SplitOutputSubject(m.subject); ok {
				visit(StoredOutput{Tenant: tenant, Sandbox: sandbox, Host: host, Record: m.sequence, Bytes: storedSize(m)})
			}
		},
	}
	if err := f.run(ctx); context.Cause(ctx) != errAllRead {
		return f.next, err
	}
	return f.next, nil
}

var errAllRead = errors.New("everything stored at the start has been read")

// storedSize returns the approximate stored size of a message that was read without its data.
func storedSize(m *stored) int64 {
	size, _ := strconv.ParseInt(m.header.Get(nats.MsgSize), 10, 64) // without the header, the message has no data
	size += int64(len(m.subject)) + storedBeside
	for name, values := range m.header {
		if name == nats.MsgSize { // the server adds this header for consumers that get only headers
			continue
		}
		for _, v := range values {
			size += int64(len(name) + len(v) + len(": \r\n"))
		}
	}
	return size
}

// OutputRoom reads the size and limit of the stored output.
func (o *OutputLog) OutputRoom(ctx context.Context) (OutputRoom, error) {
	info, err := o.streamInfo(ctx, protocol.StreamLogs)
	if err != nil {
		return OutputRoom{}, err
	}
	return OutputRoom{
		First: info.State.FirstSeq, Last: info.State.LastSeq,
		Bytes: int64(info.State.Bytes), Limit: max(info.Config.MaxBytes, 0),
	}, nil
}

// PurgeOutput removes a sandbox's output up to a record. Readers learn from their next page where the output begins
// now.
func (o *OutputLog) PurgeOutput(ctx context.Context, tenant, sandbox string, through uint64) error {
	for _, subject := range outputSubjects(tenant, sandbox) {
		if err := o.purgeThrough(ctx, protocol.StreamLogs, subject, through); err != nil {
			return err
		}
	}
	return nil
}

// PurgeOutputOf removes what the worker of one host published as a sandbox's output, up to a record.
func (o *OutputLog) PurgeOutputOf(ctx context.Context, host, tenant, sandbox string, through uint64) error {
	return o.purgeThrough(ctx, protocol.StreamLogs, protocol.OutputSubject(host, tenant, sandbox, "*"), through)
}

// outputSubjects returns the subjects of all output that any worker published for a sandbox.
func outputSubjects(tenant, sandbox string) []string {
	return []string{protocol.OutputSubject("*", tenant, sandbox, "*"), protocol.LogSubject(tenant, sandbox, "*")}
}
