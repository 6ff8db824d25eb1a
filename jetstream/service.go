package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/protocol"
)

// Endpoint answers a query of the read service.
type Endpoint func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error)

// readService is a service as NATS knows them: `nats service info boxfleet` shows it. The client's own package for that
// answers one query of an endpoint after another, or counts neither the errors nor the time of what is answered beside
// it, so what it says of a service is said here.
type readService struct {
	conn      *Conn
	identity  micro.ServiceIdentity
	started   time.Time
	mu        sync.Mutex
	endpoints []*micro.EndpointStats
}

// answersAtOnce is how many queries of one endpoint are in hand at once. More wait as messages, of which the client
// of NATS drops those that are too many, so a flood of queries takes no more memory than that.
const answersAtOnce = 256

const serviceDescription = "Boxfleet: reads"

// ServeReads runs the read service until ctx ends. Several coordinators serve at once; each query
// goes to one of them. version is a semantic one. serving is called once queries are heard; it may be nil.
func (c *Conn) ServeReads(ctx context.Context, version string, endpoints map[string]Endpoint, serving func()) error {
	s := &readService{conn: c, started: time.Now().UTC(),
		identity: micro.ServiceIdentity{Name: protocol.ServiceName, ID: nuid.Next(), Version: version, Metadata: map[string]string{}}}
	var subs []*nats.Subscription
	defer func() {
		for _, sub := range subs {
			if err := sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
				c.log.Warn("stop the read service", "subject", sub.Subject, "error", err)
			}
		}
	}()
	subscribe := func(subject, queue string, handle nats.MsgHandler) error {
		sub, err := c.nc.QueueSubscribe(subject, queue, handle)
		if err == nil {
			subs = append(subs, sub)
		}
		return translate(err, "serve reads")
	}
	for _, name := range slices.Sorted(maps.Keys(endpoints)) {
		stats := &micro.EndpointStats{Name: name, Subject: protocol.APISubject("*", name), QueueGroup: micro.DefaultQueueGroup}
		s.endpoints = append(s.endpoints, stats)
		slots := make(chan struct{}, answersAtOnce)
		if err := subscribe(stats.Subject, stats.QueueGroup, func(m *nats.Msg) {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				s.answer(ctx, m, endpoints[name], stats)
			}()
		}); err != nil {
			return err
		}
	}
	for verb, say := range map[micro.Verb]func() any{micro.PingVerb: s.ping, micro.InfoVerb: s.info, micro.StatsVerb: s.stats} {
		for _, of := range []string{"", "." + s.identity.Name, "." + s.identity.Name + "." + s.identity.ID} {
			if err := subscribe(micro.APIPrefix+"."+verb.String()+of, "", func(m *nats.Msg) { s.tell(m, say()) }); err != nil {
				return err
			}
		}
	}
	if err := c.Flush(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	if serving != nil {
		serving()
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *readService) tell(m *nats.Msg, v any) {
	data, err := json.Marshal(v)
	if err == nil && m.Reply != "" {
		err = m.Respond(data)
	}
	if err != nil {
		s.conn.log.Warn("an answer is not sent", "subject", m.Subject, "error", err)
	}
}

func (s *readService) ping() any {
	return micro.Ping{ServiceIdentity: s.identity, Type: micro.PingResponseType}
}

func (s *readService) info() any {
	info := micro.Info{ServiceIdentity: s.identity, Type: micro.InfoResponseType, Description: serviceDescription}
	for _, e := range s.endpoints {
		info.Endpoints = append(info.Endpoints, micro.EndpointInfo{Name: e.Name, Subject: e.Subject, QueueGroup: e.QueueGroup, Metadata: map[string]string{}})
	}
	return info
}

func (s *readService) stats() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := micro.Stats{ServiceIdentity: s.identity, Type: micro.StatsResponseType, Started: s.started}
	for _, e := range s.endpoints {
		now := *e
		if now.NumRequests > 0 {
			now.AverageProcessingTime = now.ProcessingTime / time.Duration(now.NumRequests)
		}
		stats.Endpoints = append(stats.Endpoints, &now)
	}
	return stats
}

