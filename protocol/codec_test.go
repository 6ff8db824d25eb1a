package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

func TestEveryWireTypeSurvivesMsgpackAndJSON(t *testing.T) {
	t.Run("Request", roundTrip[Request])
	t.Run("Reply", roundTrip[Reply])
	t.Run("Query", roundTrip[Query])
	t.Run("Batch", roundTrip[Batch])
	t.Run("WorkItem", roundTrip[WorkItem])
	t.Run("Host", roundTrip[Host])
	t.Run("Heartbeat", roundTrip[Heartbeat])
	t.Run("Reservation", roundTrip[Reservation])
	t.Run("State", roundTrip[State])
}

// fromClient holds the types that clients send, which are decoded strictly.
var fromClient = map[reflect.Type]bool{reflect.TypeFor[Request](): true, reflect.TypeFor[Query](): true,
	reflect.TypeFor[StreamOpen](): true}

func roundTrip[T any](t *testing.T) {
	t.Parallel()
	values := anyValue[T]()
	rapid.Check(t, func(t *rapid.T) {
		want := values.Draw(t, "value")
		for _, contentType := range []string{ContentMsgpack, ContentJSON} {
			data := EncodeAs(contentType, &want)
			var got T
			if err := DecodeAs(contentType, data, &got); err != nil {
				t.Fatalf("%s: decode: %v\n%q", contentType, err, data)
			}
			if !same(want, got) {
				t.Fatalf("%s: encoded %s\ndecoded %s", contentType, show(want), show(got))
			}
			if !fromClient[reflect.TypeFor[T]()] {
				continue
			}
			var strict T
			if err := DecodeStrict(contentType, data, &strict); err != nil {
				t.Fatalf("%s: strict decode: %v\n%q", contentType, err, data)
			}
			if !same(want, strict) {
				t.Fatalf("%s: encoded %s\nstrictly decoded %s", contentType, show(want), show(strict))
			}
		}
	})
}

func TestMsgpackAndJSONOmitTheSameFields(t *testing.T) {
	for _, v := range []any{
		&Request{}, &Reply{}, &Query{}, &Batch{}, &Event{}, &SandboxDetails{}, &ExecDetails{}, &WorkItem{},
		&Host{}, &Heartbeat{}, &Reservation{}, &State{}, &Sandbox{}, &Exec{}, &SandboxSpec{}, &ExecSpec{}, &Explanation{},
	} {
		var fromMsgpack, fromJSON map[string]any
		if err := msgpack.Unmarshal(Encode(v), &fromMsgpack); err != nil {
			t.Fatalf("%T: %v", v, err)
		}
		if err := DecodeAs(ContentJSON, EncodeAs(ContentJSON, v), &fromJSON); err != nil {
			t.Fatalf("%T: %v", v, err)
		}
		for name := range fromMsgpack {
			if _, ok := fromJSON[name]; !ok {
				t.Errorf("%T: msgpack encodes the empty field %q", v, name)
			}
		}
		for name := range fromJSON {
			if _, ok := fromMsgpack[name]; !ok {
				t.Errorf("%T: JSON encodes the empty field %q", v, name)
			}
		}
	}
}

func TestInternalFieldsAreNotEncoded(t *testing.T) {
	for _, contentType := range []string{ContentMsgpack, ContentJSON} {
		bare, filled := batchOf(Event{Sequence: 1}), batchOf(Event{Sequence: 1})
		filled.Record = 42
		if a, b := EncodeAs(contentType, bare), EncodeAs(contentType, filled); string(a) != string(b) {
			t.Errorf("%s: Record is encoded: %q", contentType, b)
		}
	}
}

func TestTimesKeepTheirNanoseconds(t *testing.T) {
	at := time.Date(2031, 2, 3, 4, 5, 6, 123456789, time.FixedZone("", 5400))
	for _, contentType := range []string{ContentMsgpack, ContentJSON} {
		var r Reservation
		if err := DecodeAs(contentType, EncodeAs(contentType, &Reservation{Time: at}), &r); err != nil {
			t.Fatal(err)
		}
		if !r.Time.Equal(at) {
			t.Errorf("%s: encoded %s, decoded %s", contentType, at, r.Time)
		}
	}
}

