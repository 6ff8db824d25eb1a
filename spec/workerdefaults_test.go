package spec

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestWorkerDefaultsAreParsedStrictly(t *testing.T) {
	s, err := ParseWorkerDefaults([]byte("runtime: runsc\nenv: {HTTP_PROXY: '${PROXY}'}\nmounts: "+
		"['/srv/cache:/cache:rw']\nnetwork: none\nmemory: 1GiB\n"),
		Options{Env: map[string]string{"PROXY": "http://p:1"}})
	want := &protocol.SandboxSpec{Runtime: "runsc", Env: map[string]string{"HTTP_PROXY": "http://p:1"}, Memory: 1 << 30,
		Mounts:  []protocol.Mount{{Source: "/srv/cache", Target: "/cache", Writable: true}},
		Network: &protocol.Network{Mode: protocol.NetworkNone}}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v, %v", s, err)
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "{}", "cpu: 0"} {
		if s, err := ParseWorkerDefaults([]byte(text), Options{}); err != nil || s != nil {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
	for text, want := range map[string]string{
		"cpus: 1":        "worker.defaults.cpus: f: line 1, column 1: is not a known field",
		"cpu: 1\ncpu: 2": "worker.defaults.cpu: f: line 2, column 1: appears twice",
		"cpu: -1":        "worker.defaults.cpu: f: line 1, column 6: must be 0.01",
		"cpu: 1\nimage: x": "worker.defaults.image: f: line 2, column 8: cannot have a worker default: each " +
			"request names its image",
		"labels: {a: b}":             "worker.defaults.labels: f: line 1, column 9: cannot",
		"copies: ['a:/b']":           "worker.defaults.copies: f: line 1, column 9: cannot",
		"mounts: ['a:/b']":           "worker.defaults.mounts[0].source: f: line 1, column 10: must be an absolute path",
		"env: {A: $NONE}":            "worker.defaults.env.A: f: line 1, column 10: NONE is not set",
		"tmpfs: [/a, /a]":            "worker.defaults.tmpfs[1].target: f: line 1, column 13: is the same target",
		"id: x":                      "worker.defaults.id: f: line 1, column 1: is not a known field",
		"[a]":                        "worker.defaults: f: line 1, column 1: must be a map of fields",
		"a: {b":                      "worker.defaults: f: line 1",
		"cpu: 1\n---\ncpu: 2":        "worker.defaults: f: line 3, column 1: there is more than one document",
		"default: {cpu: 1}":          "worker.defaults.default: f: line 1, column 1: is not a known field",
		strings.Repeat("#", 5<<20):   "worker.defaults: f: has more than",
		"read_only: true\ngpus: all": "worker.defaults.gpus: f: line 2, column 7: cannot",
	} {
		_, err := ParseWorkerDefaults([]byte(text), Options{Name: "f"})
		if err == nil || !strings.HasPrefix(err.Error(), "invalid_argument") || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q\nwant %q\ngot  %v", text, want, err)
		}
	}
}

// onlyWorkers returns only the fields of a spec that allow a worker default.
func onlyWorkers(s protocol.SandboxSpec) protocol.SandboxSpec {
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		if !slices.Contains(protocol.WorkerDefaults, jsonName(v.Type().Field(i))) {
			v.Field(i).SetZero()
		}
	}
	return s
}

func TestAWorkersDefaultsAreTheLowestLayer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		defaults, said := onlyWorkers(anySpec(t, "worker")), anySpec(t, "said")
		accepted, defaulted := Resolve(said)
		before := clone(reflect.ValueOf(accepted)).Interface()
		want := Merge(defaults, said)
		want.Resolve()
		got := OnWorker(accepted, defaulted, &defaults)
		if d := Difference(got, want); d != nil {
			t.Fatalf("differs in %v from one merge of all layers\ngot  %+v\nwant %+v", d, got, want)
		}
		if !reflect.DeepEqual(clone(reflect.ValueOf(accepted)).Interface(), before) {
			t.Fatal("the accepted spec was changed")
		}
		if !Equal(OnWorker(accepted, defaulted, nil), accepted) {
			t.Fatal("no defaults change something")
		}
	})
}

func TestAWorkerAddsOnlyFieldsThatAllowADefault(t *testing.T) {
	accepted, defaulted := Resolve(protocol.SandboxSpec{Image: "i"})
	got := OnWorker(accepted, defaulted, &protocol.SandboxSpec{Image: "evil", Labels: map[string]string{"a": "b"},
		OnHostLoss: "fail", Command: []string{"x"}, TTL: 1})
	if d := Difference(got, accepted); d != nil {
		t.Errorf("differs in %v", d)
	}
}

func TestAToolInBothLayersAppearsOnce(t *testing.T) {
	accepted, defaulted := Resolve(protocol.SandboxSpec{Image: "i", Tools: []string{"uv", "git"}})
	got := OnWorker(accepted, defaulted, &protocol.SandboxSpec{Tools: []string{"git", "npm"}})
	if !slices.Equal(got.Tools, []string{"git", "npm", "uv"}) {
		t.Errorf("got %q", got.Tools)
	}
}

// A spec keeps the built-in defaults of the version that accepted it, even if this version has others.
func TestBuiltInValuesAreThoseOfTheAcceptingVersion(t *testing.T) {
	accepted, defaulted := Resolve(protocol.SandboxSpec{Image: "i"})
	accepted.PIDs = 7777
	if got := OnWorker(accepted, defaulted, &protocol.SandboxSpec{CPU: 2}); got.PIDs != 7777 || got.CPU != 2 {
		t.Errorf("got %+v", got)
	}
}

func TestSaysFindsALayerInAResolvedSpec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		below, own := anySpec(t, "below"), anySpec(t, "own")
		whole, _ := Resolve(Merge(below, own))
		if !Says(whole, own) {
			t.Fatalf("Says does not find %+v in %+v", own, whole)
		}
	})
	whole, _ := Resolve(protocol.SandboxSpec{Image: "i", Env: map[string]string{"A": "1"},
		Ports: []protocol.Port{{Container: 1}}, Tools: []string{"git"}, CPU: 2})
	for name, other := range map[string]protocol.SandboxSpec{
		"scalar": {CPU: 1}, "map": {Env: map[string]string{"A": "2"}}, "key": {Env: map[string]string{"B": "1"}},
		"list":   {Ports: []protocol.Port{{Container: 2}}},
		"longer": {Ports: []protocol.Port{{Container: 1}, {Container: 1}}}, "tool": {Tools: []string{"uv"}},
		"empty": {Command: []string{"x"}},
	} {
		if Says(whole, other) {
			t.Errorf("%s: Says mistakes another spec for this one", name)
		}
	}
}
