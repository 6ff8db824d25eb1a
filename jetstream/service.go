package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/protocol"
)

// Endpoint answers a query of the read service. [UserOf] returns the asking user from ctx.
type Endpoint func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error)

type userKey struct{}

// UserOf returns the user who sent the query that an [Endpoint] answers. The server's permissions prove the name.
// Empty: the client has no user.
func UserOf(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

// readService is a service in the sense of NATS: `nats service info boxfleet` shows it. The client's package for
// services either answers the queries of an endpoint one after another, or counts neither errors nor times. Boxfleet
// therefore implements the protocol of services itself.
type readService struct {
	queries    *Queries
	subscriber *nats.Conn // receives the queries
	identity   micro.ServiceIdentity
	started    time.Time
	mu         sync.Mutex
	endpoints  []*micro.EndpointStats
	refused    map[*micro.EndpointStats]int // number of queries that were refused because too many waited
}

// Keys in the description of a coordinator's read service.
const (
	metadataCoordinator = "coordinator" // its name
	metadataFleetKey    = "fleet_key"   // see [protocol.CoordinatorInfo]
)

const serviceDescription = "Boxfleet: reads"

// Queries serves and sends the queries of the read service.
type Queries struct {
	*core

	quorum *quorum
}

// ServeReads is [Queries.ServeReadsAs] for a coordinator that says only its version.
func (r *Queries) ServeReads(ctx context.Context, version string, endpoints map[string]Endpoint, serving func()) error {
	return r.ServeReadsAs(ctx, Description{Version: version}, endpoints, serving)
}

// Description is what a coordinator tells operators about itself.
type Description struct {
	Version  string // a semantic version
	FleetKey string // see [protocol.CoordinatorInfo]
}

// ServeReadsAs runs the read service until ctx ends. Several coordinators serve at once; each query goes to one of them
// that serves the endpoint. ServeReadsAs calls serving when it has begun to receive queries. serving may be nil.
// Errors: those of [Connect]; unavailable if the connection that receives the queries was closed for good.
func (r *Queries) ServeReadsAs(
	ctx context.Context, d Description, endpoints map[string]Endpoint, serving func(),
) error {
	metadata := map[string]string{metadataCoordinator: strings.TrimPrefix(r.user, "@")}
	if d.FleetKey != "" {
		metadata[metadataFleetKey] = d.FleetKey
	}
	s := &readService{
		queries: r,
		started: time.Now().UTC(),
		refused: map[*micro.EndpointStats]int{},
		identity: micro.ServiceIdentity{
			Name:     protocol.ServiceName,
			ID:       nuid.Next(),
			Version:  d.Version,
			Metadata: metadata,
		},
	}
	own, err := r.another(ctx, "reads")
	if err != nil {
		return err
	}
	s.subscriber = own.nc
	defer s.drain()
	for _, name := range slices.Sorted(maps.Keys(endpoints)) {
		if err := s.serveEndpoint(ctx, name, endpoints[name]); err != nil {
			return err
		}
	}
	if err := s.serveDiscovery(); err != nil {
		return err
	}
	if err := own.Flush(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	if serving != nil {
		serving()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-own.Closed(): // the client gives up after some errors of the server
		return translate(nats.ErrConnectionClosed, "serve reads")
	}
}

func (s *readService) subscribe(subject, queue string, handle nats.MsgHandler) error {
	_, err := s.subscriber.QueueSubscribe(subject, queue, handle)
	return translate(err, "serve reads")
}

// drain ends all subscriptions, and closes their connection when the queries that have arrived were taken.
func (s *readService) drain() {
	if err := s.subscriber.Drain(); err != nil {
		s.queries.log.Warn("could not take the last queries of clients; the clients ask again", "error", err)
		s.subscriber.Close()
	}
}

// serveEndpoint answers the queries of an endpoint. The tenants take turns.
func (s *readService) serveEndpoint(ctx context.Context, name string, endpoint Endpoint) error {
	stats := &micro.EndpointStats{
		Name:       name,
		Subject:    protocol.APISubject("*", name),
		QueueGroup: micro.DefaultQueueGroup,
	}
	s.endpoints = append(s.endpoints, stats)
	refusals := &queryRefusals{endpoint: name, told: map[string]int{}, unsaid: map[string]int{}, log: s.queries.log}
	queue := newTurns(queryTurns, func(m *nats.Msg) { s.answer(ctx, m, endpoint, stats) })
	add := func(m *nats.Msg) {
		tenant, user, _, _ := protocol.SplitAPISubject(m.Subject)
		line := lineOf(tenant, user)
		for _, dropped := range queue.add(line, m, amount{1, m.Size()}) {
			s.refuse(dropped, stats, refusals.note(line))
		}
	}
	for _, subject := range []string{stats.Subject, protocol.UserAPISubject("*", "*", name)} {
		if err := s.subscribe(subject, stats.QueueGroup, add); err != nil {
			return err
		}
	}
	return nil
}

// queryTurns limits the queries to one endpoint.
var queryTurns = turnLimits{running: 256, ofOneLine: 192, waiting: amount{jobs: 2048, bytes: 16 << 20}}

const (
	// toldRefusals is how many refused queries of one line get an answer from one endpoint each second. To answer all
	// queries of a flood would take longer than to receive them, and queries of other tenants would wait behind them.
	toldRefusals = 100

	refusedQueriesAgain = 5 * time.Second // pause between two log lines about refused queries of one endpoint
)

// queryRefusals counts the refused queries to one endpoint, decides which of them get an answer, and logs the counts.
type queryRefusals struct {
	endpoint string
	log      *slog.Logger

	mu     sync.Mutex
	told   map[string]int // refused queries since second, by line
	second time.Time
	unsaid map[string]int // refused queries since the last log line, by line
	said   time.Time      // when the last log line was written
}

// note counts a refusal of a line's query, and reports whether the client is told.
func (r *queryRefusals) note(line string) (tell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.second) >= time.Second {
		r.second = time.Now()
		clear(r.told)
	}
	r.told[line]++
	r.unsaid[line]++
	if time.Since(r.said) >= refusedQueriesAgain {
		r.said = time.Now()
		for line, queries := range r.unsaid {
			r.log.Warn("refused queries of a tenant: too many of them already wait", "endpoint", r.endpoint, "tenant", line,
				"queries since the last such line", queries)
		}
		clear(r.unsaid)
	}
	return r.told[line] <= toldRefusals
}

// serveDiscovery answers the questions that `nats service` asks all services, all instances of this service, or this
// instance.
func (s *readService) serveDiscovery() error {
	discovery := map[micro.Verb]func() any{micro.PingVerb: s.ping, micro.InfoVerb: s.info, micro.StatsVerb: s.stats}
	for verb, content := range discovery {
		for _, of := range []string{"", "." + s.identity.Name, "." + s.identity.Name + "." + s.identity.ID} {
			respond := func(m *nats.Msg) { s.respond(m, content()) }
			if err := s.subscribe(micro.APIPrefix+"."+verb.String()+of, "", respond); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *readService) respond(m *nats.Msg, v any) {
	data, err := json.Marshal(v)
	if err == nil && protocol.MayReply(m.Reply, "", "") {
		err = m.Respond(data)
	}
	if err != nil {
		s.queries.log.Warn("could not describe the read service to a client", "subject", m.Subject, "error", err)
	}
}

func (s *readService) ping() any {
	return micro.Ping{ServiceIdentity: s.identity, Type: micro.PingResponseType}
}

func (s *readService) info() any {
	info := micro.Info{ServiceIdentity: s.identity, Type: micro.InfoResponseType, Description: serviceDescription}
	for _, e := range s.endpoints {
		info.Endpoints = append(
			info.Endpoints,
			micro.EndpointInfo{
				Name:       e.Name,
				Subject:    e.Subject,
				QueueGroup: e.QueueGroup,
				Metadata:   map[string]string{},
			},
		)
	}
	return info
}

func (s *readService) stats() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := micro.Stats{ServiceIdentity: s.identity, Type: micro.StatsResponseType, Started: s.started}
	for _, e := range s.endpoints {
		now := *e
		now.Data = json.RawMessage(fmt.Sprintf(`{"refused":%d}`, s.refused[e]))
		if now.NumRequests > 0 {
			now.AverageProcessingTime = now.ProcessingTime / time.Duration(now.NumRequests)
		}
		stats.Endpoints = append(stats.Endpoints, &now)
	}
	return stats
}

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

// mayAnswer reports whether the query is from the client that it names and asks for an answer in that client's inbox.
func (s *readService) mayAnswer(m *nats.Msg, tenant, user string) bool {
	known := user == "" || protocol.ValidateUser("user", user) == nil
	if !known || m.Reply != "" && !protocol.MayReply(m.Reply, tenant, user) || isRepublished(m.Header) {
		s.queries.log.Warn("dropped a query: the reply subject is not in the user's inbox, or a stream republished the query",
			"subject", m.Subject, "reply", m.Reply)
		return false
	}
	return true
}

func (s *readService) answer(ctx context.Context, m *nats.Msg, endpoint Endpoint, stats *micro.EndpointStats) {
	began := time.Now()
	tenant, user, _, _ := protocol.SplitAPISubject(m.Subject)
	if !s.mayAnswer(m, tenant, user) {
		return
	}
	q := &protocol.Query{}
	err := protocol.DecodeStrict(headerOf(m.Header, protocol.HeaderContentType), m.Data, q)
	if err == nil {
		err = protocol.CheckVersion(q.Version)
	}
	reply := &protocol.Reply{}
	if err == nil {
		reply, err = s.ask(context.WithValue(ctx, userKey{}, user), endpoint, tenant, q)
	}
	if err != nil {
		reply = &protocol.Reply{Error: protocol.AsError(err)}
	}
	s.reply(m, reply, stats, began)
}

// refuse counts a query that has no room to wait. If tell is set, it also answers the query. Without an answer, the
// client waits until its time is up.
func (s *readService) refuse(m *nats.Msg, stats *micro.EndpointStats, tell bool) {
	began := time.Now()
	s.mu.Lock()
	s.refused[stats]++
	s.mu.Unlock()
	tenant, user, _, _ := protocol.SplitAPISubject(m.Subject)
	if !tell || !s.mayAnswer(m, tenant, user) {
		return
	}
	s.reply(m, &protocol.Reply{Error: protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
		"too many queries of the tenant already wait for %q: try again later, with fewer queries at once", stats.Name)},
		stats, began)
}

// reply sends the answer to a query, if the client asked for an answer, and counts the query.
func (s *readService) reply(m *nats.Msg, reply *protocol.Reply, stats *micro.EndpointStats, began time.Time) {
	reply.Version = protocol.Version
	contentType := answerType(headerOf(m.Header, protocol.HeaderContentType), m.Data)
	data := protocol.EncodeRead(contentType, reply, stats.Name)
	if most := s.queries.nc.MaxPayload(); int64(len(data)) > most-min(headerRoom, most/4) {
		reply = &protocol.Reply{Version: protocol.Version, Error: answerTooLarge(contentType, stats.Name, len(data), most)}
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
	if err := s.queries.nc.PublishMsg(out); err != nil {
		s.queries.log.Warn("could not send the answer to a query", "subject", m.Subject, "error", err)
	}
}

// answerTooLarge returns the error for an answer that is too large for the server. The error says how to get the
// answer.
func answerTooLarge(contentType, endpoint string, bytes int, most int64) *protocol.Error {
	do := "ask for a smaller limit, or raise max_payload"
	if endpoint == protocol.EndpointBatches || endpoint == protocol.EndpointChunks { // such pages cannot be smaller
		do = "raise max_payload"
		if contentType == protocol.ContentJSON {
			do = "ask in msgpack, which takes a quarter less than JSON, or raise max_payload"
		}
	}
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge,
		"the answer of %d bytes exceeds the NATS server's max_payload of %d: %s", bytes, most, do)
}

// ask calls an endpoint. If the endpoint panics, only this query fails.
func (s *readService) ask(ctx context.Context, endpoint Endpoint, tenant string, q *protocol.Query) (
	reply *protocol.Reply, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.queries.log.Error("a query panicked", "panic", p, "stack", string(debug.Stack()))
			err = protocol.Errorf(protocol.Internal, "", "the query panicked: %v", p)
		}
	}()
	return endpoint(ctx, tenant, q)
}

