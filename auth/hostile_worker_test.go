package auth_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// siege is a deployment with credentials, in which a coordinator and an honest worker w2 with host HOSTB do their work.
// Another worker, w1 with host HOSTA, is hostile: it sends messages as it likes, with the rights of its credentials.
type siege struct {
	authority *auth.Authority
	server    *testServer
	honest    *roleConn
	operator  *roleConn
	lease     *jetstream.Lease
	hostile   *client
	reader    *reader
	victim    *protocol.Host // the registration of w2
}

// reader reads the stored messages with the rights of an operator. It uses a new inbox for each question.
type reader struct {
	*client
	asked int
}

func (r *reader) inbox() string {
	r.asked++
	return fmt.Sprintf("_INBOX.@olga.%d", r.asked)
}

func besieged(t *testing.T) *siege {
	t.Helper()
	a, server := newAuthority(t)
	url := server.ClientURL()
	runCoordinator(t, open(t, a, url, someone(rights.Coordinator, "c1", "", "")), "c1", jetstream.Assets{})
	s := &siege{authority: a, server: server}
	s.honest = open(t, a, url, someone(rights.Worker, "w2", "", "HOSTB"))
	s.operator = open(t, a, url, someone(rights.Operator, "otto", "", ""))
	s.hostile = dial(t, server, issue(t, a, someone(rights.Worker, "w1", "", "HOSTA")))
	s.reader = &reader{client: dial(t, server, issue(t, a, someone(rights.Operator, "olga", "", "")))}
	if err := s.honest.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	s.lease, err = s.honest.AcquireHost(t.Context(), "HOSTB", jetstream.Holder{Name: "w2", Instance: "i"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.victim = &protocol.Host{Worker: "w2", HostID: "HOSTB", Instance: "i", Token: s.lease.Token(), Slots: 3,
		Healthy: true, SeenAt: time.Now()}
	if err := s.honest.RegisterHost(t.Context(), s.victim); err != nil {
		t.Fatal(err)
	}
	s.eventually(t, "the coordinator knows the honest worker", func() bool { return s.hosts(t)["w2"] != nil })
	return s
}

func (s *siege) eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	eventually.Holds(t, 15*time.Second, what, check)
}

// hosts returns the coordinator's table of hosts, by the name of the worker.
func (s *siege) hosts(t *testing.T) map[string]*protocol.Host {
	t.Helper()
	reply, err := s.operator.Query(t.Context(), protocol.DefaultTenant, protocol.EndpointHosts, &protocol.Query{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*protocol.Host{}
	for _, h := range reply.Hosts {
		if all[h.Worker] != nil {
			t.Errorf("worker %s is listed twice", h.Worker)
		}
		all[h.Worker] = h
	}
	return all
}

// send publishes a message of the hostile worker, and waits until the server has read the message.
func (s *siege) send(t *testing.T, m *nats.Msg) {
	t.Helper()
	if err := s.hostile.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if refused := s.hostile.refusals(t); len(refused) > 0 {
		t.Errorf("the server refuses %q: the test shows nothing", refused)
	}
}

func TestAHostileWorkerCannotTakeTheHostOfAnother(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	key := "$KV." + protocol.BucketWorkers + ".w1"
	register := func(h protocol.Host) {
		t.Helper()
		h.Version, h.Instance, h.Slots, h.Healthy, h.SeenAt = protocol.Version, "x", 1000, true, time.Now()
		s.send(t, &nats.Msg{Subject: key, Data: protocol.Encode(&h)})
	}
	for n, claim := range []protocol.Host{
		{Worker: "w2", HostID: "HOSTB", Token: 1 << 60},
		{Worker: "w2", HostID: "HOSTA", Token: 1 << 60},
		{Worker: "w1", HostID: "HOSTB", Token: 1 << 60},
	} {
		register(claim)
		// The coordinator reads the registrations in order: once it knows the next registration, it has also read the
		// claim.
		s.victim.Slots = 4 + n
		if err := s.honest.RegisterHost(t.Context(), s.victim); err != nil {
			t.Fatal(err)
		}
		s.eventually(t, "the coordinator knows the next registration", func() bool {
			h := s.hosts(t)["w2"]
			return h != nil && h.Slots == s.victim.Slots
		})
		if all := s.hosts(t); len(all) != 1 || all["w2"].HostID != "HOSTB" || all["w2"].Instance != "i" {
			t.Errorf("after the claim %+v, the hosts are %+v", claim, all)
		}
	}
	register(protocol.Host{Worker: "w1", HostID: "HOSTA", Token: 1})
	s.eventually(t, "the coordinator knows the hostile worker", func() bool { return s.hosts(t)["w1"] != nil })
}

// In TestAHostileWorkerLosesAHostThatItClaimedFirst, the coordinator reads the false claim before the honest worker's
// registration.
func TestAHostileWorkerLosesAHostThatItClaimedFirst(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	if err := s.honest.ForgetHost(t.Context(), "w2"); err != nil {
		t.Fatal(err)
	}
	h := protocol.Host{Version: protocol.Version, Worker: "w1", HostID: "HOSTB", Token: 1 << 60, SeenAt: time.Now()}
	s.send(t, &nats.Msg{Subject: "$KV." + protocol.BucketWorkers + ".w1", Data: protocol.Encode(&h)})
	url := s.server.ClientURL()
	runCoordinator(t, open(t, s.authority, url, someone(rights.Coordinator, "c2", "", "")), "c2", jetstream.Assets{})
	if err := s.honest.RegisterHost(t.Context(), s.victim); err != nil {
		t.Fatal(err)
	}
	answers := 0
	s.eventually(t, "both coordinators know the host's worker", func() bool {
		hosts := s.hosts(t)
		if hosts["w1"] == nil && hosts["w2"] != nil && hosts["w2"].HostID == "HOSTB" {
			answers++
		} else {
			answers = 0
		}
		return answers > 20 // many answers in a row, because either coordinator may answer
	})
}

// TestAHostileWorkerCannotNotifyAnother asks the server for a message that the hostile worker stored. The message looks
// like a notification, and the reply subject is the subject of another worker's notifications.
func TestAHostileWorkerCannotNotifyAnother(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	url := s.server.ClientURL()
	deciding := open(t, s.authority, url, someone(rights.Coordinator, "c2", "", ""))
	err := deciding.Open(t.Context())
	if err == nil {
		err = deciding.RegisterWriter(t.Context(), protocol.OwnerCoordinator, "c2", "")
	}
	if err == nil {
		err = s.honest.RegisterWriter(t.Context(), protocol.OwnerWorker, "w2", "HOSTB")
	}
	blue := (&trialConn{Conn: deciding.Conn}).append
	if err == nil {
		err = blue(t.Context(), "c2", "mine",
			protocol.Event{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{
				Spec: &protocol.SandboxSpec{Image: "i"}}},
			protocol.Event{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: "w2", HostID: "HOSTB", Generation: 1}})
	}
	working := s.honest.Journal(jetstream.JournalConfig{Tenant: "blue", Sandbox: "mine", Writer: "w2"})
	if err == nil {
		err = working.Refresh(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan *protocol.Batch, 100)
	stop, err := s.honest.Work("w2", func(_, _ string, b *protocol.Batch) { heard <- b })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := s.honest.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := s.authority.Issue(someone(rights.Worker, "w2", "", "HOSTB"), auth.IssueOptions{Again: true})
	if err != nil {
		t.Fatal(err)
	}
	tapped := dial(t, s.server, again)
	tap, err := tapped.SubscribeSync(protocol.WorkSubject("w2", "blue", "mine"))
	if err != nil {
		t.Fatal(err)
	}
	tapped.refusals(t)
	state, record := working.State()
	forged := &protocol.WorkItem{Version: protocol.Version, Record: record + 1, Signed: true, Batch: &protocol.Batch{
		Version: protocol.Version, Tenant: "blue", Sandbox: "mine", ID: "forged", Writer: "c2",
		Events: []protocol.Event{{Sequence: state.Sandbox.Sequence + 1, Kind: protocol.SandboxDeleteRequested}}}}
	genuine, err := deciding.LastBatch(t.Context(), "blue", "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []nats.Header{nil, {protocol.HeaderSignature: {genuine.Proof.Signature.String()}}} {
		for _, query := range []string{`{"last_by_subj":%q,"no_hdr":true}`, `{"last_by_subj":%q}`} {
			before, err := deciding.LastRecord(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s.send(t, &nats.Msg{Subject: protocol.AppendSubject("w1", "blue", "trick"), Header: header,
				Data: protocol.Encode(forged)})
			// send returns when the server has read the message, perhaps before the server has stored it. Wait, so that
			// the query below finds the message.
			s.eventually(t, "the notification is stored", func() bool {
				last, err := deciding.LastRecord(t.Context())
				return err == nil && last > before
			})
			s.send(t, &nats.Msg{Subject: "$JS.API.DIRECT.GET." + protocol.StreamEvents,
				Reply: protocol.WorkSubject("w2", "blue", "mine"),
				Data:  fmt.Appendf(nil, query, protocol.EventSubject("blue", "trick"))})
			eventually.Holds(t, 10*time.Second, "the server sends the answer to the other worker", func() bool {
				m, err := tap.NextMsg(time.Second)
				return err == nil && strings.Contains(string(m.Data), "forged")
			})
		}
	}
	if err := blue(t.Context(), "c2", "mine", protocol.Event{Kind: protocol.SandboxDeleteRequested}); err != nil {
		t.Fatal(err)
	}
	if genuine, err = deciding.LastBatch(t.Context(), "blue", "mine"); err == nil {
		err = deciding.Notify("w2", genuine)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the worker believes the coordinator", func() bool {
		select {
		case b := <-heard:
			if b != nil && b.ID == "forged" {
				t.Errorf("the worker believes the notification %+v", b)
			}
			return b != nil && b.Record == genuine.Record
		default:
			return false
		}
	})
}
