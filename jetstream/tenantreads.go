package jetstream

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// TenantReads reads the histories and the output of one tenant through the coordinators, so that a client needs no
// right to the streams, which hold the messages of all tenants. All its methods return unavailable if no coordinator
// answers.
type TenantReads struct {
	queries *Queries
	tenant  string
}

// TenantReads returns the [TenantReads] of one tenant.
func (r *Queries) TenantReads(tenant string) *TenantReads { return &TenantReads{r, tenant} }

// While coordinators run too many reads, a query is sent again after pauses that grow from busyPause to busyMost.
const (
	busyPause = 50 * time.Millisecond
	busyMost  = time.Second
)

// Query asks an endpoint, as [Queries.Query] does. While coordinators run too many reads, Query asks again, for up to
// the connection's timeout.
func (t *TenantReads) Query(ctx context.Context, endpoint string, q protocol.Query) (*protocol.Reply, error) {
	giveUp, pause := time.Now().Add(t.queries.timeout), backoff.New(busyPause, busyMost)
	for {
		reply, err := t.queries.Query(ctx, t.tenant, endpoint, &q)
		busy := err != nil && protocol.AsError(err).Reason == protocol.ReasonTooManyReads
		if !busy || time.Now().After(giveUp) || !pause.Wait(ctx) {
			return reply, err
		}
	}
}

// AfterRecord visits the batches of a sandbox's history after a record, in order, until visit returns false. It ends at
// the last batch at the time of the call. An unknown sandbox has no batches.
func (t *TenantReads) AfterRecord(
	ctx context.Context, sandbox string, record uint64, visit func(*protocol.Batch) bool,
) error {
	return t.readBatches(ctx, protocol.Query{Sandbox: sandbox, After: record}, visit)
}

// FromEvent is like AfterRecord, but starts with the batch that has a certain event. If that event is no longer stored,
// FromEvent starts with a later batch.
func (t *TenantReads) FromEvent(
	ctx context.Context, sandbox string, event uint64, visit func(*protocol.Batch) bool,
) error {
	return t.readBatches(ctx, protocol.Query{Sandbox: sandbox, From: max(event, 1)}, visit)
}

func (t *TenantReads) readBatches(ctx context.Context, q protocol.Query, visit func(*protocol.Batch) bool) error {
	for {
		reply, err := t.Query(ctx, protocol.EndpointBatches, q)
		if err != nil {
			return err
		}
		page := reply.Batches
		if page == nil {
			return undecodable("the answer of %q has no batches", protocol.EndpointBatches)
		}
		for _, m := range page.Batches {
			b, err := protocol.DecodeBatch(m.Data, m.Record)
			if err != nil {
				return err
			}
			if b.Tenant != t.tenant || b.Sandbox != q.Sandbox || m.Record <= q.After {
				return undecodable("the answer of %q has a batch that was not asked for", protocol.EndpointBatches)
			}
			q.After, q.From = m.Record, 0
			if !visit(b) {
				return nil
			}
		}
		if !page.More {
			return nil
		}
	}
}

// Newest reads the last batch of a sandbox's history. Error: not_found.
func (t *TenantReads) Newest(ctx context.Context, sandbox string) (*protocol.Batch, error) {
	return t.first(ctx, protocol.Query{Sandbox: sandbox, Newest: true},
		protocol.Errorf(protocol.NotFound, "", "sandbox %s has no history", sandbox))
}

// AtRecord reads the batch at a record of a sandbox's history. Error: not_found.
func (t *TenantReads) AtRecord(ctx context.Context, sandbox string, record uint64) (*protocol.Batch, error) {
	missing := protocol.Errorf(protocol.NotFound, "", "record %d is not in the history of sandbox %s", record, sandbox)
	b, err := t.first(ctx, protocol.Query{Sandbox: sandbox, After: record - 1}, missing)
	if err == nil && b.Record != record {
		err = missing
	}
	return b, err
}

// first returns the first batch that a query finds. If there is none, it returns the parameter missing as the error.
func (t *TenantReads) first(ctx context.Context, q protocol.Query, missing error) (found *protocol.Batch, err error) {
	err = t.readBatches(ctx, q, func(b *protocol.Batch) bool {
		found = b
		return false
	})
	if err == nil && found == nil {
		err = missing
	}
	return found, err
}

// OutputRead is the result of [TenantReads.Output].
type OutputRead struct {
	Next uint64 // record after the last chunk
	Host string // id of the host that the sandbox is on; empty: unknown, or the sandbox has no host
}

// Output is like [OutputLog.ReadOutput], but reads through the coordinators, which know the hosts of the sandbox.
func (t *TenantReads) Output(ctx context.Context, sandbox, log string, from uint64, visit func(Chunk) error) (
	read OutputRead, err error) {
	q := protocol.Query{Sandbox: sandbox, After: max(from, 1) - 1}
	if service, ok := protocol.ServiceOfLog(log); ok {
		q.Service = service
	} else if log != protocol.PrimaryLog {
		q.Exec = log
	}
	for {
		read.Next = q.After + 1
		reply, err := t.Query(ctx, protocol.EndpointChunks, q)
		if err != nil {
			return read, err
		}
		page := reply.Chunks
		if page == nil || page.More && page.Next <= q.After {
			return read, undecodable("the answer of %q has no chunks", protocol.EndpointChunks)
		}
		read.Host = page.Host
		for _, k := range page.Chunks {
			err := visit(Chunk{Stream: k.Stream, Offset: k.Offset, Data: k.Data, At: k.At, NextStdout: k.NextStdout,
				NextStderr: k.NextStderr})
			if err != nil {
				return read, err
			}
		}
		q.After = max(q.After, page.Next)
		if !page.More {
			read.Next = q.After + 1
			return read, nil
		}
	}
}

// Now returns the store's time, as [Conn.Now] does. It measures the store's clock by a coordinator's answer, at most
// every 10 s. If no coordinator answers before ctx ends, it returns the time by the last measurement or, without a
// measurement, this machine's time.
func (t *TenantReads) Now(ctx context.Context) time.Time {
	c := t.queries.core
	if _, measure := c.clock.now(); measure {
		sent := c.sinceBoot()
		reply, err := t.queries.Query(ctx, t.tenant, protocol.EndpointPing, &protocol.Query{})
		if err == nil && reply.Ping != nil {
			c.clock.take(sent, c.sinceBoot(), reply.Ping.Time)
		}
		c.clock.measured()
	}
	now, measure := c.clock.now()
	if measure {
		c.clock.measured()
	}
	return now.UTC()
}
