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

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// watched has the streams whose messages a siege compares. Coordinators write to the other streams by themselves.
var watched = []string{
	protocol.StreamEvents, protocol.StreamLogs, protocol.StreamDead, "KV_" + protocol.BucketLocks,
	"KV_" + protocol.BucketWorkers, "KV_" + protocol.BucketImages, "KV_" + protocol.BucketHosts,
	"KV_" + protocol.BucketIDs, "KV_" + protocol.BucketNames, "OBJ_" + protocol.BucketBlobs,
	"OBJ_" + protocol.BucketImageFiles,
}

// fill stores a message of the honest worker or of tenant green on each subject that an attacker would like to change.
func (s *siege) fill(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	green, err := sdk.Connect(ctx, sdk.Options{Conn: s.operator.Conn, Tenant: "green"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(green.Close)
	if _, err := green.Create(ctx, sdk.SandboxSpec{Image: "i", Labels: map[string]string{"secret": "green"}},
		sdk.WithWait(false), sdk.WithID("victim"), sdk.WithName("victim")); err != nil {
		t.Fatal(err)
	}
	done, err := s.honest.PublishOutput("HOSTB", "green", "victim", "x",
		jetstream.Chunk{Stream: jetstream.Stdout, Data: []byte("hello"), NextStdout: 5})
	if err == nil {
		err = <-done
	}
	for _, do := range []func() error{
		func() error { return s.honest.PublishImages(ctx, &protocol.HostImages{Worker: "w2"}) },
		func() error { return s.operator.WantImage(ctx, &protocol.WantedImage{Ref: "i:1", Digest: "sha256-x"}) },
		func() error { return s.operator.PutImageFile(ctx, "sha256-x", strings.NewReader("content")) },
		func() error {
			return s.operator.TenantReads("green").Upload(ctx, digestOf("content"), strings.NewReader("content"))
		},
		func() error {
			return second(s.operator.ChangeOperatorIntent(ctx, "HOSTB", func(w *protocol.OperatorIntent) error {
				w.Worker = "w2"
				return nil
			}))
		},
	} {
		if err == nil {
			err = do()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// stored returns the messages of the watched streams, by subject.
func (s *siege) stored(t *testing.T) map[string]string {
	t.Helper()
	all, inbox := map[string]string{}, s.reader.inbox
	for _, stream := range watched {
		var info struct {
			State struct{ Subjects map[string]int }
		}
		answer := ask(t, s.reader.client, inbox(), "$JS.API.STREAM.INFO."+stream, `{"subjects_filter":">"}`)
		if err := json.Unmarshal([]byte(answer), &info); err != nil {
			t.Fatal(err)
		}
		for subject, count := range info.State.Subjects {
			last := ask(t, s.reader.client, inbox(), "$JS.API.STREAM.MSG.GET."+stream,
				fmt.Sprintf(`{"last_by_subj":%q}`, subject))
			all[subject] = fmt.Sprintf("%d messages, the last: %s", count, last)
		}
	}
	return all
}

// unchanged compares the stored messages with the messages that were stored before. Messages may have changed on
// subjects that begin with a prefix in except.
func (s *siege) unchanged(t *testing.T, before map[string]string, what string, except ...string) {
	t.Helper()
	after := s.stored(t)
	for _, subject := range slices.Sorted(maps.Keys(before)) {
		if !isBelow(subject, except) && after[subject] != before[subject] {
			t.Errorf("%s: %s was\n%.300s\nand is\n%.300s", what, subject, before[subject], after[subject])
		}
	}
	for _, subject := range slices.Sorted(maps.Keys(after)) {
		if _, was := before[subject]; !was && !isBelow(subject, except) {
			t.Errorf("%s: stored %s: %.300s", what, subject, after[subject])
		}
	}
}

func isBelow(subject string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(subject, p) })
}

// hostileHeaders has the headers with which a publisher asks a JetStream server to do more than store a message.
func hostileHeaders(victim string) []map[string]string {
	at := "@at " + time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
	return []map[string]string{
		{"Nats-Rollup": "all"},
		{"Nats-Rollup": "sub"},
		{"Nats-TTL": "1s"},
		{"Nats-TTL": "never"},
		{"Nats-Schedule": at, "Nats-Schedule-Target": victim},
		{"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": victim, "Nats-Schedule-Source": victim},
		{"Nats-Scheduler": victim, "Nats-Schedule-Next": "purge"},
		{"Nats-Incr": "1"},
		{"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
		{"Nats-Batch-Id": "c", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "eob"},
		{"Nats-Stream-Source": "BOXFLEET_EVENTS 1 > > boxfleet.v1.event.green.victim"},
		{"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Expected-Last-Subject-Sequence-Subject": victim},
		{"Nats-Expected-Last-Subject-Sequence": "1", "Nats-Expected-Last-Subject-Sequence-Subject": ">"},
		{"Nats-Marker-Reason": "MaxAge"},
		{"KV-Operation": "PURGE"},
		{"KV-Operation": "DEL"},
		{"Nats-Msg-Id": "1"},
		{"Nats-Stream": "BOXFLEET_EVENTS", "Nats-Subject": victim, "Nats-Sequence": "1"},
		{"Nats-Request-Info": `{"acc":"boxfleet"}`},
		{"Boxfleet-Reply": victim},
	}
}

// TestNoHeaderReachesFurtherThanItsSubject publishes a message with each header to each subject that a user or worker
// may publish to and that a stream stores.
func TestNoHeaderReachesFurtherThanItsSubject(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	s.fill(t)
	user := dial(t, s.server, issue(t, s.authority, someone(rights.User, "anna", "blue", "")))
	before := s.stored(t)
	victims := slices.Sorted(maps.Keys(before))
	if len(victims) < len(watched)-2 { // no dead letter is stored, and the hostile worker has not registered
		t.Fatalf("too little to attack: %q", victims)
	}
	own := []string{"boxfleet.v1.dead.blue.create.mine", "$KV.boxfleet_ids.blue.mine", "boxfleet.v1.event.blue.mine"}
	for _, from := range []struct {
		client  *client
		subject string
		own     string // a subject that the message may change, or ""
	}{
		{user, "boxfleet.v1.request.blue.anna.create.mine", ""},
		{user, "boxfleet.v1.blob.blue.anna." + digestOf("x") + ".begin", ""},
		{user, "boxfleet.v1.api.blue.anna.list", ""},
		{s.hostile, "boxfleet.v1.append.w1.blue.mine", "boxfleet.v1.event.blue.mine"},
		{s.hostile, "boxfleet.v1.out.HOSTA.blue.mine.x", "boxfleet.v1.out.HOSTA.blue.mine.x"},
		{s.hostile, "$KV.boxfleet_locks.host.HOSTA", "$KV.boxfleet_locks.host.HOSTA"},
		{s.hostile, "$KV.boxfleet_workers.w1", "$KV.boxfleet_workers.w1"},
		{s.hostile, "$KV.boxfleet_images.host.w1", "$KV.boxfleet_images.host.w1"},
		{s.hostile, "boxfleet.v1.heartbeat.w1", ""},
	} {
		if from.own != "" {
			own = append(own, from.own)
		}
		for _, victim := range victims {
			for _, headers := range hostileHeaders(victim) {
				m := nats.NewMsg(from.subject)
				m.Data = []byte(`{"v":1,"sandbox":{"image":"i"}}`)
				for key, value := range headers {
					m.Header[key] = []string{value}
				}
				if err := from.client.PublishMsg(m); err != nil {
					t.Fatal(err)
				}
			}
		}
		if refused := from.client.refusals(t); len(refused) > 0 {
			t.Errorf("the server refuses %q: the test shows nothing", refused)
		}
		s.unchanged(t, before, from.subject, own...)
	}
}

// TestNobodyTracesToAForeignSubject asks the server to send the trace of a message to foreign subjects.
func TestNobodyTracesToAForeignSubject(t *testing.T) {
	t.Parallel()
	s := besieged(t)
	a := s.authority
	listener := dial(t, s.server, issue(t, a, someone(rights.User, "gwen", "green", "")))
	heard, err := listener.SubscribeSync("_INBOX.green.gwen.>")
	if err != nil {
		t.Fatal(err)
	}
	listener.refusals(t)
	before := s.stored(t)
	for name, from := range map[string]struct {
		client  *client
		subject string
	}{
		"user": {dial(t, s.server, issue(t, a, someone(rights.User, "anna", "blue", ""))),
			"boxfleet.v1.request.blue.anna.create.x"},
		"viewer": {dial(t, s.server, issue(t, a, someone(rights.Viewer, "vera", "blue", ""))),
			"boxfleet.v1.api.blue.vera.list"},
		"worker": {s.hostile, "boxfleet.v1.heartbeat.w1"},
	} {
		targets := []string{
			"_INBOX.green.gwen.x", "_INBOX.@c1.x", "$KV.boxfleet_locks.host.HOSTB", "boxfleet.v1.append.w2.green.x",
			"boxfleet.v1.request.green.gwen.delete.x", "boxfleet.v1.live.green.x", "$JS.API.STREAM.DELETE.BOXFLEET_EVENTS",
			"$SYS.REQ.CLAIMS.UPDATE",
		}
		if name != "worker" { // workers answer requests for streams there; the server makes the rest of the subject random
			targets = append(targets, "_R_.x")
		}
		for _, target := range targets {
			for _, header := range []string{"Nats-Trace-Dest", "nats-trace-dest"} {
				m := nats.NewMsg(from.subject)
				m.Header[header] = []string{target}
				m.Header["Nats-Trace-Only"] = []string{"true"}
				if err := from.client.PublishMsg(m); err != nil {
					t.Fatal(err)
				}
			}
		}
		if refused := from.client.refusals(t); len(refused) < len(targets) {
			t.Errorf("%s: of traces to %d subjects, the server refuses only %q", name, len(targets), refused)
		}
	}
	if m, err := heard.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("a trace arrived: %s", m.Data)
	}
	s.unchanged(t, before, "traces", "boxfleet.v1.event.blue.x", "boxfleet.v1.dead.blue.", "$KV.boxfleet_ids.blue.")
}
