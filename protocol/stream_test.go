package protocol

import (
	"strings"
	"testing"
	"time"
)

func validOpen() StreamOpen {
	return StreamOpen{Version: 1, ID: strings.Repeat("a", 22), Kind: "file", Timeout: Duration(time.Second)}
}

func TestAnOpeningIsCompletedWithDefaults(t *testing.T) {
	o := validOpen()
	if err := o.Validate(); err != nil || o.Window != StreamWindow || o.Frame != StreamFrame {
		t.Errorf("got %+v, %v", o, err)
	}
	r := StreamReply{Version: 1}
	if err := r.Validate(); err != nil || r.Window != StreamWindow || r.Frame != StreamFrame {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestAnInvalidOpeningIsRefusedWithItsField(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*StreamOpen)
	}{
		{"v", func(o *StreamOpen) { o.Version = 0 }},
		{"v", func(o *StreamOpen) { o.Version = Version + 1 }},
		{"id", func(o *StreamOpen) { o.ID = strings.Repeat("a", 21) }},
		{"id", func(o *StreamOpen) { o.ID = strings.Repeat("a", 65) }},
		{"id", func(o *StreamOpen) { o.ID = strings.Repeat("a", 22) + ".b" }},
		{"kind", func(o *StreamOpen) { o.Kind = "" }},
		{"kind", func(o *StreamOpen) { o.Kind = "File" }},
		{"kind", func(o *StreamOpen) { o.Kind = strings.Repeat("a", 33) }},
		{"timeout", func(o *StreamOpen) { o.Timeout = 0 }},
		{"timeout", func(o *StreamOpen) { o.Timeout = -1 }},
		{"timeout", func(o *StreamOpen) { o.Timeout = Duration(MaxStreamTimeout + 1) }},
		{"request", func(o *StreamOpen) { o.Request = make([]byte, MaxStreamRequest+1) }},
		{"window", func(o *StreamOpen) { o.Window = -1 }},
		{"window", func(o *StreamOpen) { o.Window = MaxStreamWindow + 1 }},
		{"frame", func(o *StreamOpen) { o.Frame = MinStreamFrame - 1 }},
		{"frame", func(o *StreamOpen) { o.Frame = MaxStreamFrame + 1 }},
	} {
		o := validOpen()
		c.change(&o)
		if err := o.Validate(); err == nil || AsError(err).Field != c.field {
			t.Errorf("want an error of field %s, got %v", c.field, err)
		}
	}
}

func TestASubjectOfAnOpeningSplits(t *testing.T) {
	for _, user := range []string{"anna", "@otto", ""} {
		name := user
		if user == "" {
			name = NoUser
		}
		worker, tenant, got, sandbox, ok := SplitStreamOpenSubject(StreamOpenSubject("w1", "blue", name, "s1"))
		if !ok || worker != "w1" || tenant != "blue" || got != user || sandbox != "s1" {
			t.Errorf("user %q: got %s %s %s %s %v", user, worker, tenant, got, sandbox, ok)
		}
	}
	if _, _, _, _, ok := SplitStreamOpenSubject(StreamUpSubject("w1", "blue", "anna", "s1", "id")); ok {
		t.Error("the subject of a frame splits as that of an opening")
	}
}
