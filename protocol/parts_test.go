package protocol

import (
	"encoding/json"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// A list that is empty by accident must not open the internet.
func TestAnEmptyAllowListIsRejected(t *testing.T) {
	for text, field := range map[string]string{
		`{"image": "x", "network": {"allow": []}}`:                              "spec.network.allow",
		`{"image": "x", "network": {"allow": [], "mode": "allow"}}`:             "spec.network.allow",
		`{"image": "x", "network": {"mode": "allow"}}`:                          "spec.network.allow",
		`{"image": "x", "network": {"allow": ["10.0.0.0/8"]}}`:                  "spec.network.allow",
		`{"image": "x", "network": {"mode": "none", "allow": []}}`:              "",
		`{"image": "x", "network": {}}`:                                         "",
		`{"image": "x", "network": {"mode": "allow", "allow": ["10.0.0.0/8"]}}`: "",
	} {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		packed, err := msgpack.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		for contentType, data := range map[string][]byte{ContentJSON: []byte(text), ContentMsgpack: packed} {
			var spec SandboxSpec
			if err := DecodeStrict(contentType, data, &spec); err != nil {
				t.Fatal(err)
			}
			if err := spec.Validate(); err == nil != (field == "") || err != nil && AsError(err).Field != field {
				t.Errorf("%s as %s: want %q rejected, got %v", text, contentType, field, err)
			}
		}
	}
}

// A port may be published at several host ports. Docker may choose at most one of these host ports.
func TestPortConflictsDoNotDependOnOrder(t *testing.T) {
	given, chosen, other := Port{Container: 80, Host: 8080}, Port{Container: 80},
		Port{Container: 80, Host: 8081, Protocol: ProtocolTCP}
	for _, c := range []struct {
		ports []Port
		field string
	}{
		{[]Port{given, chosen}, ""}, {[]Port{chosen, given}, ""},
		{[]Port{given, chosen, other}, ""}, {[]Port{chosen, other, given}, ""}, {[]Port{other, given, chosen}, ""},
		{[]Port{chosen, chosen}, "spec.ports[1].container"}, {[]Port{chosen, {Container: 80, Protocol: ProtocolTCP}},
			"spec.ports[1].container"},
		{[]Port{given, chosen, chosen}, "spec.ports[2].container"}, {[]Port{chosen, given, chosen},
			"spec.ports[2].container"},
		{[]Port{chosen, {Container: 80, Protocol: ProtocolUDP}}, ""},
		{[]Port{given, {Container: 81, Host: 8080}}, "spec.ports[1].host"},
		{[]Port{{Container: 81, Host: 8080}, given}, "spec.ports[1].host"},
		{[]Port{given, chosen, given}, "spec.ports[2].host"},
	} {
		spec := goodSandbox()
		spec.Ports = c.ports
		if err := spec.Validate(); err == nil != (c.field == "") || err != nil && AsError(err).Field != c.field {
			t.Errorf("%+v: want %q rejected, got %v", c.ports, c.field, err)
		}
	}
}