func TestP9_UnknownFieldIsRejectedByName(t *testing.T) {
	for name, tc := range map[string]struct {
		value map[string]any
		field string
	}{
		"top":         {map[string]any{"v": 1, "sandbx": 1}, "sandbx"},
		"in a struct": {map[string]any{"v": 1, "sandbox": map[string]any{"image": "i", "imagee": "x"}}, "sandbox.imagee"},
		"in a list": {map[string]any{"v": 1, "sandbox": map[string]any{"mounts": []any{map[string]any{"sauce": "/"}}}},
			"sandbox.mounts[0].sauce"},
		"empty name":   {map[string]any{"v": 1, "": 1}, ""},
		"quoted name":  {map[string]any{"v": 1, `a"b`: 1}, `a"b`},
		"control name": {map[string]any{"v": 1, "a\nb": 1}, "a\nb"},
	} {
		for _, contentType := range []string{ContentMsgpack, ContentJSON} {
			t.Run(name+"/"+contentType, func(t *testing.T) {
				data := EncodeAs(contentType, tc.value)
				wantError(t, DecodeStrict(contentType, data, &Request{}), InvalidArgument, ReasonUnknownField, tc.field)
				if err := DecodeAs(contentType, data, &Request{}); err != nil {
					t.Errorf("lenient decoding rejected an unknown field: %v", err)
				}
			})
		}
	}
}

func TestTrailingDataIsRejected(t *testing.T) {
	for _, contentType := range []string{ContentMsgpack, ContentJSON} {
		once := EncodeAs(contentType, &Request{Version: 1})
		data := append(append([]byte{}, once...), once...)
		wantError(t, DecodeStrict(contentType, data, &Request{}), InvalidArgument, ReasonUndecodable, "")
		wantError(t, DecodeAs(contentType, data, &Request{}), InvalidArgument, ReasonUndecodable, "")
	}
}

func TestUnknownContentTypeIsRejected(t *testing.T) {
	wantError(t, DecodeStrict("text/yaml", []byte("v: 1"), &Request{}), InvalidArgument, ReasonUndecodable,
		HeaderContentType)
	if err := DecodeStrict("", Encode(&Request{Version: 1}), &Request{}); err != nil {
		t.Errorf("without a header, want msgpack: %v", err)
	}
}

func TestEveryTruncationIsATypedError(t *testing.T) {
	for _, contentType := range []string{ContentMsgpack, ContentJSON} {
		for name, v := range goldenValues() {
			data := EncodeAs(contentType, v)
			for n := range data {
				into := reflect.New(reflect.TypeOf(v).Elem()).Interface()
				var e *Error
				if err := DecodeAs(contentType, data[:n], into); !errors.As(err, &e) || e.Code != InvalidArgument {
					t.Fatalf("%s %s cut at %d of %d: want invalid_argument, got %v", name, contentType, n, len(data), err)
				}
			}
		}
	}
}

