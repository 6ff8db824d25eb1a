package jetstream

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// Clients have no right to the streams, which hold the messages of every tenant. A client that follows a history or
// output therefore asks a coordinator for pages of messages. Each page has messages of the client's own tenant only.

// storedPage is the most bytes of messages that a page has, unless its first message alone is larger.
const storedPage = 512 << 10

// messageFrame is the most bytes of a page that a message takes in addition to its data.
const messageFrame = 256

// StoredPages reads the messages of histories and output in pages, for [TenantReads].
type StoredPages struct {
	histories *Histories
	keys      *Writers
	output    *OutputLog
	blobs     *BlobStore
}

// HostsOf returns the hosts whose workers may publish output of a sandbox. The present host is the last. An unknown
// sandbox has no hosts.
type HostsOf func(ctx context.Context, tenant, sandbox string) ([]protocol.OutputHost, error)

// PageEndpoints returns endpoints of the read service by their names. [TenantReads] sends its queries to them. The
// endpoints do not validate ids.
func (p *StoredPages) PageEndpoints(hosts HostsOf) map[string]Endpoint {
	return map[string]Endpoint{
		protocol.EndpointBatches: p.batches, protocol.EndpointUploaded: p.uploaded,
		protocol.EndpointChunks: func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
			return p.chunks(ctx, tenant, q, hosts)
		},
		protocol.EndpointMessages: p.messages, protocol.EndpointWriters: p.writers,
	}
}

// batches answers a query with a page of a history's messages. An unknown sandbox has no messages.
func (p *StoredPages) batches(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	if q.Newest && (q.From != 0 || q.After != 0) || q.From != 0 && q.After != 0 {
		return nil, protocol.Invalid("from", "is not used together with after or newest: want one of the three")
	}
	page := &protocol.BatchPage{Batches: []protocol.StoredBatch{}}
	reply := &protocol.Reply{Batches: page}
	size := 0
	add := func(b *protocol.Batch) bool {
		data := b.Encode()
		size += len(data) + messageFrame
		if page.More = len(page.Batches) > 0 && size > storedPage; !page.More {
			page.Batches = append(page.Batches, protocol.StoredBatch{Record: b.Record, Data: data})
		}
		return !page.More
	}
	var err error
	switch {
	case q.Newest:
		var newest *protocol.Batch
		newest, err = p.histories.LastBatch(ctx, tenant, q.Sandbox)
		if protocol.CodeOf(err) == protocol.NotFound {
			return reply, nil
		}
		if err == nil {
			add(newest)
		}
	case q.From != 0:
		err = p.histories.ReadEventsAt(ctx, tenant, q.Sandbox, q.From, add)
	default:
		err = p.histories.ReadHistory(ctx, tenant, q.Sandbox, q.After, add)
	}
	if err != nil && ctx.Err() != nil && len(page.Batches) > 0 {
		page.More = true // the time for the page is up: return the messages that were read
		return reply, nil
	}
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// chunks answers a query with a page of the messages in which output is stored. An unknown exec has no messages.
func (p *StoredPages) chunks(ctx context.Context, tenant string, q *protocol.Query, hostsOf HostsOf) (
	*protocol.Reply, error) {
	log := q.Exec
	switch {
	case q.Exec != "" && q.Service != "":
		return nil, protocol.Invalid("service", "is not used together with exec")
	case q.Service != "":
		if err := protocol.ValidateID("service", q.Service); err != nil {
			return nil, err
		}
		log = protocol.ServiceLog(q.Service)
	case q.Exec == "":
		log = protocol.PrimaryLog
	}
	hosts, err := hostsOf(ctx, tenant, q.Sandbox)
	if err != nil {
		return nil, err
	}
	page := &protocol.ChunkPage{Chunks: []protocol.StoredChunk{}, Next: q.After}
	if n := len(hosts); n > 0 && hosts[n-1].Until.IsZero() {
		page.Host = hosts[n-1].ID
	}
	size := 0
	of := OutputOf{Tenant: tenant, Sandbox: q.Sandbox, Log: log, Hosts: hosts}
	err = p.output.ReadStoredOutput(ctx, of, q.After+1, func(record uint64, k Chunk) bool {
		size += len(k.Data) + messageFrame
		if page.More = len(page.Chunks) > 0 && size > storedPage; page.More {
			return false
		}
		page.Next = record
		page.Chunks = append(page.Chunks, protocol.StoredChunk{
			Stream: k.Stream, Offset: k.Offset, Data: k.Data, At: k.At, NextStdout: k.NextStdout, NextStderr: k.NextStderr,
		})
		return true
	})
	if err != nil && ctx.Err() != nil && len(page.Chunks) > 0 {
		page.More = true // the time for the page is up: return the messages that were read
		return &protocol.Reply{Chunks: page}, nil
	}
	if err != nil {
		return nil, err
	}
	return &protocol.Reply{Chunks: page}, nil
}

// uploaded answers the query whether the tenant has uploaded content with a digest.
func (p *StoredPages) uploaded(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	if err := protocol.ValidateDigest("digest", q.Digest); err != nil {
		return nil, err
	}
	stored, err := p.blobs.FreshBlob(ctx, tenant, q.Digest)
	return &protocol.Reply{Upload: &protocol.Upload{Stored: stored}}, err
}
