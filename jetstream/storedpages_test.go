package jetstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// A page whose time is up has the part that was read, and says that more follows. So a reader makes progress however
// slow the server is.
func TestAPageThatTakesTooLongHasThePartThatWasRead(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	longHistory(t, c, d.tenant, "s1", 300) // more messages than one request to the server returns
	var last <-chan error
	for i := range int64(600) {
		var err error
		chunk := jetstream.Chunk{Stream: jetstream.Stdout, Offset: i, Data: []byte("a"), NextStdout: i + 1}
		last, err = c.PublishOutput(outputHost, d.tenant, "s1", "x0", chunk)
		must(t, err)
	}
	must(t, <-last)
	for endpoint, stream := range map[string]string{
		protocol.EndpointBatches: protocol.StreamEvents, protocol.EndpointChunks: protocol.StreamLogs,
	} {
		p := throughProxy(t, d)
		far := d.connTo(t, p.url())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		requests := 0
		hear := func(said []byte) []byte {
			if requests += bytes.Count(said, []byte("PUB $JS.API.DIRECT.GET."+stream)); requests == 2 {
				p.mute.Store(true) // the second answer never comes
				cancel()
			}
			return said
		}
		p.fromClient.Store(&hear)
		q := &protocol.Query{Sandbox: "s1"}
		if endpoint == protocol.EndpointChunks {
			q.Exec = "x0"
		}
		reply, err := far.PageEndpoints(hostsOfAll)[endpoint](ctx, d.tenant, q)
		must(t, err)
		switch {
		case reply.Batches != nil && len(reply.Batches.Batches) > 0 && reply.Batches.More:
		case reply.Chunks != nil && len(reply.Chunks.Chunks) > 0 && reply.Chunks.More:
		default:
			t.Errorf("%s: the page is %+v", endpoint, reply)
		}
	}
}

// The largest message of a history fits into an answer in msgpack. In JSON it does not, and the error says what to do.
func TestTheLargestMessageIsReadInMsgpack(t *testing.T) {
	t.Parallel()
	d, c := startReceiver(t)
	large := strings.Repeat("x", jetstream.MaxBatchBytes-2000)
	withReason := func(s *protocol.State, at time.Time) ([]protocol.Event, error) {
		events, err := becomeReady(s, at)
		if err == nil {
			events[0].Reason = large
		}
		return events, err
	}
	_, err := journal(c, d.tenant, "s1", "k1").Do(t.Context(), withReason)
	must(t, err)
	read := 0
	must(t, d.opened(t).TenantReads(d.tenant).AfterRecord(t.Context(), "s1", 0, func(b *protocol.Batch) bool {
		for i := range b.Events {
			read = max(read, len(b.Events[i].Reason))
		}
		return true
	}))
	if read != len(large) {
		t.Errorf("the reason has %d bytes of %d", read, len(large))
	}
	m := nats.NewMsg(protocol.APISubject(d.tenant, protocol.EndpointBatches))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentJSON)
	m.Data = []byte(`{"v":1,"sandbox":"s1"}`)
	answer, err := d.raw(t).RequestMsg(m, 10*time.Second)
	must(t, err)
	var reply protocol.Reply
	must(t, json.Unmarshal(answer.Data, &reply))
	if reply.Error == nil || reply.Error.Reason != protocol.ReasonTooLarge ||
		!strings.Contains(reply.Error.Message, "ask in msgpack") {
		t.Errorf("in JSON the answer is %.300s", answer.Data)
	}
}
