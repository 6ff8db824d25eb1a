package execindex

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// ReadBatch reads one message of the event log by its record.
type ReadBatch = func(ctx context.Context, tenant, sandbox string, record uint64) (*protocol.Batch, error)

// ShareReads returns a ReadBatch that reads each record only once. One message may carry the events of many execs.
func ShareReads(read ReadBatch) ReadBatch {
	type result struct {
		once  sync.Once
		batch *protocol.Batch
		err   error
	}
	var mu sync.Mutex
	results := map[uint64]*result{}
	return func(ctx context.Context, tenant, sandbox string, record uint64) (*protocol.Batch, error) {
		mu.Lock()
		r := results[record]
		if r == nil {
			r = &result{}
			results[record] = r
		}
		mu.Unlock()
		r.once.Do(func() { r.batch, r.err = read(ctx, tenant, sandbox, record) })
		return r.batch, r.err
	}
}

// Read reads an exec's events by their records and folds them. It returns nil if the log no longer has the events,
// because it was rewound.
func Read(ctx context.Context, k key, entry jetstream.ExecEntry, read ReadBatch) (*protocol.Exec, error) {
	records := []uint64{entry.Accepted}
	for _, r := range []uint64{entry.Started, entry.Ended} {
		if r > records[len(records)-1] {
			records = append(records, r)
		}
	}
	batches := make([]*protocol.Batch, len(records))
	group, ctx := errgroup.WithContext(ctx)
	for i, r := range records {
		group.Go(func() (err error) {
			batches[i], err = read(ctx, k.Tenant, k.ID, r)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		if protocol.CodeOf(err) == protocol.NotFound {
			return nil, nil
		}
		return nil, err
	}
	return foldExec(entry, batches), nil
}

// foldExec folds the events of one exec into the state of a ready sandbox.
func foldExec(entry jetstream.ExecEntry, batches []*protocol.Batch) *protocol.Exec {
	s := &protocol.State{Sandbox: protocol.Sandbox{State: protocol.StateReady, Desired: protocol.StateReady}}
	for _, b := range batches {
		for _, e := range b.Events {
			if e.Exec == nil || jetstream.HashExec(e.Exec.ID) != entry.Hash {
				continue
			}
			s.Sandbox.Sequence, e.State = e.Sequence-1, ""
			_ = s.Apply(&e) // an error is ignored: the fold of the whole history rejected the event too
		}
	}
	for _, x := range s.Execs {
		if entry.Ended != 0 && !x.State.Terminal() {
			return nil
		}
		x.Cancelling = x.Cancelling || entry.Cancelling
		return x
	}
	return nil
}
