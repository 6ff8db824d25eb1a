package spec

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// FuzzParse parses any text. A document that parses is the same after it is written and parsed again. If parsing fails,
// the error is typed and names a line. Parsing uses bounded memory in both cases.
func FuzzParse(f *testing.F) {
	f.Add(string(Example()), "x")
	for _, text := range []string{
		"image: x\nenv: [A=$V, B=${V:-${W-d}}]\nports: [80, \"1:2/udp\"]", "image: &a x\nuser: *a\nlabels: {<<: *a}",
		"a: &a [*a, *a]",
		"image: !!binary aGk=\n---\nimage: x\n", "env: {A: ~, ? [b] : c}", "command: [\"\\x00\", |-\n  x\n ]",
		"cpu: .inf\npids: 0x10\nmemory: 1_0k",
		"'*': {cpu: 1}\ndefault: {env: {A: $V}}", "image: \"\\r\\n\\t \\u2028\"", "copies: [a:/b, {digest: d, target: /t}]",
	} {
		f.Add(text, "a value\nb: $V")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		env := map[string]string{"V": value, "EMPTY": ""}
		var documents []*Document
		var err error
		used := allocated(func() { documents, err = ParseAll([]byte(text), Options{Name: "f", Env: env}) })
		if most := uint64(16<<20 + 4000*len(text)); used > most {
			t.Errorf("%d bytes of text cost %d bytes of memory", len(text), used)
		}
		checkTyped(t, err)
		if err != nil && !strings.Contains(err.Error(), "f: line ") && !strings.Contains(err.Error(), "has no document") {
			t.Errorf("the error has no line: %v", err)
		}
		_, err = ParseDefaults([]byte(text), Options{Env: env})
		checkTyped(t, err)
		for _, d := range documents {
			checkTyped(t, d.Validate())
			d.Spec = withoutSensitive(d.Spec)
			again, err := Parse(d.YAML(nil), Options{})
			if err != nil {
				t.Fatalf("%v\n%s", err, d.YAML(nil))
			}
			if diff := Difference(again.Spec, d.Spec); diff != nil || again.ID != d.ID || again.Name != d.Name ||
				len(again.Copies) != len(d.Copies) {
				t.Fatalf("after a round trip it differs in %v\n%s", diff, d.YAML(nil))
			}
		}
	})
}

func checkTyped(t *testing.T, err error) {
	t.Helper()
	var e *protocol.Error
	if err != nil && (!errors.As(err, &e) || e.Code != protocol.InvalidArgument || len(e.Message) > 3000) {
		t.Fatalf("rejected with %T: %.4000v", err, err)
	}
}

// allocated returns how many bytes f allocates, freed or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
