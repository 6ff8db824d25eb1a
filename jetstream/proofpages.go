package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// Clients have no right to read the streams of writers and of the event log. A coordinator therefore tells them who
// owns the keys. It also returns the messages of a history exactly as they are stored, so a client can check the
// signatures.

// writers answers a query about keys: it names the owner of each key, and says what the deployment requires.
func (p *StoredPages) writers(ctx context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
	if len(q.Keys) > protocol.MaxKeys {
		return nil, protocol.Invalid("keys", "must be at most %d keys, got %d", protocol.MaxKeys, len(q.Keys))
	}
	rules, err := p.keys.currentRules(ctx)
	if err != nil {
		return nil, err
	}
	page := &protocol.WriterPage{Deployment: rules.Deployment, Signed: rules.Signed, Since: rules.Since,
		Writers: []protocol.RegisteredWriter{}}
	for _, key := range q.Keys {
		if err := protocol.ValidateKey(key); err != nil {
			return nil, protocol.Invalid("keys", "%s", protocol.AsError(err).Message)
		}
		o, err := p.keys.owner(ctx, key)
		if protocol.CodeOf(err) == protocol.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		page.Writers = append(page.Writers,
			protocol.RegisteredWriter{Key: key, Role: o.Role, Name: o.Name, Host: o.Host, At: o.since})
	}
	return &protocol.Reply{Writers: page}, nil
}

// messages answers a query with a page of a history's messages as they are stored. An unknown sandbox has no messages.
func (p *StoredPages) messages(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	page := &protocol.MessagePage{Messages: []protocol.StoredMessage{}}
	size := 0
	r := p.histories.historyReader(tenant, q.Sandbox, q.After, func(e *entry) (bool, error) {
		m, err := segmentMessageOf(e.message)
		if err != nil {
			return false, err
		}
		size += len(m.Data) + messageFrame
		for name, values := range m.Header {
			for _, value := range values {
				size += len(name) + len(value)
			}
		}
		if page.More = len(page.Messages) > 0 && size > storedPage; !page.More {
			page.Messages = append(page.Messages,
				protocol.StoredMessage{Record: m.Record, At: m.Time, Headers: m.Header, Data: m.Data})
		}
		return !page.More, nil
	})
	err := r.all(ctx)
	if err != nil && ctx.Err() != nil && len(page.Messages) > 0 {
		page.More = true // the time for the page is up: return the messages that were read
		return &protocol.Reply{Messages: page}, nil
	}
	if err != nil {
		return nil, err
	}
	return &protocol.Reply{Messages: page}, nil
}

// StoredMessages visits the messages of a sandbox's history as they are stored, in order. It ends at the last message
// at the time of the call, or when visit returns false. The messages include those that are not part of the history. An
// unknown sandbox has no messages.
func (t *TenantReads) StoredMessages(
	ctx context.Context, sandbox string, visit func(*protocol.StoredMessage) bool,
) error {
	q := protocol.Query{Sandbox: sandbox}
	for {
		reply, err := t.Query(ctx, protocol.EndpointMessages, q)
		if err != nil {
			return err
		}
		page := reply.Messages
		if page == nil || page.More && len(page.Messages) == 0 {
			return undecodable("the answer of %q has no messages", protocol.EndpointMessages)
		}
		for i := range page.Messages {
			m := &page.Messages[i]
			if m.Record <= q.After {
				return undecodable("the answer of %q has a message that was not asked for", protocol.EndpointMessages)
			}
			q.After = m.Record
			if !visit(m) {
				return nil
			}
		}
		if !page.More {
			return nil
		}
	}
}

// Writers asks the coordinators for the owners of keys, and for what the deployment requires. It takes at most
// [protocol.MaxKeys] keys.
func (t *TenantReads) Writers(ctx context.Context, keys []string) (*protocol.WriterPage, error) {
	reply, err := t.Query(ctx, protocol.EndpointWriters, protocol.Query{Keys: keys})
	if err == nil && reply.Writers == nil {
		err = undecodable("the answer of %q has no writers", protocol.EndpointWriters)
	}
	if err != nil {
		return nil, err
	}
	return reply.Writers, nil
}
