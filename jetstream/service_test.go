package jetstream_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func emptyReply(context.Context, string, *protocol.Query) (*protocol.Reply, error) {
	return &protocol.Reply{}, nil
}

func TestReadsAreUnavailableWithoutACoordinator(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	_, err := d.opened(t).Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{})
	wantError(t, err, protocol.Unavailable, "")
}

func TestReadsAreAnsweredInTheirOwnContentType(t *testing.T) {
	conformAlone(t, func(t *testing.T, d *deployment) {
		c, k := d.opened(t), d.opened(t)
		background(t, func(ctx context.Context) error {
			return k.ServeReads(ctx, "1.2.3", map[string]jetstream.Endpoint{
				protocol.EndpointGet: func(_ context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
					if q.Sandbox == "none" {
						return nil, protocol.Errorf(protocol.NotFound, "", "no sandbox %s", q.Sandbox)
					}
					reply := &protocol.Reply{Sandbox: &protocol.Sandbox{Tenant: tenant, ID: q.Sandbox}}
					if q.Sandbox == "large" {
						reply.Sandbox.Reason = strings.Repeat("x", 1<<20)
					}
					return reply, nil
				},
			}, nil)
		})
		var r *protocol.Reply
		eventually.Holds(t, 5*time.Second, "the read service answers", func() bool {
			var err error
			r, err = c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "s1"})
			return err == nil
		})
		if r.Sandbox.ID != "s1" || r.Sandbox.Tenant != d.tenant {
			t.Fatalf("the answer has the sandbox %+v", r.Sandbox)
		}
		_, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "none"})
		wantError(t, err, protocol.NotFound, "")
		_, err = c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "large"})
		wantError(t, err, protocol.ResourceExhausted, protocol.ReasonTooLarge)

		nc := d.raw(t)
		ask := func(body string) (reply map[string]any, m *nats.Msg) {
			m = nats.NewMsg(protocol.APISubject(d.tenant, protocol.EndpointGet))
			m.Header.Set(protocol.HeaderContentType, protocol.ContentJSON)
			m.Data = []byte(body)
			m, err := nc.RequestMsg(m, 5*time.Second)
			must(t, err)
			must(t, json.Unmarshal(m.Data, &reply))
			return reply, m
		}
		reply, m := ask(`{"v":1,"sandbox":"s1"}`)
		if m.Header.Get(protocol.HeaderContentType) != protocol.ContentJSON ||
			reply["sandbox"].(map[string]any)["id"] != "s1" {
			t.Fatalf("the JSON answer is %v %s", m.Header, m.Data)
		}
		for body, want := range map[string]map[string]any{
			`{"v":1,"sandbox":"none"}`: {"code": "not_found"},
			`{"v":1,"sandbocks":"s1"}`: {
				"code": "invalid_argument", "reason": protocol.ReasonUnknownField, "field": "sandbocks",
			},
			`{"sandbox":"s1"}`: {"code": "failed_precondition", "reason": protocol.ReasonUnsupportedVersion},
			`{`:                {"code": "invalid_argument", "reason": protocol.ReasonUndecodable},
		} {
			reply, m := ask(body)
			got, ok := reply["error"].(map[string]any)
			if !ok || m.Header.Get("Nats-Service-Error-Code") != want["code"] {
				t.Errorf("the answer to %s is %v %s", body, m.Header, m.Data)
			}
			for k, v := range want {
				if got[k] != v {
					t.Errorf("the error for %s has %s %v, want %v", body, k, got[k], v)
				}
			}
		}
	})
}

