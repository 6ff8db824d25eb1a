package jetstream

import (
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// Notifications sends notifications between coordinators and workers. They are not stored and may be lost.
//
// A worker can ask the server a question and name the subject of another worker's notifications as the reply subject.
// So the subject of a notification does not prove who sent it. If the deployment requires signatures, coordinators sign
// each notification that carries a batch, and workers ignore the batch of any other notification: they then read the
// log.
type Notifications struct {
	*core

	writers *Writers
}

// Notify notifies a worker of a sandbox's newest batch. It does not wait, and the notification may be lost. No batch is
// lost with the notification: the log has the batch. Coordinators notify a worker again of pending batches after a
// while, and each time the worker or the coordinator was disconnected.
func (n *Notifications) Notify(worker string, b *protocol.Batch) error {
	m := nats.NewMsg(protocol.WorkSubject(worker, b.Tenant, b.Sandbox))
	item := &protocol.WorkItem{Version: protocol.Version, Batch: b, Record: b.Record}
	if p := b.Proof; p != nil {
		item.Hash, item.Signed = p.Hash[:], p.Signature != nil
	}
	m.Data = protocol.Encode(item)
	if key := n.writers.key(); key != nil {
		hash := protocol.PayloadHash(m.Data)
		m.Header.Set(protocol.HeaderSignature,
			key.signNotification(n.writers.knownRules().Deployment, worker, b.Tenant, b.Sandbox, hash).String())
	}
	return translate(n.nc.PublishMsg(m), "notify "+worker)
}

// NotifyWithoutBatch notifies a worker that a sandbox has news, without a batch.
func (n *Notifications) NotifyWithoutBatch(worker, tenant, sandbox string) error {
	m := nats.NewMsg(protocol.WorkSubject(worker, tenant, sandbox))
	m.Data = protocol.Encode(&protocol.WorkItem{Version: protocol.Version})
	return translate(n.nc.PublishMsg(m), "notify "+worker)
}

// Work calls handle with each notification for a worker, in the order in which each coordinator sent them, until stop
// has returned. b is nil if the notification carries no batch. handle must not block. Notifications are lost while no
// worker listens. A worker's heartbeats therefore say that it has started to listen, or that it may have missed
// notifications, see [Conn.OnReconnect].
func (n *Notifications) Work(
	worker string, handle func(tenant, sandbox string, b *protocol.Batch),
) (stop func(), err error) {
	prefix := strings.TrimSuffix(protocol.WorkSubject(worker, "", ""), ".")
	var mu sync.Mutex
	stopped := false
	sub, err := n.nc.Subscribe(protocol.WorkSubject(worker, "*", "*"), func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		tenant, sandbox, _ := strings.Cut(strings.TrimPrefix(m.Subject, prefix), ".")
		var b *protocol.Batch
		if n.believes(m, worker, tenant, sandbox) {
			var err error
			if b, err = newestOf(m.Data, tenant, sandbox); err != nil {
				n.log.Error("could not decode a notification; reading its sandbox from the log",
					"subject", m.Subject, "error", err)
			}
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

// believes reports whether a coordinator sent a notification to a worker, or the deployment requires no signatures. It
// asks the server nothing. It knows the keys of the coordinators whose messages the worker has read from the log. After
// a notification with another key, the worker reads the log.
func (n *Notifications) believes(m *nats.Msg, worker, tenant, sandbox string) bool {
	rules := n.writers.knownRules()
	if !rules.Signed {
		return true
	}
	s, err := protocol.ParseSignature(m.Header.Get(protocol.HeaderSignature))
	if err != nil || n.writers.known(s.Key).Role != protocol.OwnerCoordinator {
		return false
	}
	return s.Signs(protocol.NotifiedText(rules.Deployment, worker, tenant, sandbox, protocol.PayloadHash(m.Data)))
}

// newestOf returns the batch of a notification, or nil if the notification carries no batch. The subject names the
// sandbox.
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
	b.Proof = &protocol.Proof{Notified: true, Signed: item.Signed}
	copy(b.Proof.Hash[:], item.Hash)
	return b, nil
}
