package coordinator

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// read sends a query in JSON to an endpoint, and returns the answer in its wire form.
func (w *wire) read(endpoint, body string) (reply map[string]any) {
	w.t.Helper()
	m := nats.NewMsg(protocol.APISubject("default", endpoint))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentJSON)
	m.Data = []byte(body)
	answer, err := w.nc.RequestMsg(m, 10*time.Second)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal(answer.Data, &reply); err != nil {
		w.t.Fatalf("%s: %v", answer.Data, err)
	}
	return reply
}

func (d *deployment) mustQuery(endpoint string, q protocol.Query) *protocol.Reply {
	d.t.Helper()
	r, err := d.conn.Query(d.t.Context(), "default", endpoint, &q)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

func wantCode(t *testing.T, err error, code protocol.Code, reason, field string) {
	t.Helper()
	if e := protocol.AsError(err); e == nil || e.Code != code || e.Reason != reason || e.Field != field {
		t.Errorf("want the error %s (%s) about field %q, got %v", code, reason, field, err)
	}
}

func TestTheHistoryIsReadInPages(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	d.ready("a")
	d.ranExecs("a", 0, 20)
	last := d.handle("a").Sequence
	for _, limit := range []int{1, 7, 1000} {
		next, pages := uint64(0), 0
		for seen := uint64(0); ; pages++ {
			r := d.mustQuery(protocol.EndpointEvents, protocol.Query{Sandbox: "a", From: next, Limit: limit})
			if r.Sequence != last || r.History.Oldest != 1 || len(r.History.Events) > limit {
				t.Fatalf("a page has %d events; the oldest event is %d, and the last %d", len(r.History.Events), r.History.Oldest,
					r.Sequence)
			}
			for _, e := range r.History.Events {
				if seen++; e.Sequence != seen || e.Sandbox != "a" || e.Kind == "" {
					t.Fatalf("the page has event %+v in place of event %d", e, seen)
				}
			}
			if next = r.History.Next; next != seen+1 {
				t.Fatalf("after event %d the next page begins at %d", seen, next)
			}
			if len(r.History.Events) == 0 {
				break
			}
		}
		if want := (int(last) + limit - 1) / limit; pages != want || next != last+1 {
			t.Errorf("%d pages with limit %d, and then event %d is next; want %d pages and event %d", pages, limit, next,
				want, last+1)
		}
	}
	_, err := d.conn.Query(t.Context(), "default", protocol.EndpointEvents,
		&protocol.Query{Sandbox: "a", From: last + 2})
	wantCode(t, err, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd, "from")
	_, err = d.conn.Query(t.Context(), "default", protocol.EndpointEvents, &protocol.Query{Sandbox: "none"})
	wantCode(t, err, protocol.NotFound, "", "")
	_, err = d.conn.Query(t.Context(), "other", protocol.EndpointEvents, &protocol.Query{Sandbox: "a"})
	wantCode(t, err, protocol.NotFound, "", "")

	w := d.wire()
	page := w.read(protocol.EndpointEvents,
		fmt.Sprintf(`{"v":1,"sandbox":"a","from":%d}`, last+1))["history"].(map[string]any)
	if events, there := page["events"].([]any); !there || len(events) != 0 || page["next"] != float64(last+1) ||
		page["oldest"] != 1.0 {
		t.Errorf("the page behind the last event is %v", page)
	}
	page = w.read(protocol.EndpointEvents, `{"v":1,"sandbox":"a","limit":1}`)["history"].(map[string]any)
	if e := page["events"].([]any)[0].(map[string]any); e["seq"] != 1.0 || e["kind"] != "sandbox.accepted" {
		t.Errorf("the first event is %v", e)
	}
}

// Pages include events in segments, and say which events are no longer kept.
func TestPagesOfALongHistory(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.run(Config{Name: "c1", Timing: Timing{Scan: 20 * time.Millisecond, Snapshot: 20 * time.Millisecond,
		Compact: 20 * time.Millisecond},
		Histories: Histories{Keep: 8, MinBatches: 10}})()
	d.ready("a")
	d.readsSegments(true)
	d.ranExecs("a", 0, 20)
	d.eventually("the older part of the history is in segments", func() bool { return d.inLog("a") < 20 })
	seen := uint64(0)
	for next := uint64(1); ; {
		h := d.mustQuery(protocol.EndpointEvents, protocol.Query{Sandbox: "a", From: next, Limit: 6}).History
		for _, e := range h.Events {
			if seen++; e.Sequence != seen {
				t.Fatalf("the page has event %d in place of event %d", e.Sequence, seen)
			}
		}
		if next = h.Next; len(h.Events) == 0 {
			break
		}
		if h.Oldest != 1 {
			t.Errorf("the oldest event is %d, want 1", h.Oldest)
		}
	}
	if last := d.handle("a").Sequence; seen != last {
		t.Errorf("the pages have %d of %d events", seen, last)
	}
	d.emptied("KV_" + protocol.BucketHistories) // the segments are lost
	h := d.mustQuery(protocol.EndpointEvents, protocol.Query{Sandbox: "a", Limit: 2}).History
	if h.Oldest < 2 || len(h.Events) != 2 || h.Events[0].Sequence != h.Oldest {
		t.Errorf("the oldest event kept is %d, and the page has %+v", h.Oldest, h.Events)
	}
	_, err := d.conn.Query(t.Context(), "default", protocol.EndpointEvents,
		&protocol.Query{Sandbox: "a", From: h.Oldest - 1})
	wantCode(t, err, protocol.OutOfRange, protocol.ReasonSequenceNotKept, "from")
}

func TestAPageOfEventsFitsIntoOneMessage(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	d.ready("a")
	stdin := []byte(strings.Repeat("\x00", 120<<10))
	for i := range 8 {
		x := fmt.Sprint("x", i)
		if r := d.request(protocol.VerbExec, "a", x,
			protocol.Request{ExecID: x, Exec: &protocol.ExecSpec{Command: []string{"true"},
				Stdin: stdin}}); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	w := d.wire()
	last, next, pages := d.handle("a").Sequence, 1.0, 0
	for ; next <= float64(last); pages++ {
		reply := w.read(protocol.EndpointEvents, fmt.Sprintf(`{"v":1,"sandbox":"a","from":%v}`, next))
		page, ok := reply["history"].(map[string]any)
		if !ok || page["next"] == next {
			t.Fatalf("page %d from %v: %v", pages, next, reply["error"])
		}
		next = page["next"].(float64)
	}
	if pages < 2 {
		t.Errorf("the history takes %d page, want several", pages)
	}
}

// outputOf reads a stream of output page by page in JSON.
func (w *wire) outputOf(fields, stream string, limit int) (text string, last map[string]any) {
	w.t.Helper()
	for offset := 0; ; {
		reply := w.read(protocol.EndpointOutput,
			fmt.Sprintf(`{"v":1,"sandbox":"a",%s"stream":%q,"offset":%d,"limit":%d}`, fields, stream, offset, limit))
		page, ok := reply["output"].(map[string]any)
		if !ok {
			w.t.Fatalf("%v", reply)
		}
		data, err := base64.StdEncoding.DecodeString(page["data"].(string))
		if err != nil {
			w.t.Fatal(err)
		}
		if text += string(data); len(data) == 0 {
			return text, page
		}
		offset = int(page["next"].(float64))
	}
}

func TestOutputIsReadInJSONFromTheLogAndFromEvents(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	d.create("a", protocol.SandboxSpec{Image: "i", Command: []string{"serve"},
		RequiredServices: protocol.Services{"db": {Image: "i"}}})
	d.begin("a")
	for _, x := range []string{"short", "long", "silent"} {
		if r := d.exec("a", x); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	publish := func(log, stream, text string) {
		t.Helper()
		k := jetstream.Chunk{Stream: stream, Data: []byte(text), NextStdout: int64(len(text))}
		if stream == jetstream.Stderr {
			k.NextStdout, k.NextStderr = 0, int64(len(text))
		}
		ack, err := d.conn.PublishOutput("h1", "default", "a", log, k)
		if err == nil {
			err = <-ack
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	started := func(x string) protocol.Event {
		return protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: x, Boot: "b"}}
	}
	w := d.wire()
	d.append(d.conn, "a", started("short"), started("long"), started("silent"))
	publish("long", "stdout", "hello, world")
	publish(protocol.PrimaryLog, "stdout", "serving")
	publish(protocol.ServiceLog("db"), "stderr", "querying")
	text, page := w.outputOf(`"exec":"long",`, "stdout", 5)
	if text != "hello, world" || page["ended"] != nil || page["end"] != 12.0 || page["oldest"] != 0.0 {
		t.Errorf("while the exec runs, its output is %q, and the last page %v", text, page)
	}
	zero := 0
	d.append(d.conn, "a",
		protocol.Event{Kind: protocol.ExecFinished,
			Exec: &protocol.ExecDetails{ID: "short", ExitCode: &zero, Inline: true, StdoutBytes: 3,
				Stdout: []byte("hi\n"), StderrBytes: 1, Stderr: []byte{0xff}}},
		protocol.Event{Kind: protocol.ExecFinished,
			Exec: &protocol.ExecDetails{ID: "long", ExitCode: &zero, StdoutBytes: 12, Truncated: true}},
		protocol.Event{Kind: protocol.ExecFinished,
			Exec: &protocol.ExecDetails{ID: "silent", ExitCode: &zero, Inline: true}})
	for _, c := range []struct {
		fields, stream, want string
		ended, truncated     any
	}{
		{`"exec":"short",`, "stdout", "hi\n", true, nil},
		{`"exec":"short",`, "stderr", "\xff", true, nil},
		{`"exec":"long",`, "stdout", "hello, world", true, true},
		{`"exec":"long",`, "stderr", "", true, true},
		{`"exec":"silent",`, "stdout", "", true, nil},
		{``, "stdout", "serving", nil, nil},
		{`"service":"db",`, "stderr", "querying", nil, nil},
		{`"service":"db",`, "stdout", "", nil, nil},
	} {
		for _, limit := range []int{2, 1000} {
			text, page := w.outputOf(c.fields, c.stream, limit)
			if text != c.want || page["ended"] != c.ended || page["truncated"] != c.truncated ||
				page["end"] != float64(len(c.want)) || page["stream"] != c.stream {
				t.Errorf("the output of %s %s is %q, and the last page %v", c.fields, c.stream, text, page)
			}
		}
	}
	r := d.mustQuery(protocol.EndpointOutput, protocol.Query{Sandbox: "a", Exec: "short", Stream: "stderr"})
	if r.Output == nil || string(r.Output.Data) != "\xff" {
		t.Errorf("read in msgpack, the output is %+v", r.Output)
	}
	for field, q := range map[string]protocol.Query{
		"stream":       {Sandbox: "a", Exec: "long", Stream: "stdin"},
		"offset":       {Sandbox: "a", Exec: "long", Offset: -1},
		"limit":        {Sandbox: "a", Exec: "long", Limit: protocol.MaxOutputPage + 1},
		"service":      {Sandbox: "a", Exec: "long", Service: "db"},
		"exec":         {Sandbox: "a", Exec: "a b"},
		"min_sequence": {Sandbox: "a", Exec: "long", MinSequence: 1},
	} {
		_, err := d.conn.Query(t.Context(), "default", protocol.EndpointOutput, &q)
		wantCode(t, err, protocol.InvalidArgument, "", field)
	}
	_, err := d.conn.Query(t.Context(), "default", protocol.EndpointOutput,
		&protocol.Query{Sandbox: "a", Service: "web"})
	wantCode(t, err, protocol.InvalidArgument, "", "service")
	for _, x := range []string{"short", "long"} {
		_, err := d.conn.Query(t.Context(), "default", protocol.EndpointOutput,
			&protocol.Query{Sandbox: "a", Exec: x, Offset: 13})
		wantCode(t, err, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd, "offset")
	}
	_, err = d.conn.Query(t.Context(), "default", protocol.EndpointOutput, &protocol.Query{Sandbox: "a", Exec: "none"})
	wantCode(t, err, protocol.NotFound, "", "")
}

// The number of concurrent reads is limited, like the number of reads of past execs. A read that gets no slot is
// refused.
func TestReadsOfEventsAndOutputAreLimited(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	var c *coordinator
	defer d.run(Config{Name: "c1", made: func(made *coordinator) { c = made }})()
	d.ready("a")
	if r := d.exec("a", "x"); r.Error != nil {
		t.Fatal(r.Error)
	}
	for i := range pagesAtOnce {
		if _, err := c.reads.paging.take(t.Context(), fmt.Sprint("tenant", i)); err != nil {
			t.Fatal(err)
		}
	}
	refused := make(chan error, 2)
	for endpoint, q := range map[string]protocol.Query{protocol.EndpointEvents: {Sandbox: "a"},
		protocol.EndpointOutput: {Sandbox: "a", Exec: "x"}} {
		go func() {
			_, err := d.conn.Query(t.Context(), "default", endpoint, &q)
			refused <- err
		}()
	}
	for range 2 {
		wantCode(t, <-refused, protocol.ResourceExhausted, protocol.ReasonTooManyReads, "")
	}
}