// `nats service stats` shows the numbers of queries and errors, and the processing time.
func TestTheReadServiceReportsItsStatistics(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, k := d.opened(t), d.opened(t)
	var inside atomic.Int64 // time spent in the endpoint, in nanoseconds
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3-rc.1", map[string]jetstream.Endpoint{
			protocol.EndpointGet: func(ctx context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
				began := time.Now()
				defer func() { inside.Add(int64(time.Since(began))) }()
				if err := k.Flush(ctx); err != nil { // Flush takes measurable time
					return nil, err
				}
				if q.Sandbox == "none" {
					return nil, protocol.Errorf(protocol.NotFound, "", "no sandbox\r\nhere")
				}
				return &protocol.Reply{}, nil
			},
			protocol.EndpointPing: emptyReply,
		}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the start of the read service", serving)
	asked := time.Now()
	for _, sandbox := range []string{"a", "none", "b", "none", "c"} {
		_, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: sandbox})
		if (sandbox == "none") != (err != nil) {
			t.Fatal(err)
		}
	}
	outside := time.Since(asked)
	nc := d.raw(t)
	ask := func(subject string, v any) {
		t.Helper()
		m, err := nc.Request(subject, nil, 5*time.Second)
		must(t, err)
		must(t, json.Unmarshal(m.Data, v))
	}
	var stats micro.Stats
	ask("$SRV.STATS.boxfleet", &stats)
	if len(stats.Endpoints) != 2 || stats.Version != "1.2.3-rc.1" || stats.Name != "boxfleet" ||
		stats.Type != micro.StatsResponseType || stats.Started.IsZero() {
		t.Fatalf("the statistics of the service are %+v", stats)
	}
	get := stats.Endpoints[0]
	if get.Name != protocol.EndpointGet || get.NumRequests != 5 || get.NumErrors != 2 ||
		!strings.HasPrefix(get.LastError, "not_found:") || stats.Endpoints[1].NumRequests != 0 {
		t.Errorf("the statistics of the endpoint are %+v", get)
	}
	if least := time.Duration(inside.Load()); least <= 0 || get.ProcessingTime < least ||
		get.ProcessingTime > outside || get.AverageProcessingTime != get.ProcessingTime/5 {
		t.Errorf("the processing time is %s, and %s on average, want between %s and %s in total",
			get.ProcessingTime, get.AverageProcessingTime, least, outside)
	}
	var info micro.Info
	ask("$SRV.INFO.boxfleet."+stats.ID, &info)
	if len(info.Endpoints) != 2 || info.Description == "" ||
		info.Endpoints[0].Subject != protocol.APISubject("*", protocol.EndpointGet) ||
		info.Type != micro.InfoResponseType {
		t.Errorf("the description of the service is %+v", info)
	}
	var ping micro.Ping
	ask("$SRV.PING", &ping)
	if ping.ID != stats.ID || ping.Type != micro.PingResponseType {
		t.Errorf("the answer to the ping is %+v", ping)
	}
}

// A query in JSON is understood and answered in JSON, in whatever way the client's library writes the header.
func TestJSONIsUnderstoodWithAnyContentTypeHeader(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	k, nc := d.opened(t), d.raw(t)
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3", map[string]jetstream.Endpoint{
			protocol.EndpointList: emptyReply,
		}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the start of the read service", serving)
	for name, header := range map[string]nats.Header{
		"without the header": {},
		"as documented":      {"Content-Type": {"application/json"}},
		"with a charset":     {"Content-Type": {"application/json; charset=utf-8"}},
		"in lower case":      {"content-type": {"application/json"}},
		"in capitals":        {"CONTENT-TYPE": {"Application/JSON"}},
	} {
		m := nats.NewMsg(protocol.APISubject(d.tenant, protocol.EndpointList))
		m.Header, m.Data = header, []byte(`{"v":1}`)
		answer, err := nc.RequestMsg(m, 5*time.Second)
		must(t, err)
		got, contentType := string(answer.Data), answer.Header.Get(protocol.HeaderContentType)
		if got != `{"v":1,"sandboxes":[]}` || contentType != protocol.ContentJSON {
			t.Errorf("%s: the answer is %v %s", name, answer.Header, got)
		}
	}
	list := protocol.APISubject(d.tenant, protocol.EndpointList)
	answer, err := nc.Request(list, []byte(`{"v":1,"limits":1}`), 5*time.Second)
	must(t, err)
	if got := string(answer.Data); !strings.Contains(got, `"field":"limits"`) || strings.Contains(got, "sandboxes") {
		t.Errorf("the answer to a query with an unknown field is %s", got)
	}
}

