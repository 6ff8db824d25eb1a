package sdk

import (
	"context"
	"slices"

	"github.com/boxfleet/boxfleet/evidence"
	"github.com/boxfleet/boxfleet/protocol"
)

// Evidence reads the stored messages of the sandbox's history, with their signatures and the owners of the keys.
// [evidence.Check] checks what these messages prove. The evidence holds the whole history in memory. It includes
// messages that are not part of the history because their writer is not proven.
//
// Errors: not_found if the sandbox never existed or its history has expired; unavailable if no coordinator is running.
func (s *Sandbox) Evidence(ctx context.Context) (*evidence.Evidence, error) {
	id, err := s.historyID(ctx)
	if err != nil {
		return nil, failed(ctx, err, "read the evidence of "+s.ID())
	}
	e := &evidence.Evidence{Tenant: s.client.tenant, Sandbox: id}
	err = s.client.reads.StoredMessages(ctx, id, func(m *protocol.StoredMessage) bool {
		e.Messages = append(e.Messages, *m)
		return true
	})
	if err == nil && len(e.Messages) == 0 {
		err = protocol.Errorf(protocol.NotFound, "",
			"sandbox %s has no history: the id is unknown, or the history has expired", id)
	}
	if err == nil {
		err = s.client.addWriters(ctx, e)
	}
	if err != nil {
		return nil, failed(ctx, err, "read the evidence of "+id)
	}
	e.Taken = s.client.Now(ctx)
	e.Seal()
	return e, nil
}

// addWriters adds to the evidence the owners of the keys of its messages.
func (c *Client) addWriters(ctx context.Context, e *evidence.Evidence) error {
	keys := evidence.Keys(e.Messages)
	e.Writers.Writers = []protocol.RegisteredWriter{}
	for first := true; first || len(keys) > 0; first = false {
		n := min(len(keys), protocol.MaxKeys)
		page, err := c.reads.Writers(ctx, keys[:n])
		if err != nil {
			return err
		}
		keys = keys[n:]
		page.Writers = slices.Concat(e.Writers.Writers, page.Writers)
		e.Writers = *page
	}
	return nil
}
