package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Clients can make coordinators ask the leader for the use of their tenants. However many of these queries the leader
// has, it answers a claim at once.
func TestQueriesOfTenantsDelayNoClaim(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	asks, leader := d.opened(t), d.opened(t)
	serving, slow := make(chan struct{}), make(chan struct{})
	defer close(slow)
	background(t, func(ctx context.Context) error {
		return leader.ServeLeader(ctx, func(q *protocol.LeaderQuery) *protocol.LeaderReply {
			if q.Tenant != "" || q.Tenants {
				<-slow
			}
			return &protocol.LeaderReply{}
		}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the start of the leader", serving)
	nc := d.raw(t)
	refused, err := nc.SubscribeSync(nc.NewInbox())
	must(t, err)
	const flood = 1000
	for i := range flood {
		q := &protocol.LeaderQuery{Version: protocol.Version, Tenant: d.tenant}
		if i%2 == 0 {
			q.Tenant, q.Tenants = "", true
		}
		must(t, nc.PublishRequest(protocol.LeaderSubject, refused.Subject, protocol.Encode(q)))
	}
	must(t, nc.Flush())
	for range 20 {
		claim := &protocol.QuotaClaim{Tenant: d.tenant, Sandbox: "s1", Exec: "x1"}
		if _, err := asks.AskLeader(t.Context(), &protocol.LeaderQuery{Claim: claim}); err != nil {
			t.Fatalf("a claim behind %d queries is answered with %v", flood, err)
		}
	}
	m, err := refused.NextMsg(10 * time.Second)
	must(t, err)
	reply := &protocol.LeaderReply{}
	must(t, protocol.DecodeAs(protocol.ContentMsgpack, m.Data, reply))
	wantError(t, reply.Error, protocol.ResourceExhausted, protocol.ReasonTooManyReads)
}