// A flood of queries does not fill the memory. If a query panics, only that query fails.
func TestAFloodOfQueriesAndAPanicAffectNoOtherQuery(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	k, c, nc := d.opened(t), d.opened(t), d.raw(t)
	serving, proceed := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(proceed) })
	defer release()
	var inHand, most atomic.Int64
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3", map[string]jetstream.Endpoint{
			protocol.EndpointList: func(context.Context, string, *protocol.Query) (*protocol.Reply, error) {
				if now := inHand.Add(1); now > most.Load() {
					most.Store(now)
				}
				<-proceed
				inHand.Add(-1)
				return &protocol.Reply{}, nil
			},
			protocol.EndpointGet: func(_ context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
				if q.Sandbox == "bad" {
					panic("a defect")
				}
				return &protocol.Reply{Sandbox: &protocol.Sandbox{ID: q.Sandbox}}, nil
			},
		}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the start of the read service", serving)
	for range 3000 {
		must(t, nc.Publish(protocol.APISubject(d.tenant, protocol.EndpointList), []byte(`{"v":1}`)))
	}
	must(t, nc.Flush())
	eventually.Holds(t, 5*time.Second, "queries are running", func() bool { return inHand.Load() > 100 })
	_, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "bad"})
	wantError(t, err, protocol.Internal, "")
	r, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "a"})
	if err != nil || r.Sandbox.ID != "a" {
		t.Errorf("the answer to another query during the flood: %+v, %v", r, err)
	}
	if n := most.Load(); n > 500 {
		t.Errorf("%d queries ran concurrently, want at most 500", n)
	}
	release()
	if _, err := c.TenantReads(d.tenant).Query(t.Context(), protocol.EndpointList, protocol.Query{}); err != nil {
		t.Errorf("a query after the flood failed: %v", err)
	}
}

// The queries of one tenant wait here until the end of the test.
func TestAFloodOfOneTenantsQueriesDelaysNoOtherTenant(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	k, c, nc := d.opened(t), d.opened(t), d.raw(t)
	serving, proceed := make(chan struct{}), make(chan struct{})
	defer close(proceed)
	var inHand atomic.Int64
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3", map[string]jetstream.Endpoint{
			protocol.EndpointGet: func(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
				if tenant == "hostile" && jetstream.UserOf(ctx) == "" {
					inHand.Add(1)
					<-proceed
				}
				return &protocol.Reply{Sandbox: &protocol.Sandbox{ID: q.Sandbox}}, nil
			},
		}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the start of the read service", serving)
	for range 10_000 {
		must(t, nc.Publish(protocol.APISubject("hostile", protocol.EndpointGet), []byte(`{"v":1}`)))
	}
	must(t, nc.Flush())
	eventually.Holds(t, 5*time.Second, "queries are running", func() bool { return inHand.Load() > 100 })
	for range 1000 {
		r, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "a"})
		if err != nil || r.Sandbox.ID != "a" {
			t.Fatalf("the answer to another tenant's query during the flood: %+v, %v", r, err)
		}
	}
	m := nats.NewMsg(protocol.UserAPISubject("hostile", "@w1", protocol.EndpointGet))
	m.Reply, m.Data = "_INBOX.@w1.x", []byte(`{"v":1}`)
	answers, err := nc.SubscribeSync(m.Reply)
	must(t, err)
	must(t, nc.PublishMsg(m))
	if _, err := answers.NextMsg(10 * time.Second); err != nil {
		t.Errorf("a query of a worker in the name of the hostile tenant: %v", err)
	}
}

// Queries without room to wait are counted. Some of them are answered and logged.
func TestQueriesWithoutRoomToWaitAreRefused(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	var log eventually.Buffer
	k, err := jetstream.Connect(t.Context(),
		jetstream.Config{URL: d.url(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	t.Cleanup(k.Close)
	must(t, k.Open(t.Context()))
	nc := d.raw(t)
	serving, proceed := make(chan struct{}), make(chan struct{})
	defer close(proceed)
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3", map[string]jetstream.Endpoint{
			protocol.EndpointGet: func(context.Context, string, *protocol.Query) (*protocol.Reply, error) {
				<-proceed
				return &protocol.Reply{}, nil
			},
		}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the start of the read service", serving)
	subject := protocol.UserAPISubject("hostile", "eve", protocol.EndpointGet)
	answers, err := nc.SubscribeSync("_INBOX.hostile.eve.x")
	must(t, err)
	const flood = 3000
	for range flood {
		must(t, nc.PublishRequest(subject, answers.Subject, []byte(`{"v":1}`)))
	}
	m, err := answers.NextMsg(10 * time.Second)
	must(t, err)
	if code := m.Header.Get(micro.ErrorCodeHeader); code != string(protocol.ResourceExhausted) ||
		!strings.Contains(string(m.Data), protocol.ReasonTooManyReads) {
		t.Errorf("a query without room to wait is answered with %s %s", code, m.Data)
	}
	eventually.Holds(t, 10*time.Second, "the refused queries are counted", func() bool {
		m, err := nc.Request("$SRV.STATS.boxfleet", nil, 5*time.Second)
		must(t, err)
		var stats micro.Stats
		must(t, json.Unmarshal(m.Data, &stats))
		var data struct{ Refused int }
		must(t, json.Unmarshal(stats.Endpoints[0].Data, &data))
		told := stats.Endpoints[0].NumErrors
		return data.Refused > flood/3 && told > 0 && told < data.Refused
	})
	text := log.String()
	if n := strings.Count(text, "refused queries"); n < 1 || n > 3 ||
		!strings.Contains(text, "tenant=hostile") || !strings.Contains(text, "endpoint=get") {
		t.Errorf("%d lines about the refused queries, want one, or a few on a slow machine:\n%s", n, text)
	}
	stranger, err := nc.SubscribeSync("_INBOX.other.ann.x")
	must(t, err)
	must(t, nc.PublishRequest(subject, stranger.Subject, []byte(`{"v":1}`)))
	must(t, nc.PublishRequest(subject, answers.Subject, []byte(`{"v":1}`)))
	must(t, k.Flush(t.Context()))
	if m, err := stranger.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("the inbox of another user gets %s", m.Data)
	}
}

// slowly reads from a connection at most a MiB per second.
type slowly struct{ net.Conn }

func (slowly) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return slowly{c}, err
}

