package auth_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// tenant connects the SDK as a user of a tenant.
func (s *siege) tenant(t *testing.T, name, tenant string) *sdk.Client {
	t.Helper()
	conn := open(t, s.authority, s.server.ClientURL(), someone(rights.User, name, tenant, ""))
	c, err := sdk.Connect(t.Context(), sdk.Options{Conn: conn.Conn, Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestNoReadShowsAnotherTenant asks every endpoint about a sandbox of another tenant. It also asks for lists without a
// filter.
func TestNoReadShowsAnotherTenant(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	s.fill(t)
	conns := map[string]*roleConn{}
	for _, role := range []rights.Role{rights.User, rights.Viewer} {
		conns[string(role)] = open(t, s.authority, s.server.ClientURL(), someone(role, string(role), "blue", ""))
	}
	named := protocol.Query{Sandbox: "victim"}
	for who, c := range conns {
		for endpoint, queries := range map[string][]protocol.Query{
			protocol.EndpointGet:      {named},
			protocol.EndpointList:     {{}, {Labels: map[string]string{"secret": "green"}}, {Name: "victim"}},
			protocol.EndpointExec:     {{Sandbox: "victim", Exec: "x"}},
			protocol.EndpointExecs:    {named},
			protocol.EndpointExplain:  {named},
			protocol.EndpointEvents:   {named},
			protocol.EndpointOutput:   {{Sandbox: "victim", Exec: "x", Stream: "stdout"}},
			protocol.EndpointBatches:  {named, {Sandbox: "victim", Newest: true}},
			protocol.EndpointChunks:   {{Sandbox: "victim", Exec: "x"}},
			protocol.EndpointUploaded: {{Digest: digestOf("content")}},
			protocol.EndpointAwaited:  {{Images: []string{"docker.io/library/i:latest", "i"}}},
			protocol.EndpointTenant:   {{}},
			protocol.EndpointCheckup:  {{}},
			protocol.EndpointTenants:  {{}},
		} {
			for _, q := range queries {
				reply, err := c.Query(t.Context(), "blue", endpoint, &q)
				if err != nil && (protocol.CodeOf(err) == protocol.NotFound || protocol.CodeOf(err) == protocol.PermissionDenied) {
					continue
				}
				if err != nil {
					t.Errorf("%s, as a %s: %v", endpoint, who, err)
					continue
				}
				data, err := json.Marshal(reply)
				if err != nil {
					t.Fatal(err)
				}
				for _, secret := range []string{"green", "victim", `"awaited"`, `"stored"`, "aGVsbG8"} {
					if strings.Contains(string(data), secret) {
						t.Errorf("%s tells a %s of another tenant: %s", endpoint, who, data)
					}
				}
			}
		}
	}
}

// TestARequestOfAnotherTenantIsNotAnsweredToAStranger sends a request that has the request id and the sandbox id of
// another tenant's request.
func TestARequestOfAnotherTenantIsNotAnsweredToAStranger(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	green, blue := s.tenant(t, "gwen", "green"), s.tenant(t, "anna", "blue")
	secret := sdk.SandboxSpec{Image: "i", Labels: map[string]string{"secret": "green"}}
	if _, err := green.Create(t.Context(), secret, sdk.WithWait(false), sdk.WithID("victim"),
		sdk.WithRequestID("r1")); err != nil {
		t.Fatal(err)
	}
	before := s.stored(t)
	b, err := blue.Create(t.Context(), sdk.SandboxSpec{Image: "other"}, sdk.WithWait(false), sdk.WithID("victim"),
		sdk.WithRequestID("r1"))
	if err != nil {
		t.Fatal(err)
	}
	if info := b.Info(); info.Spec.Labels["secret"] != "" || info.Actor != "anna" || info.Spec.Image == "i" {
		t.Errorf("the stranger's answer is %+v", info)
	}
	if err := b.Delete(t.Context(), sdk.WithWait(false), sdk.WithRequestID("r1-delete")); err != nil {
		t.Fatal(err)
	}
	s.unchanged(t, before, "requests with the same ids", "boxfleet.v1.event.blue.", "$KV.boxfleet_ids.blue.")
}

// TestQueueGroupsTakeNothingFromOthers joins the queue groups of coordinators, and groups on subjects of other clients.
func TestQueueGroupsTakeNothingFromOthers(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	thief := dial(t, s.server, issue(t, s.authority, someone(rights.Viewer, "vera", "green", "")))
	foreign := []string{
		"boxfleet.v1.api.*.*.*", "boxfleet.v1.api.green.gwen.get", "boxfleet.v1.api.green.vera.get",
		"boxfleet.v1.blob.*.*.*.begin", "boxfleet.v1.request.green.>", "$SRV.PING", "_INBOX.green.gwen.>",
	}
	for _, subject := range foreign {
		for _, group := range []string{"q", "coordinators"} {
			if _, err := thief.QueueSubscribe(subject, group, func(*nats.Msg) {}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if refused := thief.refusals(t); len(refused) != 2*len(foreign) {
		t.Errorf("of %d subscriptions the server refuses %q", 2*len(foreign), refused)
	}
	for _, group := range []string{"q", "coordinators", "live"} {
		for _, subject := range []string{"boxfleet.v1.live.green.>", "boxfleet.v1.status"} {
			if _, err := thief.QueueSubscribe(subject, group, func(*nats.Msg) {}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if refused := thief.refusals(t); len(refused) > 0 {
		t.Fatal(refused)
	}
	green := s.tenant(t, "gwen", "green")
	heard := make(chan string, 100)
	stop, err := green.Raw().Conn().Live("green", "*", func(b *protocol.Batch) { heard <- b.Sandbox })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	want := map[string]bool{}
	for i := range 20 {
		b, err := green.Create(t.Context(), sdk.SandboxSpec{Image: "i"}, sdk.WithWait(false),
			sdk.WithID(fmt.Sprint("s", i)))
		if err != nil {
			t.Fatal(err)
		}
		want[b.ID()] = true
	}
	for limit := time.After(15 * time.Second); len(want) > 0; {
		select {
		case id := <-heard:
			delete(want, id)
		case <-limit:
			t.Fatalf("not heard: %q", slices.Sorted(maps.Keys(want)))
		}
	}
}

// TestOddRequestsHarmNobodyElse sends many requests that no client of Boxfleet would send. Other clients still get
// their answers.
func TestOddRequestsHarmNobodyElse(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	hostile := dial(t, s.server, issue(t, s.authority, someone(rights.User, "anna", "blue", "")))
	long := strings.Repeat("x", 2000)
	var odd []*nats.Msg
	for _, subject := range []string{
		"boxfleet.v1.request.blue.anna.create." + long, "boxfleet.v1.request.blue.anna.create.é\x01\x7f",
		"boxfleet.v1.request.blue.anna.delete.{name}", "boxfleet.v1.request.blue.anna.create.$JS",
		"boxfleet.v1.api.blue.anna." + long, "boxfleet.v1.api.blue.anna.get", "boxfleet.v1.api.blue.anna.batches",
		"boxfleet.v1.blob.blue.anna." + long + ".begin", "boxfleet.v1.blob.blue.anna.x.999999999999999999999",
	} {
		for _, data := range []string{
			"", "null", "{}", "[[[[", `{"v":1,"sandbox":{"image":"` + long + `"}}`, strings.Repeat("[", 1<<15), "\x81\xa1",
			`{"v":-1}`, `{"v":1,"sandbox":null,"unknown":1}`,
		} {
			for _, headers := range []nats.Header{
				nil, {"Boxfleet-Request": {long}}, {"Boxfleet-Reply": {"_INBOX.blue.anna." + long}},
				{"Boxfleet-Reply": {"_INBOX.green.gwen.x"}}, {"Content-Type": {long}}, {"X": {strings.Repeat(long, 20)}},
			} {
				odd = append(odd, &nats.Msg{Subject: subject, Data: []byte(data), Header: headers})
			}
		}
	}
	for _, m := range odd {
		if err := hostile.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if refused := hostile.refusals(t); len(refused) > 0 {
		t.Errorf("the server refuses %q: the test shows nothing", refused)
	}
	green := s.tenant(t, "gwen", "green")
	b, err := green.Create(t.Context(), sdk.SandboxSpec{Image: "i"}, sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Refresh(t.Context()); err != nil {
		t.Error(err)
	}
	left, err := sdk.ReadAll(green.List(t.Context()))
	if err != nil || len(left) != 1 {
		t.Errorf("the other tenant has %d sandboxes: %v", len(left), err)
	}
}
