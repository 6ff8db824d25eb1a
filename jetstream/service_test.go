package jetstream_test

import (
	"context"
	"encoding/json"
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
		eventually.Holds(t, 5*time.Second, "the service", func() bool {
			var err error
			r, err = c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "s1"})
			return err == nil
		})
		if r.Sandbox.ID != "s1" || r.Sandbox.Tenant != d.tenant {
			t.Fatalf("%+v", r.Sandbox)
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
			t.Fatalf("%v %s", m.Header, m.Data)
		}
		for body, want := range map[string]map[string]any{
			`{"v":1,"sandbox":"none"}`: {"code": "not_found"},
			`{"v":1,"sandbocks":"s1"}`: {"code": "invalid_argument", "reason": protocol.ReasonUnknownField, "field": "sandbocks"},
			`{"sandbox":"s1"}`:         {"code": "failed_precondition", "reason": protocol.ReasonUnsupportedVersion},
			`{`:                        {"code": "invalid_argument", "reason": protocol.ReasonUndecodable},
		} {
			reply, m := ask(body)
			got, ok := reply["error"].(map[string]any)
			if !ok || m.Header.Get("Nats-Service-Error-Code") != want["code"] {
				t.Errorf("%s: %v %s", body, m.Header, m.Data)
			}
			for k, v := range want {
				if got[k] != v {
					t.Errorf("%s: %s is %v, want %v", body, k, got[k], v)
				}
			}
		}
	})
}

// `nats service stats` shows the numbers of queries and refusals, and the processing time.
func TestTheReadServiceReportsItsStatistics(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, k := d.opened(t), d.opened(t)
	const slow = 30 * time.Millisecond
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3-rc.1", map[string]jetstream.Endpoint{
			protocol.EndpointGet: func(_ context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
				time.Sleep(slow)
				if q.Sandbox == "none" {
					return nil, protocol.Errorf(protocol.NotFound, "", "no sandbox\r\nhere")
				}
				return &protocol.Reply{}, nil
			},
			protocol.EndpointPing: emptyReply,
		}, func() { close(serving) })
	})
	receive(t, 10*time.Second, "the service", serving)
	for _, sandbox := range []string{"a", "none", "b", "none", "c"} {
		_, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: sandbox})
		if (sandbox == "none") != (err != nil) {
			t.Fatal(err)
		}
	}
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
		stats.Type != micro.StatsResponseType ||
		stats.Started.IsZero() {
		t.Fatalf("%+v", stats)
	}
	get := stats.Endpoints[0]
	if get.Name != protocol.EndpointGet || get.NumRequests != 5 || get.NumErrors != 2 ||
		!strings.HasPrefix(get.LastError, "not_found:") ||
		get.ProcessingTime < 5*slow ||
		get.AverageProcessingTime < slow ||
		stats.Endpoints[1].NumRequests != 0 {
		t.Errorf("%+v", get)
	}
	var info micro.Info
	ask("$SRV.INFO.boxfleet."+stats.ID, &info)
	if len(info.Endpoints) != 2 || info.Description == "" ||
		info.Endpoints[0].Subject != protocol.APISubject("*", protocol.EndpointGet) ||
		info.Type != micro.InfoResponseType {
		t.Errorf("%+v", info)
	}
	var ping micro.Ping
	ask("$SRV.PING", &ping)
	if ping.ID != stats.ID || ping.Type != micro.PingResponseType {
		t.Errorf("%+v", ping)
	}
}

// A client that writes JSON in its library's style is understood, and answered in JSON.
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
	receive(t, 10*time.Second, "the service", serving)
	for name, header := range map[string]nats.Header{
		"none":            {},
		"as it should be": {"Content-Type": {"application/json"}},
		"with a charset":  {"Content-Type": {"application/json; charset=utf-8"}},
		"in lower case":   {"content-type": {"application/json"}},
		"in capitals":     {"CONTENT-TYPE": {"Application/JSON"}},
	} {
		m := nats.NewMsg(protocol.APISubject(d.tenant, protocol.EndpointList))
		m.Header, m.Data = header, []byte(`{"v":1}`)
		answer, err := nc.RequestMsg(m, 5*time.Second)
		must(t, err)
		if got := string(
			answer.Data,
		); got != `{"v":1,"sandboxes":[]}` ||
			answer.Header.Get(protocol.HeaderContentType) != protocol.ContentJSON {
			t.Errorf("%s: %v %s", name, answer.Header, got)
		}
	}
	answer, err := nc.Request(
		protocol.APISubject(d.tenant, protocol.EndpointList),
		[]byte(`{"v":1,"limits":1}`),
		5*time.Second,
	)
	must(t, err)
	if got := string(answer.Data); !strings.Contains(got, `"field":"limits"`) || strings.Contains(got, "sandboxes") {
		t.Errorf("an error: %s", got)
	}
}

// A flood of queries does not fill the memory, and a query that panics fails alone.
func TestAFloodOfQueriesAndAPanicAffectNoOtherQuery(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	k, c, nc := d.opened(t), d.opened(t), d.raw(t)
	serving, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	var inHand, most atomic.Int64
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "1.2.3", map[string]jetstream.Endpoint{
			protocol.EndpointList: func(context.Context, string, *protocol.Query) (*protocol.Reply, error) {
				if now := inHand.Add(1); now > most.Load() {
					most.Store(now)
				}
				<-goOn
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
	receive(t, 10*time.Second, "the service", serving)
	for range 3000 {
		must(t, nc.Publish(protocol.APISubject(d.tenant, protocol.EndpointList), []byte(`{"v":1}`)))
	}
	must(t, nc.Flush())
	eventually.Holds(t, 5*time.Second, "queries are running", func() bool { return inHand.Load() > 100 })
	_, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "bad"})
	wantError(t, err, protocol.Internal, "")
	if r, err := c.Query(
		t.Context(),
		d.tenant,
		protocol.EndpointGet,
		&protocol.Query{Sandbox: "a"},
	); err != nil ||
		r.Sandbox.ID != "a" {
		t.Errorf("during the flood: %+v, %v", r, err)
	}
	if n := most.Load(); n > 500 {
		t.Errorf("%d queries run at once", n)
	}
	release()
	if _, err := c.Query(t.Context(), d.tenant, protocol.EndpointList, &protocol.Query{}); err != nil {
		t.Errorf("after the flood: %v", err)
	}
}
