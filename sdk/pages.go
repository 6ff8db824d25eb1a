package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// Pages of events and output come from a coordinator, so a client without rights to read the streams has them too. One
// call is one answer: nothing is followed, and nothing is asked for again. Who may read the streams uses
// [Client.Events], [Exec.Logs], [Sandbox.Logs] and [Sandbox.ServiceLogs], which follow without asking.

// EventPage reads a sandbox's history from event number from on, at most limit events, 1 to 1000; 0 means 100. The page
// ends earlier where its events have more than half a MiB, but not before its first one. With from 0 it begins with
// the oldest event that is kept. last is the number of the last event that there is: the page is
// empty where from is the number after that. Errors: not_found; out_of_range with reason sequence_beyond_end
// for a greater one, and with sequence_not_kept for one that is no longer kept; resource_exhausted with
// too_many_reads.
func (c *Client) EventPage(ctx context.Context, sandbox string, from uint64, limit int) (page *protocol.EventPage, last uint64, err error) {
	reply, err := c.Query(ctx, protocol.EndpointEvents, protocol.Query{Sandbox: sandbox, From: from, Limit: limit})
	if err != nil {
		return nil, 0, err
	}
	return reply.History, reply.Sequence, nil
}

// OutputPage reads one stream of the exec's output, [Stdout] or [Stderr], from a byte offset on: at most limit bytes, 1
// to [protocol.MaxOutputPage]; 0 means that. It may have fewer at any time, and none while the exec has not printed
// more. Errors: not_found; out_of_range with reason sequence_beyond_end for an offset beyond the end;
// resource_exhausted with too_many_reads.
func (x *Exec) OutputPage(ctx context.Context, stream string, offset int64, limit int) (*protocol.OutputPage, error) {
	return x.client.outputPage(ctx, protocol.Query{Sandbox: x.info.Sandbox, Exec: x.info.ID, Stream: stream, Offset: offset, Limit: limit})
}

// OutputPage is [Exec.OutputPage] for what the sandbox's own command printed, or, where service is not empty, that
// service.
func (s *Sandbox) OutputPage(ctx context.Context, service, stream string, offset int64, limit int) (*protocol.OutputPage, error) {
	return s.client.outputPage(ctx, protocol.Query{Sandbox: s.id, Service: service, Stream: stream, Offset: offset, Limit: limit})
}

func (c *Client) outputPage(ctx context.Context, q protocol.Query) (*protocol.OutputPage, error) {
	reply, err := c.Query(ctx, protocol.EndpointOutput, q)
	if err != nil {
		return nil, err
	}
	return reply.Output, nil
}
