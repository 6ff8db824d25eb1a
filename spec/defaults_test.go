package spec

import (
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Every default can be overridden. For fields that have no value for "none", docs/spec.md says which value to use
// instead.
func TestARequestCanOverrideADefault(t *testing.T) {
	hook := func(command string) *protocol.Hook { return &protocol.Hook{Command: []string{command}} }
	defaults := Defaults{EveryTenant: {TTL: 1, IdleTTL: 1, OnDelete: hook("sync"),
		Network: &protocol.Network{Mode: protocol.NetworkNone}, Profile: protocol.ProfileStandard}}
	if err := defaults.Validate(); err != nil {
		t.Fatal(err)
	}
	const years = protocol.Duration(87600 * time.Hour)
	want := protocol.SandboxSpec{Image: "x", TTL: years, IdleTTL: years, OnDelete: hook("true"),
		Network: &protocol.Network{Mode: protocol.NetworkInternet}, Profile: protocol.ProfileHardened}
	if got, err := defaults.Over("a", want); err != nil || !Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestDefaultsAreReadByTenant(t *testing.T) {
	d, err := ParseDefaults([]byte("'*':\n  cpu: 2\n  labels: {A: x, b: '${WHO}'}\nTeam-1:\n  profile: standard\n  "+
		"labels: {A: y}\n"), Options{Env: map[string]string{"WHO": "me"}})
	if err != nil {
		t.Fatal(err)
	}
	one, other := d.For("Team-1"), d.For("team-1")
	if one.CPU != 2 || one.Profile != "standard" || one.Labels["A"] != "y" || one.Labels["b"] != "me" ||
		other.Profile != "" || other.Labels["A"] != "x" {
		t.Errorf("got %+v and %+v", one, other)
	}
	if d, err := ParseDefaults([]byte("# nothing\n"), Options{}); err != nil || len(d) != 0 {
		t.Errorf("nothing: %v, %v", d, err)
	}
	for text, want := range map[string]string{
		"a: {cpus: 1}":            "defaults.a.cpus: f: line 1, column 5: is not a known field",
		"a: {cpu: -1}":            "defaults.a.cpu: f: line 1, column 10",
		"a.b: {cpu: 1}":           "defaults.a.b: f: line 1, column 6: is not the name of a tenant",
		"a: {image: x}":           "defaults.a.image: f: line 1, column 12: cannot have a default",
		"a: {command: [x]}":       "defaults.a.command",
		"a: {copies: [\"a:/b\"]}": "defaults.a.copies: f: line 1, column 13: cannot have a default",
		"a: {gpus: 1}": "defaults.a.gpus: f: line 1, column 11: cannot have a default: a request " +
			"could not opt out",
		"'*': {read_only: true}": "defaults.*.read_only: f: line 1, column 18: cannot have a default: a " +
			"request could not opt out",
		"a: {id: x}":                           "defaults.a.id",
		"a: x":                                 "defaults.a: f: line 1, column 4",
		"[a]":                                  "defaults: f: line 1",
		"a: {b":                                "defaults: f: line 1, column 4",
		"'*': {tmpfs: [/x]}\na: {tmpfs: [/x]}": "defaults.a.tmpfs[1].target",
		"a: {env: {A: " + strings.Repeat("x", maxDefaults) + "}}": "at most 65536",
	} {
		_, err := ParseDefaults([]byte(text), Options{Name: "f"})
		if err == nil || protocol.CodeOf(err) != protocol.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q\nwant %q\ngot  %v", text, want, err)
		}
	}
}
