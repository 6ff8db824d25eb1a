package coordinator

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// The streams of events and output hold the data of every tenant. A client that may not read these streams asks a
// coordinator for pages instead. A page has only the data of the tenant that the subject of the request names.

// events answers with a page of a sandbox's history. A page that begins just after the last event is empty.
func (rd *reader) events(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	j, err := rd.projection.findFresh(ctx, key{Tenant: tenant, ID: q.Sandbox}, 0)
	if err != nil {
		return nil, err
	}
	reply := sandboxReply(j, false)
	last := reply.Sequence
	reply.Sandbox = nil
	if q.From > last+1 {
		e := protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd,
			"there is no event %d of sandbox %s: the last event is %d", q.From, q.Sandbox, last)
		e.Field = "from"
		return nil, e
	}
	release, err := rd.paging.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer release()
	page := &eventPage{limit: q.Limit, EventPage: protocol.EventPage{Events: []protocol.Event{}}}
	if page.Oldest, err = rd.conn.OldestEvent(ctx, tenant, q.Sandbox); err != nil {
		return nil, err
	}
	if page.Next = q.From; q.From == 0 {
		page.Next = page.Oldest
	}
	if page.Next < page.Oldest {
		return nil, errNotKept(page.Next, page.Oldest, q.Sandbox)
	}
	reply.History = &page.EventPage
	if page.Next > last {
		return reply, nil
	}
	if err := rd.conn.ReadEventsAt(ctx, tenant, q.Sandbox, page.Next, page.add); err != nil {
		return nil, err
	}
	if page.gap != 0 {
		return nil, errNotKept(page.Next, page.gap, q.Sandbox)
	}
	reply.Sequence = max(last, page.Next-1)
	return reply, nil
}

func errNotKept(event, oldest uint64, sandbox string) error {
	e := protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceNotKept,
		"event %d of sandbox %s has expired: the oldest event kept is %d", event, sandbox, oldest)
	e.Field = "from"
	return e
}

// eventPage is a page of events while it is filled.
type eventPage struct {
	protocol.EventPage
	limit int
	size  int    // size of the events in JSON, the larger encoding
	gap   uint64 // number of the first event after missing events; 0: no event is missing
}

// add adds a batch's events. It returns false if the page is full, or if events are missing before the batch.
func (p *eventPage) add(b *protocol.Batch) bool {
	for i := range b.Events {
		e := &b.Events[i]
		if e.Sequence < p.Next {
			continue
		}
		if e.Sequence > p.Next {
			p.gap = e.Sequence
			return false
		}
		p.size += len(protocol.EncodeAs(protocol.ContentJSON, e))
		if len(p.Events) > 0 && p.size > maxPage {
			return false
		}
		p.Events, p.Next = append(p.Events, *e), e.Sequence+1
		if len(p.Events) == p.limit {
			return false
		}
	}
	return true
}

// output answers with a page of the output of an exec, a service or the sandbox's own command.
func (rd *reader) output(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	switch q.Stream {
	case "":
		q.Stream = jetstream.Stdout
	case jetstream.Stdout, jetstream.Stderr:
	default:
		return nil, protocol.Invalid("stream", "must be stdout or stderr, got %.40q", q.Stream)
	}
	if q.Offset < 0 {
		return nil, protocol.Invalid("offset", "must not be negative, got %d", q.Offset)
	}
	if q.Exec != "" && q.Service != "" {
		return nil, protocol.Invalid("service", "is not used together with exec")
	}
	k := key{Tenant: tenant, ID: q.Sandbox}
	j, err := rd.projection.findFresh(ctx, k, 0)
	if err != nil {
		return nil, err
	}
	release, err := rd.paging.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer release()
	if q.Exec == "" {
		return rd.ownOutput(ctx, j, q)
	}
	return rd.execOutput(ctx, j, k, q)
}

// ownOutput reads the output of a service or of the sandbox's own command.
func (rd *reader) ownOutput(ctx context.Context, j *jetstream.Journal, q *protocol.Query) (*protocol.Reply, error) {
	reply := sandboxReply(j, false)
	b, log := reply.Sandbox, protocol.PrimaryLog
	if reply.Sandbox = nil; q.Service != "" {
		if _, known := b.Spec.Service(q.Service); !known {
			return nil, protocol.Invalid("service", "the sandbox has no service %.80q", q.Service)
		}
		log = protocol.ServiceLog(q.Service)
	} else if len(b.Spec.Command) == 0 {
		return nil, protocol.Invalid("exec", "must be set: the sandbox has no command of its own")
	}
	output := outputOf(j, key{Tenant: b.Tenant, ID: b.ID}, log)
	page, err := rd.conn.OutputPage(ctx, output, q.Stream, q.Offset, q.Limit, -1)
	if err != nil {
		return nil, err
	}
	page.Ended = b.State == protocol.StateFailed || b.State == protocol.StateDeleted
	reply.Output = page
	return reply, nil
}

func (rd *reader) execOutput(
	ctx context.Context, j *jetstream.Journal, k key, q *protocol.Query,
) (*protocol.Reply, error) {
	x, sequence, err := rd.pastExec(ctx, j, k, q.Exec, nil)
	if err != nil {
		return nil, err
	}
	if x == nil {
		return nil, errNoExec()
	}
	total := int64(-1)
	if x.State.Terminal() {
		if total = x.StdoutBytes; q.Stream == jetstream.Stderr {
			total = x.StderrBytes
		}
	}
	reply := &protocol.Reply{Sequence: sequence}
	if x.Inline && x.State.Terminal() {
		reply.Output, err = rd.inlineOutput(ctx, x, q, total)
	} else {
		reply.Output, err = rd.conn.OutputPage(ctx, outputOf(j, k, x.ID), q.Stream, q.Offset, q.Limit, total)
	}
	if err != nil {
		return nil, err
	}
	reply.Output.Truncated, reply.Output.Lost = x.Truncated, x.OutputError
	return reply, nil
}

// inlineOutput reads the output of an exec from the event that ended the exec.
func (rd *reader) inlineOutput(
	ctx context.Context, x *protocol.Exec, q *protocol.Query, total int64,
) (*protocol.OutputPage, error) {
	if q.Offset > total {
		e := protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd,
			"there is no byte %d of %s: the exec wrote %d bytes", q.Offset, q.Stream, total)
		e.Field = "offset"
		return nil, e
	}
	page := &protocol.OutputPage{Stream: q.Stream, Offset: q.Offset, Data: []byte{}, Next: q.Offset, End: total,
		Ended: true}
	if q.Offset == total {
		return page, nil
	}
	b, err := rd.conn.Batch(ctx, x.Tenant, x.Sandbox, x.Record)
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return nil, err
	}
	var data []byte
	if err == nil {
		for i := range b.Events {
			if d := b.Events[i].Exec; d != nil && d.ID == x.ID && d.Inline {
				if data = d.Stdout; q.Stream == jetstream.Stderr {
					data = d.Stderr
				}
			}
		}
	}
	if int64(len(data)) != total { // the event with the output is no longer kept
		page.Oldest, page.Offset, page.Next, page.Missing = total, total, total, total-q.Offset
		return page, nil
	}
	page.Data = data[q.Offset:min(q.Offset+int64(q.Limit), total)]
	page.Next += int64(len(page.Data))
	return page, nil
}
