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
// wait, and may be lost: whoever decides tells again what stays owed. The queue is in the servers'
// memory, since the log has everything that is in it.
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

// workAckWait is after how long an item is told again that went to a worker just as it died. To be
// told twice costs a look.
const workAckWait = 4 * time.Second

// ConsumeWork hands each work item of a worker to handle, until ctx ends. Batch is nil where the
// item says only that there is something to look at. An item may come twice.
func (c *Conn) ConsumeWork(ctx context.Context, worker string, handle func(tenant, sandbox string, b *protocol.Batch)) error {
	prefix := protocol.WorkSubject(worker, "", "")
	prefix = strings.TrimSuffix(prefix, ".")
	take := func(subject string, data []byte) {
		tenant, sandbox, ok := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
		if !ok {
			return // the filter lets nothing else in
		}
		b, err := newestOf(data, tenant, sandbox)
		if err != nil {
			c.log.Error("a work item cannot be read; the log tells the rest", "subject", subject, "error", err)
		}
		handle(tenant, sandbox, b)
	}
	// Items are heard as they are published too, beside the queue that keeps them while nobody
	// listens: after a fail-over of its leader the queue was seen to deliver nothing any more.
	direct, err := c.nc.Subscribe(protocol.WorkSubject(worker, "*", "*"), func(m *nats.Msg) { take(m.Subject, m.Data) })
	if err != nil {
		return translate(err, "listen for work")
	}
	defer func() { _ = direct.Unsubscribe() }() // fails only when the connection is closed
	return c.consume(ctx, consumption{
		stream: protocol.StreamWork,
		config: jetstream.ConsumerConfig{
			Durable: "worker-" + worker, FilterSubject: protocol.WorkSubject(worker, "*", "*"),
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: workAckWait, MaxDeliver: -1,
			MaxAckPending: 1024, MemoryStorage: true, InactiveThreshold: 24 * time.Hour,
		},
		inFlight: 256,
		handle: func(_ context.Context, m jetstream.Msg, _ *jetstream.MsgMetadata) error {
			take(m.Subject(), m.Data())
			return nil
		},
	})
}

// newestOf reads the batch that a work item carries, nil where it carries none. The subject says
// which sandbox it is about.
func newestOf(data []byte, tenant, sandbox string) (*protocol.Batch, error) {
	item := &protocol.WorkItem{}
	if err := protocol.Decode(data, item); err != nil {
		return nil, err
	}
	if err := protocol.CheckVersion(item.Version); err != nil {
		return nil, err
	}
	b := item.Batch
	if b == nil {
		return nil, nil
	}
	if err := b.Check(); err != nil {
		return nil, err
	}
	if b.Tenant != tenant || b.Sandbox != sandbox {
		return nil, protocol.Invalid("batch", "is of %.80q/%.80q", b.Tenant, b.Sandbox)
	}
	b.Fill(item.Record)
	return b, nil
}
