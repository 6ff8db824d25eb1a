package spec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestQuotasAreReadByTenant(t *testing.T) {
	q, err := ParseQuotas([]byte("'*': {sandboxes: 10, memory: 4GiB, execs: 5}\n"+
		"acme: {memory: 0, cpu: 1.5, waiting: 3}\n"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := q.Resolved()
	if got, want := all["*"], (protocol.Quota{Sandboxes: 10, Memory: 4 << 30, Execs: 5}); got != want {
		t.Errorf("other tenants have %+v, want %+v", got, want)
	}
	if got, want := all["acme"], (protocol.Quota{Sandboxes: 10, CPU: 1.5, Execs: 5, Waiting: 3}); got != want {
		t.Errorf("acme has %+v, want %+v", got, want)
	}
	if q, err := ParseQuotas([]byte("# nothing\n"), Options{}); err != nil || len(q) != 0 {
		t.Errorf("a file without entries: %v, %v", q, err)
	}
}

func TestAWrongQuotaIsRefusedWithItsField(t *testing.T) {
	many := strings.Builder{}
	for i := range maxQuotas + 1 {
		fmt.Fprintf(&many, "t%d: {execs: 1}\n", i)
	}
	for text, want := range map[string]string{
		"a: {sandbox: 1}":        "quotas.a.sandbox: f: line 1, column 5: is not a known field",
		"a: {sandboxes: -1}":     "quotas.a.sandboxes: f: line 1, column 16: must not be negative, got -1",
		"a: {execs: -2}":         "quotas.a.execs: f: line 1, column 12: must not be negative",
		"a: {waiting: -2}":       "quotas.a.waiting: f: line 1, column 14: must not be negative",
		"a: {cpu: -0.5}":         "quotas.a.cpu: f: line 1, column 10: must be 0 to 1000000 cores",
		"a: {cpu: .nan}":         "quotas.a.cpu",
		"a: {memory: -1GiB}":     "quotas.a.memory: f: line 1, column 13",
		"a: {disk: -1}":          "quotas.a.disk: f: line 1, column 11",
		"a: {output: -1}":        "quotas.a.output: f: line 1, column 13",
		"a: {uploads: -1}":       "quotas.a.uploads: f: line 1, column 14",
		"a: {sandboxes: 1.5}":    "quotas.a.sandboxes",
		"a.b: {execs: 1}":        "quotas.a.b: f: line 1, column 6: is not the name of a tenant",
		"a: 5":                   "quotas.a: f: line 1, column 4",
		"a: {execs: ~}":          "quotas.a.execs: f: line 1, column 12: has no value",
		many.String():            "has 2001 entries, at most 2000 are allowed",
		"a: {execs: 1}\na: {}\n": "appears twice",
	} {
		_, err := ParseQuotas([]byte(text), Options{Name: "f"})
		if err == nil || protocol.CodeOf(err) != protocol.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q\nwant %q\ngot  %v", text, want, err)
		}
	}
}
