package spec

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAllErrorsAreReportedAtOnce(t *testing.T) {
	text := `image: x
memroy: 512m
cpu: many
environment: {A: 1}
env: [A=1, B, A=2]
mounts:
- {source: /a, target: /b, writeable: true}
- /c
copies: [a, {source: b, targe: /c}]
required_services: {db: {image: [y]}}
`
	_, err := Parse([]byte(text), Options{Name: "app.yaml"})
	want := "invalid_argument (unknown_field): " +
		`spec.memroy: app.yaml: line 2, column 1: is not a known field; did you mean memory?
spec.cpu: app.yaml: line 3, column 6: must be a number, got "many"
spec.environment: app.yaml: line 4, column 1: is not a known field; did you mean env?
spec.env[1]: app.yaml: line 5, column 12: must be K=V, got "B"
spec.env.A: app.yaml: line 5, column 15: appears twice
spec.mounts[0].writeable: app.yaml: line 7, column 28: is not a known field; did you mean writable?
spec.mounts[1]: app.yaml: line 8, column 3: must be SOURCE:TARGET, optionally followed by :ro or :rw, got "/c"
there may be more errors; the rest was not read`
	if got := err.Error(); got != want {
		t.Errorf("got\n%s", got)
	}
	_, err = ParseAll([]byte("image: x\nimagee: y\n---\nimage: y\npid: 5\n---\nimage: z\n"), Options{})
	if got := err.Error(); !strings.Contains(got, "spec.imagee: line 2") ||
		!strings.Contains(got, "\nspec.pid: line 5, column 1: is not a known field; did you mean pids?") {
		t.Errorf("several documents: got\n%s", got)
	}
}

func TestJoinCombinesErrorsOfSeveralDocuments(t *testing.T) {
	if err := Join(nil, nil); err != nil {
		t.Error(err)
	}
	away := protocol.Errorf(protocol.Unavailable, "", "away")
	if err := Join(protocol.Invalid("a", "x"), away); err != away {
		t.Error(err)
	}
	if err := Join(nil, protocol.Invalid("a", "x"), protocol.Invalid("b",
		"y")); err.Error() != "invalid_argument: a: x\nb: y" {
		t.Error(err)
	}
}

func TestNearestSuggestsTheIntendedName(t *testing.T) {
	known := []string{"memory", "mounts", "env", "read_only", "cpu", "timeout", "labels"}
	for name, want := range map[string]string{"memroy": "memory", "Memory": "memory", "readonly": "read_only",
		"read-only": "read_only", "cpus": "cpu", "mount": "mounts",
		"label": "labels", "tiemout": "timeout", "nonsense": "", "m": "", "evn": "env", "": "",
		strings.Repeat("memory", 20): ""} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q: want %q, got %q", name, want, got)
		}
	}
}