// A short message can declare four billion entries; decoding must not allocate memory for the declared entries.
func TestF21_DeclaredLengthCostsNoMemory(t *testing.T) {
	long := func(code byte) []byte { return binary.BigEndian.AppendUint32([]byte{code}, 0xfffffff0) }
	key := func(names ...string) []byte {
		var out []byte
		for _, name := range names {
			out = append(append(out, 0x81), Encode(name)...)
		}
		return out
	}
	for name, tc := range map[string]struct {
		data []byte
		into any
	}{
		"events":          {append(key("events"), long(0xdd)...), &Batch{}},
		"mounts":          {append(key("sandbox", "mounts"), long(0xdd)...), &Request{}},
		"strings":         {append(key("states"), long(0xdd)...), &Query{}},
		"string map":      {append(key("labels"), long(0xdf)...), &Query{}},
		"map of structs":  {append(key("execs"), long(0xdf)...), &State{}},
		"string":          {append(key("page"), long(0xdb)...), &Query{}},
		"bytes":           {append(key("exec", "stdin"), long(0xc6)...), &Request{}},
		"struct":          {long(0xdf), &Query{}},
		"unknown list":    {append(key("new"), long(0xdd)...), &Query{}},
		"unknown bytes":   {append(key("new"), long(0xc6)...), &Query{}},
		"unknown ext":     {append(key("new"), append(long(0xc9), 5)...), &Query{}},
		"time":            {append(key("time"), append(long(0xc9), 0xff)...), &Reservation{}},
		"size":            {append(key("memory"), long(0xdb)...), &Host{}},
		"duration":        {append(key("sandbox", "grace"), long(0xdb)...), &Request{}},
		"nested too deep": {[]byte(strings.Repeat("\x91", 1<<20) + "\xc0"), &Query{}},
		"unknown deep":    {append(key("new"), strings.Repeat("\x91", 1<<20)+"\xc0"...), &Host{}},
		"map in an ext":   {append(key("labels"), "\xd7\x05\xdf\xff\xff\xff\xf0abc"...), &Query{}},
		"map in a time":   {append(key("sandbox", "env"), "\xd7\xff\xdf\xff\xff\xff\xf0abc"...), &Request{}},
	} {
		t.Run(name, func(t *testing.T) {
			decode := func() error { return Decode(tc.data, tc.into) }
			if fromClient[reflect.TypeOf(tc.into).Elem()] {
				decode = func() error { return DecodeStrict(ContentMsgpack, tc.data, tc.into) }
			}
			var err error
			used := allocated(func() { err = decode() })
			var e *Error
			if !errors.As(err, &e) || e.Reason != ReasonUndecodable {
				t.Errorf("want undecodable, got %v", err)
			}
			if used > 1<<20 {
				t.Errorf("%d bytes of input cost %d bytes of memory", len(tc.data), used)
			}
		})
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestNewerVersionIsRejected(t *testing.T) {
	for v, ok := range map[int]bool{-1: false, 0: false, Version: true, Version + 1: false} {
		err := CheckVersion(v)
		if ok && err != nil {
			t.Errorf("version %d: %v", v, err)
		}
		if !ok {
			wantError(t, err, FailedPrecondition, ReasonUnsupportedVersion, "v")
		}
	}
}

// Errors name a mismatched field by its path in the payload and never mention Go types.
func TestWrongTypeNamesTheField(t *testing.T) {
	type object = map[string]any
	inSandbox := func(name string, value any) object {
		return object{"v": 1, "sandbox": object{"image": "i", name: value}}
	}
	for _, c := range []struct {
		value   any
		field   string
		message string
	}{
		{object{"v": "x"}, "v", `must be a whole number, got the text "x"`},
		{object{"v": 1.5}, "v", "must be a whole number, got 1.5"},
		{object{"v": 1, "sandbox": 7}, "sandbox", "must be an object, got 7"},
		{inSandbox("image", 7), "sandbox.image", "must be text, got 7"},
		{inSandbox("image", object{"a": 1}), "sandbox.image", "must be text, got an object"},
		{inSandbox("command", "ls -l"), "sandbox.command", `must be a list, got the text "ls -l"`},
		{inSandbox("command", []any{"ls", 1}), "sandbox.command[1]", "must be text, got 1"},
		{inSandbox("env", []any{"A=1"}), "sandbox.env", "must be an object, got a list"},
		{inSandbox("env", object{"A": true}), "sandbox.env.A", "must be text, got true"},
		{inSandbox("grace", "soon"), "sandbox.grace", `must be text such as "90s" or "1h30m", got the text "soon"`},
		{inSandbox("ttl", 90), "sandbox.ttl", `must be text such as "90s" or "1h30m", got 90`},
		{inSandbox("memory", "much"), "sandbox.memory",
			`must be bytes, as a whole number, or text such as "512m" or "4GiB", got the text "much"`},
		{inSandbox("memory", 0.5), "sandbox.memory",
			`must be bytes, as a whole number, or text such as "512m" or "4GiB", got 0.5`},
		{inSandbox("cpu", "two"), "sandbox.cpu", `must be a number, got the text "two"`},
		{inSandbox("pids", "9"), "sandbox.pids", `must be a whole number, got the text "9"`},
		{inSandbox("read_only", "yes"), "sandbox.read_only", `must be true or false, got the text "yes"`},
		{inSandbox("tmpfs", []any{object{"target": "/t", "size": "x"}}), "sandbox.tmpfs[0].size", ""},
		{inSandbox("mounts", []any{object{"target": "/t"}, object{"target": 3}}), "sandbox.mounts[1].target", ""},
		{inSandbox("required_services", object{"db": object{"image": 7}}), "sandbox.required_services.db.image", ""},
		{inSandbox("required_services", object{"db": object{"healthcheck": object{"interval": 1}}}),
			"sandbox.required_services.db.healthcheck.interval", ""},
		{object{"v": 1, "exec": object{"stdin": 7}}, "exec.stdin", ""},
	} {
		for _, contentType := range []string{ContentMsgpack, ContentJSON} {
			err := DecodeStrict(contentType, EncodeAs(contentType, c.value), &Request{})
			wantError(t, err, InvalidArgument, ReasonUndecodable, c.field)
			if e := AsError(err); c.message != "" && e.Message != c.message {
				t.Errorf("%s: want %q, got %q", contentType, c.message, e.Message)
			}
			if text := fmt.Sprint(err); strings.Contains(text, "protocol.") || strings.Contains(text, "Go ") ||
				strings.Contains(text, "[]") || strings.Contains(text, "msgpack:") {
				t.Errorf("%q mentions a Go type", text)
			}
		}
	}
	for body, field := range map[string]string{`{"v":1,"exec":{"stdin":"a"}}`: "exec.stdin",
		`{"v":99999999999999999999}`: "v", `{"V":1,"Sandbox":{"Image":7}}`: "Sandbox.Image"} {
		wantError(t, DecodeStrict(ContentJSON, []byte(body), &Request{}), InvalidArgument, ReasonUndecodable, field)
	}
}

func TestContentTypeOfAPayload(t *testing.T) {
	for _, c := range []struct{ header, payload, want string }{
		{"", "{}", ContentJSON}, {"", " \r\n\t{", ContentJSON}, {"", "\x81", ContentMsgpack}, {"", "", ContentMsgpack},
		{"Application/JSON", "", ContentJSON}, {"application/json; charset=utf-8", "", ContentJSON},
		{" application/json ;x", "", ContentJSON},
		{"APPLICATION/MSGPACK", "{", ContentMsgpack}, {"text/yaml", "{", "text/yaml"},
	} {
		if got := ContentTypeOf(c.header, []byte(c.payload)); got != c.want {
			t.Errorf("%q with %q is %s, want %s", c.header, c.payload, got, c.want)
		}
	}
	for _, contentType := range []string{"", "Application/JSON", "application/json;charset=utf-8"} {
		var r Request
		if err := DecodeStrict(contentType, []byte(`{"v":1,"ttl":"1h"}`), &r); err != nil || r.TTL == 0 {
			t.Errorf("%q: %v", contentType, err)
		}
	}
}

func TestErrorsNameFieldsOfThePayload(t *testing.T) {
	create := Request{Version: 1, Sandbox: &SandboxSpec{Image: "i", Mounts: []Mount{{Source: "/a", Target: "/m"},
		{Source: "/b", Target: "/m"}}}}
	err := create.Validate(VerbCreate)
	wantError(t, err, InvalidArgument, "", "sandbox.mounts[1].target")
	if strings.Contains(err.Error(), "spec") {
		t.Error(err)
	}
	wantError(t, WithSpecField(VerbCreate, err), InvalidArgument, "", "spec.mounts[1].target")
	exec := Request{Version: 1, ExecID: "x", Exec: &ExecSpec{}}
	wantError(t, exec.Validate(VerbExec), InvalidArgument, "", "exec.command")
	if err := WithPayloadField(VerbStop, Invalid("spec.image", "x")); AsError(err).Field != "spec.image" ||
		WithPayloadField(VerbCreate, nil) != nil {
		t.Error(err)
	}
}

// A value that was decoded from msgpack may later be encoded as JSON. JSON cannot express NaN, infinity or a time far
// from our era, so decoding rejects them.
func TestNumbersAndTimesBeyondJSONAreRejected(t *testing.T) {
	for _, v := range []any{
		&Host{CPU: math.NaN()}, &Host{CPU: math.Inf(1)}, &Host{UsedCPU: math.Inf(-1)},
		map[string]any{"cpu": float32(math.Inf(1))},
		&Host{SeenAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, &Host{SeenAt: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)},
		&Host{SeenAt: time.Unix(math.MaxInt64, 0)}, &Host{SeenAt: time.Unix(math.MinInt64, 0)},
	} {
		wantError(t, Decode(Encode(v), &Host{}), InvalidArgument, ReasonUndecodable, "")
	}
	edge := &Host{SeenAt: time.Unix(maxTime-1, 999999999), StartedAt: time.Unix(minTime, 1), CPU: math.MaxFloat64}
	var got Host
	if err := Decode(Encode(edge), &got); err != nil || !same(*edge, got) {
		t.Errorf("%v: %s", err, show(got))
	}
	var again Host
	if err := DecodeAs(ContentJSON, EncodeAs(ContentJSON, &got), &again); err != nil || !same(*edge, again) {
		t.Errorf("%v: %s", err, show(again))
	}
}

func batchOf(events ...Event) *Batch {
	return &Batch{Version: Version, Tenant: "t", Sandbox: "s", ID: "b1", Writer: "w", Token: 7, Events: events}
}

func TestBatchFillsItsEventsFromTheMessage(t *testing.T) {
	forged := batchOf(Event{Sequence: 4, Kind: SandboxReady, Tenant: "other", Sandbox: "x", Writer: "y", Token: 99,
		Record: 1, Replay: true},
		Event{Sequence: 5, Kind: ServiceReady})
	for what, data := range map[string][]byte{"as Batch.Encode writes": forged.Encode(),
		"as a forger writes": Encode(forged)} {
		b, err := DecodeBatch(data, 42)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for i, e := range b.Events {
			if e.Tenant != "t" || e.Sandbox != "s" || e.Writer != "w" || e.Token != 7 || e.Record != 42 || e.Replay {
				t.Errorf("%s: event %d: %s", what, i, show(e))
			}
		}
		if b.First() != 4 || b.Last() != 5 {
			t.Errorf("first %d, last %d", b.First(), b.Last())
		}
	}
	if forged.Events[0].Tenant != "other" {
		t.Error("Encode changed the batch")
	}
}

func TestP2_BatchWithAGapIsRejected(t *testing.T) {
	for name, b := range map[string]*Batch{
		"no events":  batchOf(),
		"from zero":  batchOf(Event{Sequence: 0}),
		"gap":        batchOf(Event{Sequence: 4}, Event{Sequence: 6}),
		"repeat":     batchOf(Event{Sequence: 4}, Event{Sequence: 4}),
		"wraps over": batchOf(Event{Sequence: 1<<64 - 1}, Event{Sequence: 0}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeBatch(b.Encode(), 1)
			wantError(t, err, InvalidArgument, ReasonUndecodable, "")
		})
	}
	newer := batchOf(Event{Sequence: 1})
	newer.Version = Version + 1
	_, err := DecodeBatch(newer.Encode(), 1)
	wantError(t, err, FailedPrecondition, ReasonUnsupportedVersion, "v")
}

func TestBatchHeadersListKindsAndSequences(t *testing.T) {
	one := batchOf(Event{Sequence: 7, Kind: SandboxReady, State: StateReady})
	one.Token = 0
	two := batchOf(Event{Sequence: 7, Kind: ExecStarted, State: StateReady},
		Event{Sequence: 8, Kind: ExecFinished, State: StateReady})
	many := batchOf()
	many.Token = 0
	for i := range uint64(6000) {
		many.Events = append(many.Events, Event{Sequence: 7 + i, Kind: ExecFailed, State: StateReady})
	}
	many.Events = append(many.Events, Event{Sequence: 6007, Kind: SandboxFailed, State: StateFailed})
	for _, tc := range []struct {
		batch *Batch
		want  map[string]string
	}{
		{many, map[string]string{HeaderContentType: ContentMsgpack, HeaderKind: "exec.failed*6000,sandbox.failed",
			HeaderSequence: "7-6007",
			HeaderState:    "failed", HeaderWriter: "w"}},
		{one, map[string]string{HeaderContentType: ContentMsgpack, HeaderKind: "sandbox.ready", HeaderSequence: "7",
			HeaderState: "ready", HeaderWriter: "w"}},
		{two, map[string]string{HeaderContentType: ContentMsgpack, HeaderKind: "exec.started,exec.finished",
			HeaderSequence: "7-8",
			HeaderState:    "ready", HeaderWriter: "w", HeaderToken: "7"}},
	} {
		if got := tc.batch.Headers(); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("want %v\ngot  %v", tc.want, got)
		}
	}
}