func (s slowly) Read(data []byte) (int, error) {
	n, err := s.Conn.Read(data[:min(len(data), 16<<10)])
	time.Sleep(time.Duration(n) * time.Second >> 20)
	return n, err
}

// The process receives queries more slowly than a client sends them. JetStream's answers do not wait behind the
// queries.
func TestAFloodOfQueriesDelaysNoAnswerOfJetStream(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	k, err := jetstream.Connect(t.Context(), jetstream.Config{URL: d.url(), Logger: quiet,
		Options: func(o *nats.Options) { o.CustomDialer = slowly{} }})
	must(t, err)
	t.Cleanup(k.Close)
	must(t, k.Open(t.Context()))
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3",
			map[string]jetstream.Endpoint{protocol.EndpointGet: emptyReply}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the start of the read service", serving)
	nc := d.raw(t)
	query := make([]byte, 64<<10)
	for range 160 {
		must(t, nc.Publish(protocol.APISubject("hostile", protocol.EndpointGet), query))
	}
	must(t, nc.Flush())
	began := time.Now()
	_, err = k.LastRecord(t.Context())
	must(t, err)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("JetStream's answer came after %s, behind queries for 10 s", took)
	}
}

// refusing dials connections that read an error of the server once its channel is closed.
type refusing struct{ from chan struct{} }

type refusedConn struct {
	net.Conn
	from chan struct{}
}

func (r refusing) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return refusedConn{c, r.from}, err
}

func (c refusedConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if err != nil {
		return n, err // the client has closed the connection, and reads until a read fails
	}
	select {
	case <-c.from:
		return copy(data, "-ERR 'Failed Account Registration'\r\n"), nil
	default:
		return n, nil
	}
}

// The client closes a connection for good after such an error. The coordinator must not go on without queries.
func TestTheReadServiceFailsIfItsConnectionIsClosedForGood(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	var dialers []refusing
	k, err := jetstream.Connect(t.Context(), jetstream.Config{URL: d.url(), Logger: quiet, Options: func(o *nats.Options) {
		dialers = append(dialers, refusing{make(chan struct{})})
		o.CustomDialer = dialers[len(dialers)-1]
	}})
	must(t, err)
	t.Cleanup(k.Close)
	must(t, k.Open(t.Context()))
	serving, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- k.ServeReads(t.Context(), "1.2.3",
			map[string]jetstream.Endpoint{protocol.EndpointGet: emptyReply}, func() { close(serving) })
	}()
	receive(t, 10*time.Second, "the start of the read service", serving)
	close(dialers[1].from)
	nc := d.raw(t)
	must(t, nc.Publish(protocol.APISubject("t1", protocol.EndpointGet), []byte(`{"v":1}`)))
	must(t, nc.Flush())
	if err := receive(t, 10*time.Second, "the end of the read service",
		ended); protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("the read service ends with %v", err)
	}
	if !k.Connected() {
		t.Error("the other connection was lost")
	}
}
