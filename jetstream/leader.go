package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// A leader answers at most leaderClaims claims and leaderReports other queries at a time. Clients cause the other
// queries when they ask for their tenant's use. Further claims wait in the leader's NATS client. Further queries of the
// other kinds are refused, because they would delay the claims behind them.
const (
	leaderClaims  = 256
	leaderReports = 64
)

// askLeader is how long a coordinator waits for the leader's answer.
const askLeader = time.Second

// ServeLeader answers the queries of other coordinators until ctx ends. The function answer returns nil if this
// coordinator must not answer, because it does not hold the scheduler's lock. ServeLeader calls serving when it has
// begun to receive queries.
func (n *Notifications) ServeLeader(
	ctx context.Context, answer func(*protocol.LeaderQuery) *protocol.LeaderReply, serving func(),
) error {
	claims, reports := make(chan struct{}, leaderClaims), make(chan struct{}, leaderReports)
	sub, err := n.nc.Subscribe(protocol.LeaderSubject, func(m *nats.Msg) {
		q := &protocol.LeaderQuery{}
		err := protocol.DecodeAs(protocol.ContentMsgpack, m.Data, q)
		if err == nil {
			err = protocol.CheckVersion(q.Version)
		}
		slots := claims
		if q.Tenant != "" || q.Tenants {
			slots = reports
		}
		if err == nil && slots == reports && len(reports) == leaderReports { // only this function takes slots
			err = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
				"the leader already answers %d queries about the use of tenants: try again later", leaderReports)
		}
		if err != nil {
			n.sendLeadersReply(m, &protocol.LeaderReply{Error: protocol.AsError(err)})
			return
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			n.sendLeadersReply(m, answer(q))
		}()
	})
	if err != nil {
		return translate(err, "answer other coordinators")
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	if err := n.Flush(ctx); err != nil {
		return err
	}
	serving()
	<-ctx.Done()
	return ctx.Err()
}

// sendLeadersReply answers a query of another coordinator, unless the reply is nil.
func (n *Notifications) sendLeadersReply(m *nats.Msg, reply *protocol.LeaderReply) {
	if reply == nil || m.Reply == "" || !protocol.MayReply(m.Reply, "", "") {
		return
	}
	reply.Version = protocol.Version
	if err := n.nc.Publish(m.Reply, protocol.Encode(reply)); err != nil {
		n.log.Warn("could not answer a query of another coordinator", "error", err)
	}
}

// AskLeader asks the leading coordinator. Errors: unavailable with reason no_leader if no leader answers within a
// second; the error in the answer.
func (n *Notifications) AskLeader(ctx context.Context, q *protocol.LeaderQuery) (*protocol.LeaderReply, error) {
	ctx, cancel := context.WithTimeout(ctx, askLeader)
	defer cancel()
	q.Version = protocol.Version
	m := nats.NewMsg(protocol.LeaderSubject)
	m.Data = protocol.Encode(q)
	answer, err := n.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		why := "no answer came within " + askLeader.String()
		if errors.Is(err, nats.ErrNoResponders) {
			why = "none is elected yet"
		}
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonNoLeader,
			"no coordinator leads now (%s), and only the leader knows whether the tenant's quota has room", why)
	}
	reply := &protocol.LeaderReply{}
	if err := protocol.DecodeAs(protocol.ContentMsgpack, answer.Data, reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply, nil
}

// TellLeader sends the leader a query that needs no answer. The query may be lost.
func (n *Notifications) TellLeader(q *protocol.LeaderQuery) error {
	q.Version = protocol.Version
	return translate(n.nc.Publish(protocol.LeaderSubject, protocol.Encode(q)), "tell the leader")
}

// SinceBoot returns the time since this machine started. It includes suspensions, unlike the process's own clock.
func (n *Notifications) SinceBoot() time.Duration { return n.sinceBoot() }
