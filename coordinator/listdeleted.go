package coordinator

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
)

// listDeleted reads the handles of deleted sandboxes that match a query, the newest first, until they fill a page.
func (rd *reader) listDeleted(
	ctx context.Context, tenant string, q *protocol.Query,
) (found []*protocol.Sandbox, err error) {
	if !await(ctx, rd.projection.read.deletedRead) {
		return nil, errStillReadingDeleted()
	}
	size := 0
	for after := q.Page; ; {
		rows := rd.projection.read.deletedPage(tenant, after, labelSet(q.Labels, q.Name), readsAtOnce)
		handles, err := rd.readDeletedHandles(ctx, rows)
		if err != nil {
			return nil, err
		}
		for _, b := range handles {
			if b != nil && selects(q, b) {
				found = append(found, b)
				size += encoded(b)
			}
			if len(found) > q.Limit || size > maxPage { // one row more than a page shows that there is a next page
				return found, nil
			}
		}
		if len(rows) < readsAtOnce {
			return found, nil
		}
		after = rows[len(rows)-1].token
	}
}

// readsAtOnce is how many deleted sandboxes are read concurrently.
const readsAtOnce = 32

// readDeletedHandles reads the handles of deleted sandboxes. A handle is nil if the sandbox no longer exists.
func (c *coordinator) readDeletedHandles(ctx context.Context, rows []deletedRow) ([]*protocol.Sandbox, error) {
	handles := make([]*protocol.Sandbox, len(rows))
	group, ctx := errgroup.WithContext(ctx)
	for i, row := range rows {
		group.Go(func() error {
			s, err := c.conn.Snapshot(ctx, row.key.Tenant, row.key.ID)
			if err == nil && s.Usable() && s.State.Sandbox.State == protocol.StateDeleted {
				handles[i] = &s.State.Sandbox
				return nil
			}
			if err != nil && protocol.CodeOf(err) != protocol.NotFound {
				return err
			}
			j, err := c.projection.openDeleted(ctx, row.key)
			if err != nil {
				return err
			}
			j.View(func(s *protocol.State, _ uint64) {
				if s.Exists() && !s.Sandbox.HistoryPurged {
					b := s.Sandbox
					handles[i] = &b
				}
			})
			return nil
		})
	}
	return handles, group.Wait()
}