// count counts a query that was answered.
func (s *readService) count(e *micro.EndpointStats, began time.Time, failed *protocol.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.NumRequests++
	e.ProcessingTime += time.Since(began)
	if failed != nil {
		e.NumErrors++
		e.LastError = string(failed.Code) + ":" + failed.Error()
	}
}

func (s *readService) answer(ctx context.Context, m *nats.Msg, endpoint Endpoint, stats *micro.EndpointStats) {
	began := time.Now()
	contentType := headerOf(m.Header, protocol.HeaderContentType)
	q := &protocol.Query{}
	err := protocol.DecodeStrict(contentType, m.Data, q)
	if err == nil {
		err = protocol.CheckVersion(q.Version)
	}
	reply := &protocol.Reply{}
	if err == nil {
		reply, err = s.ask(ctx, endpoint, tenantOf(m.Subject), q)
	}
	if err != nil {
		reply = &protocol.Reply{Error: protocol.AsError(err)}
	}
	reply.Version = protocol.Version
	contentType = answerType(contentType, m.Data)
	data := protocol.EncodeRead(contentType, reply, stats.Name)
	if most := s.conn.nc.MaxPayload(); int64(len(data)) > most-min(headerRoom, most/4) {
		reply = &protocol.Reply{Version: protocol.Version, Error: protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge,
			"the answer has %d bytes, more than the NATS server's max_payload of %d has room for: ask for a smaller limit, or raise max_payload", len(data), most)}
		data = protocol.EncodeRead(contentType, reply, stats.Name)
	}
	s.count(stats, began, reply.Error)
	if m.Reply == "" {
		return
	}
	out := nats.NewMsg(m.Reply)
	out.Data = data
	out.Header.Set(protocol.HeaderContentType, contentType)
	if reply.Error != nil {
		out.Header.Set(micro.ErrorCodeHeader, string(reply.Error.Code))
		out.Header.Set(micro.ErrorHeader, headerText(reply.Error.Error()))
	}
	if err := s.conn.nc.PublishMsg(out); err != nil {
		s.conn.log.Warn("an answer is not sent", "subject", m.Subject, "error", err)
	}
}

// ask has an endpoint answer. A panic is an error of this one query: the others, and the coordinator, go on.
func (s *readService) ask(ctx context.Context, endpoint Endpoint, tenant string, q *protocol.Query) (reply *protocol.Reply, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.conn.log.Error("a query panics", "panic", p, "stack", string(debug.Stack()))
			err = protocol.Errorf(protocol.Internal, "", "panic: %v", p)
		}
	}()
	return endpoint(ctx, tenant, q)
}

// headerRoom is what the headers of an answer have at most.
const headerRoom = 4 << 10

// headerText is a text as a header may have it: one line, which leaves room for others.
func headerText(s string) string {
	if len(s) > headerRoom/2 {
		s = strings.ToValidUTF8(s[:headerRoom/2], "") + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
}

// tenantOf is the token after "boxfleet.v1.api.": permissions vouch for it.
func tenantOf(subject string) string {
	parts := strings.Split(subject, ".")
	return parts[len(parts)-2]
}

// Query asks the read service. Errors: the service's own; unavailable where no coordinator runs.
func (c *Conn) Query(ctx context.Context, tenant, endpoint string, q *protocol.Query) (*protocol.Reply, error) {
	q.Version = protocol.Version
	m := nats.NewMsg(protocol.APISubject(tenant, endpoint))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(q)
	ctx, done := c.whileQuorum(ctx)
	defer done()
	answer, err := c.ask(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, protocol.Errorf(protocol.Unavailable, "", "no coordinator answers")
	}
	if err != nil {
		return nil, c.orNoQuorum(translate(causeOf(ctx, err), "ask for "+endpoint))
	}
	reply := &protocol.Reply{}
	if err := protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply, nil
}
