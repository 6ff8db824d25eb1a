package jetstream

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Tell puts a sandbox into a worker's queue: "look at it, here is its newest event". It does not
// wait, and may be lost: whoever decides tells again what stays owed.
func (c *Conn) Tell(worker string, b *protocol.Batch) error {
	m := nats.NewMsg(protocol.WorkSubject(worker, b.Tenant, b.Sandbox))
	m.Data = protocol.Encode(&protocol.WorkItem{Version: protocol.Version, Batch: b, Record: b.Record})
	return translate(c.nc.PublishMsg(m), "tell "+worker)
}

// TellAbout tells a worker to look at a sandbox, without saying what is new.
func (c *Conn) TellAbout(worker, tenant, sandbox string) error {
	m := nats.NewMsg(protocol.WorkSubject(worker, tenant, sandbox))
	m.Data = protocol.Encode(&protocol.WorkItem{Version: protocol.Version})
	return translate(c.nc.PublishMsg(m), "tell "+worker)
}

// ConsumeWork hands each work item of a worker to handle, until ctx ends. Batch is nil where the
// item says only that there is something to look at.
func (c *Conn) ConsumeWork(ctx context.Context, worker string, handle func(tenant, sandbox string, b *protocol.Batch)) error {
	prefix := protocol.WorkSubject(worker, "", "")
	prefix = strings.TrimSuffix(prefix, ".")
	return c.consume(ctx, consumption{
		stream: protocol.StreamWork,
		config: jetstream.ConsumerConfig{
			Durable: "worker-" + worker, FilterSubject: protocol.WorkSubject(worker, "*", "*"),
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: -1,
			MaxAckPending: 1024, MemoryStorage: true, InactiveThreshold: 24 * time.Hour,
		},
		inFlight: 256,
		handle: func(_ context.Context, m jetstream.Msg, _ *jetstream.MsgMetadata) error {
			tenant, sandbox, ok := strings.Cut(strings.TrimPrefix(m.Subject(), prefix), ".")
			if !ok {
				return nil // the consumer's filter lets nothing else in
			}
			item := &protocol.WorkItem{}
			if err := protocol.Decode(m.Data(), item); err != nil || item.Batch == nil {
				handle(tenant, sandbox, nil) // the log tells the rest
				return nil
			}
			item.Batch.Fill(item.Record)
			handle(tenant, sandbox, item.Batch)
			return nil
		},
	})
}
