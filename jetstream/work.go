package jetstream

import (
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// Tell says to a worker: "look at this sandbox, here is its newest event". It does not wait, and
// may be lost: the log has everything that is in it, and the coordinator tells again what stays
// owed, when the worker or the teller was away, and after a while.
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

// Work hands each work item of a worker to handle, in the order of each teller, until stop has
// returned. Batch is nil where the item says only that there is something to look at. Items are lost
// while nobody listens. A worker that begins to listen, or that hears from [Conn.OnReconnect] that it
// may have missed something, says so in its heartbeats. handle must not block.
func (c *Conn) Work(worker string, handle func(tenant, sandbox string, b *protocol.Batch)) (stop func(), err error) {
	prefix := strings.TrimSuffix(protocol.WorkSubject(worker, "", ""), ".")
	var mu sync.Mutex
	stopped := false
	sub, err := c.nc.Subscribe(protocol.WorkSubject(worker, "*", "*"), func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		tenant, sandbox, _ := strings.Cut(strings.TrimPrefix(m.Subject, prefix), ".")
		b, err := newestOf(m.Data, tenant, sandbox)
		if err != nil {
			c.log.Error("a work item cannot be read; the log tells the rest", "subject", m.Subject, "error", err)
		}
		handle(tenant, sandbox, b)
	})
	if err != nil {
		return nil, translate(err, "listen for work")
	}
	if err := sub.SetPendingLimits(1<<20, 256<<20); err != nil {
		return nil, translate(err, "listen for work")
	}
	return func() {
		_ = sub.Unsubscribe() // fails only when the connection is closed
		mu.Lock()
		defer mu.Unlock()
		stopped = true
	}, nil
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
		return nil, protocol.Invalid("batch", "is for tenant %.80q and sandbox %.80q", b.Tenant, b.Sandbox)
	}
	b.Fill(item.Record)
	return b, nil
}
