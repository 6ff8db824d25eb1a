package jetstream_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestReadsAreUnavailableWithoutACoordinator(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	_, err := d.opened(t).Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{})
	wantError(t, err, protocol.Unavailable, "")
}

func TestReadsAreAnsweredInTheLanguageTheyWereAskedIn(t *testing.T) {
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
		eventually(t, 5*time.Second, "the service", func() bool {
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
		if m.Header.Get(protocol.HeaderContentType) != protocol.ContentJSON || reply["sandbox"].(map[string]any)["id"] != "s1" {
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
