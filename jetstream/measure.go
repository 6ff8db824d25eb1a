package jetstream

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/protocol"
)

// measuredWithin is how long a coordinator waits for a worker's answer: less than the 2 s after which a client asks
// again. A worker answers within about a second, even if a supervisor does not answer.
const measuredWithin = 1500 * time.Millisecond

// measureTurns limits the questions that a worker answers at once. The sandboxes take turns, so that a sandbox whose
// supervisor does not answer delays no other sandbox.
var measureTurns = turnLimits{running: 32, ofOneLine: 2, waiting: amount{jobs: 1024, bytes: 4 << 20}}

// AskWorker asks the worker of a host what a sandbox uses, and waits for its answer. The query names the coordinator,
// the tenant and the sandbox; AskWorker sets the rest. Errors: unavailable, naming the worker and the host, if the
// worker does not listen or does not answer; deadline_exceeded or cancelled if ctx ends first; the error in the answer.
func (n *Notifications) AskWorker(ctx context.Context, worker, host string, q protocol.MeasureQuery) (
	*protocol.MeasureReply, error) {
	q.Version, q.ID = protocol.Version, nuid.Next()
	reply := protocol.MeasuredSubject(q.Coordinator, worker, host, q.ID)
	sub, err := n.nc.SubscribeSync(reply)
	if err != nil {
		return nil, translate(err, "ask worker "+worker)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	if err := n.nc.PublishRequest(protocol.MeasureSubject(worker, host), reply, protocol.Encode(&q)); err != nil {
		return nil, translate(err, "ask worker "+worker)
	}
	waiting, cancel := context.WithTimeout(ctx, measuredWithin)
	defer cancel()
	m, err := sub.NextMsgWithContext(waiting)
	switch {
	case errors.Is(err, nats.ErrNoResponders) || err == nil && isNoResponders(m):
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonWorkerAway,
			"worker %s of host %s is not connected, or is of a version that does not measure sandboxes", worker, host)
	case err != nil && ctx.Err() == nil && waiting.Err() != nil:
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonWorkerAway,
			"worker %s of host %s did not answer within %s", worker, host, measuredWithin)
	case err != nil:
		return nil, translate(err, "ask worker "+worker+" of host "+host)
	}
	answer := &protocol.MeasureReply{}
	if err := protocol.Decode(m.Data, answer); err != nil {
		return nil, err
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	if q.Processes && answer.Processes == nil || !q.Processes && answer.Usage == nil {
		return nil, undecodable("the answer of worker %s is empty", worker)
	}
	return answer, nil
}

// isNoResponders reports whether a message is the server's notice that nobody listens.
func isNoResponders(m *nats.Msg) bool { return len(m.Data) == 0 && m.Header.Get("Status") == "503" }

// ServeMeasures calls answer with each question of a coordinator to this worker, and sends the answers, until stop is
// called. Several questions are answered at once. ctx ends the answers that are being prepared.
func (n *Notifications) ServeMeasures(ctx context.Context, worker, host string,
	answer func(context.Context, *protocol.MeasureQuery) (*protocol.MeasureReply, error)) (stop func(), err error) {
	send := func(q *protocol.MeasureQuery, r *protocol.MeasureReply, err error) {
		if err != nil {
			r = &protocol.MeasureReply{Error: protocol.AsError(err)}
		}
		r.Version = protocol.Version
		subject := protocol.MeasuredSubject(q.Coordinator, worker, host, q.ID)
		if err := n.nc.Publish(subject, protocol.Encode(r)); err != nil {
			n.log.Warn("could not answer a coordinator's question about the use of a sandbox", "error", err)
		}
	}
	type question struct {
		*protocol.MeasureQuery
		came time.Time
	}
	turns := newTurns(measureTurns, func(q question) {
		if ctx.Err() == nil && time.Since(q.came) < measuredWithin { // afterwards nobody waits for the answer
			r, err := n.measured(ctx, q.MeasureQuery, answer)
			send(q.MeasureQuery, r, err)
		}
	})
	sub, err := n.nc.Subscribe(protocol.MeasureSubject(worker, host), func(m *nats.Msg) {
		q := &protocol.MeasureQuery{}
		if err := readMeasureQuery(m, q); err != nil {
			n.log.Warn("dropped a coordinator's question about the use of a sandbox", "error", err)
			return
		}
		line := protocol.SandboxKey{Tenant: q.Tenant, ID: q.Sandbox}.String()
		for _, dropped := range turns.add(line, question{q, time.Now()}, amount{1, m.Size()}) {
			send(dropped.MeasureQuery, nil, errTooManyMeasures)
		}
	})
	if err != nil {
		return nil, translate(err, "listen for questions about sandboxes")
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed
}

var errTooManyMeasures = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
	"too many questions about the sandbox already wait at its worker: try again later")

// readMeasureQuery reads a question. Every part of the answer's subject must be a valid token.
func readMeasureQuery(m *nats.Msg, q *protocol.MeasureQuery) error {
	if err := protocol.Decode(m.Data, q); err != nil {
		return err
	}
	if err := protocol.CheckVersion(q.Version); err != nil {
		return err
	}
	for field, id := range map[string]string{
		"coordinator": q.Coordinator, "id": q.ID, "tenant": q.Tenant, "sandbox": q.Sandbox,
	} {
		if err := protocol.ValidateID(field, id); err != nil {
			return err
		}
	}
	return nil
}

// measured calls answer. If it panics, only this question fails.
func (n *Notifications) measured(ctx context.Context, q *protocol.MeasureQuery,
	answer func(context.Context, *protocol.MeasureQuery) (*protocol.MeasureReply, error)) (
	r *protocol.MeasureReply, err error) {
	defer func() {
		if p := recover(); p != nil {
			n.log.Error("answering a question about the use of a sandbox panicked", "panic", p, "stack", string(debug.Stack()))
			err = protocol.Errorf(protocol.Internal, "", "the worker panicked: see its log")
		}
	}()
	return answer(ctx, q)
}