// headerRoom is how many bytes the headers of an answer may take.
const headerRoom = 4 << 10

// headerText turns a text into the value of a header: one line, short enough to leave room for other headers.
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

// isRepublished reports whether a stream republished the message. In that case the server published the message, and
// the message's subject proves nothing about the author.
func isRepublished(h nats.Header) bool { return len(h["Nats-Stream"]) > 0 }

// Query sends a query to the read service. Errors: the errors of the read service; unavailable if no coordinator runs;
// [protocol.NotServed] if those that run are of an earlier version, which lacks the endpoint.
func (r *Queries) Query(ctx context.Context, tenant, endpoint string, q *protocol.Query) (*protocol.Reply, error) {
	reply, err := r.queryOnce(ctx, tenant, endpoint, q)
	if !errors.Is(err, nats.ErrNoResponders) {
		return reply, err
	}
	if r.jetStreamDisabled() { // a coordinator that starts waits for JetStream
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonServerSettings,
			"no coordinator answers. NATS: %s", whyNoJetStream(jetstream.ErrJetStreamNotEnabled))
	}
	if missing := r.notServed(ctx, tenant, endpoint); missing != nil { // ask again: a coordinator may have started since
		if reply, err = r.queryOnce(ctx, tenant, endpoint, q); errors.Is(err, nats.ErrNoResponders) {
			return nil, missing
		}
		return reply, err
	}
	return nil, protocol.Errorf(protocol.Unavailable, "", "no coordinator answers")
}

// queryOnce sends a query and reads the answer. Its error is that of the NATS client if nobody serves the endpoint.
func (r *Queries) queryOnce(ctx context.Context, tenant, endpoint string, q *protocol.Query) (
	*protocol.Reply, error) {
	q.Version = protocol.Version
	subject := protocol.APISubject(tenant, endpoint)
	if r.user != "" {
		subject = protocol.UserAPISubject(tenant, r.user, endpoint)
	}
	m := nats.NewMsg(subject)
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(q)
	ctx, done := r.quorum.whileQuorum(ctx)
	defer done()
	answer, err := r.ask(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, err
	}
	if err != nil {
		return nil, r.quorum.orNoQuorum(translate(causeOf(ctx, err), "query "+endpoint))
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
