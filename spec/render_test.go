package spec

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestYAMLParsesToTheSameDocument(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Document{ID: "a", Spec: Merge(protocol.SandboxSpec{}, withoutSensitive(anySpec(t, "s")))}
		for i := range d.Spec.Copies {
			if c := &d.Spec.Copies[i]; i%2 == 0 {
				*c = protocol.Copy{Target: c.Target}
				d.Copies = append(d.Copies, LocalCopy{Index: i, Source: "x$y"})
			} else {
				c.Digest = "sha256-"
			}
		}
		text := d.YAML(map[string]string{"image": "a comment", "env": "another", "cpu": "x", "ports": "y",
			"required_services": "z"})
		again, err := Parse(text, Options{})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := Difference(again.Spec, normal(d.Spec)); diff != nil || !reflect.DeepEqual(again.Copies, d.Copies) {
			t.Fatalf("differs in %v\n%+v\n%+v\n%s", diff, again, d, text)
		}
	})
}

// withoutSensitive removes the sensitive variables, whose values are in no YAML.
func withoutSensitive(s protocol.SandboxSpec) protocol.SandboxSpec {
	s.SensitiveEnv = nil
	for _, services := range []protocol.Services{s.RequiredServices, s.OptionalServices} {
		for name, v := range services {
			v.SensitiveEnv = nil
			services[name] = v
		}
	}
	return s
}

// normal returns a spec as Parse returns it: a network with ranges has mode allow.
func normal(s protocol.SandboxSpec) protocol.SandboxSpec {
	s = Merge(s, protocol.SandboxSpec{})
	if n := s.Network; n != nil && n.Mode == "" && len(n.Allow) > 0 {
		n.Mode = protocol.NetworkAllow
	}
	return s
}

func TestOriginsNameTheLayers(t *testing.T) {
	tenant := protocol.SandboxSpec{CPU: 2, Env: map[string]string{"A": "1"}, Tools: []string{"git"}}
	file := protocol.SandboxSpec{Image: "x", CPU: 1, Env: map[string]string{"A": "2"}}
	s := Merge(tenant, file)
	s.Resolve()
	got := Origins(s, Layer{"tenant", tenant}, Layer{"file", file})
	for field, want := range map[string]string{"image": "file", "cpu": "file", "env": "tenant, file", "tools": "tenant",
		"memory": "built in", "command": ""} {
		if got[field] != want {
			t.Errorf("%s: want %q, got %q", field, want, got[field])
		}
	}
	s.Env = map[string]string{"BYTES": "a\xffb"}
	d := Document{Spec: s}
	if text := string(d.YAML(got)); !strings.Contains(text, "env: # tenant, file\n") ||
		!strings.Contains(text, "memory: 512MiB # built in\n") {
		t.Errorf("got\n%s", text)
	}
}
