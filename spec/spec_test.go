package spec

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestShortFormsMeanTheirLongForms(t *testing.T) {
	d, err := Parse([]byte(`
id: web
image: app
command: [serve, -p, 80, 2024-01-01]
env: [A=1, "B=x=y", "C="]
labels: {team: build, n: 1, yes: true}
user: 1000
cpu: 2
memory: 512m
disk: 1048576
gpus: 2
grace: 30s
network: {allow: [10.1.0.0/16]}
ports: ["8080:80/udp", 81, "127.0.0.1:82:82", {container: 83, host: 84, protocol: sctp}]
mounts: ["/a:/b", "/c:/d:rw", "/e:/f:ro", {source: /g, target: /h, writable: true}]
tmpfs: [/run, "/tmp:64m", {target: /x, size: 1m}]
copies:
- ./src:/src
- {digest: sha256-00, size: 10k, target: /up}
- {source: /etc/x, target: /y, exclude: [.git, b]}
- ./seed:db:/seed
- {source: a, target: /src, service: cache}
- /with/colon:/a:b
tools: [git, uv]
on_delete: [sync]
required_services:
  db: &db
    image: postgres
    env: {P: 1}
    healthcheck: {test: pg_isready, interval: 1s}
    post_start: [[migrate, up], {command: [seed], timeout: 1m30s, on_resume: true}]
optional_services:
  cache: *db
`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	service := protocol.Service{Image: "postgres", Env: map[string]string{"P": "1"},
		Healthcheck: &protocol.Healthcheck{Test: []string{"CMD-SHELL", "pg_isready"},
			Interval: protocol.Duration(time.Second)},
		PostStart: []protocol.Hook{{Command: []string{"migrate", "up"}},
			{Command: []string{"seed"}, Timeout: protocol.Duration(90 * time.Second), OnResume: true}}}
	want := protocol.SandboxSpec{
		Image: "app", Command: []string{"serve", "-p", "80", "2024-01-01"},
		Env:    map[string]string{"A": "1", "B": "x=y", "C": ""},
		Labels: map[string]string{"team": "build", "n": "1", "yes": "true"}, User: "1000", CPU: 2, Memory: 512 << 20,
		Disk: 1 << 20, GPUs: "2",
		Grace: protocol.Duration(30 * time.Second), Network: &protocol.Network{Mode: "allow", Allow: []string{"10.1.0.0/16"}},
		Ports: []protocol.Port{{Container: 80, Host: 8080, Protocol: "udp"}, {Container: 81}, {Container: 82, Host: 82},
			{Container: 83, Host: 84, Protocol: "sctp"}},
		Mounts: []protocol.Mount{{Source: "/a", Target: "/b"}, {Source: "/c", Target: "/d", Writable: true},
			{Source: "/e", Target: "/f"},
			{Source: "/g", Target: "/h", Writable: true}},
		Tmpfs: []protocol.Tmpfs{{Target: "/run"}, {Target: "/tmp", Size: 64 << 20}, {Target: "/x", Size: 1 << 20}},
		Copies: []protocol.Copy{{Target: "/src"}, {Digest: "sha256-00", Size: 10 << 10, Target: "/up"}, {Target: "/y"},
			{Target: "/seed", Service: "db"}, {Target: "/src", Service: "cache"}, {Target: "/a:b"}},
		Tools:            []string{"git", "uv"},
		OnDelete:         &protocol.Hook{Command: []string{"sync"}},
		RequiredServices: map[string]protocol.Service{"db": service},
		OptionalServices: map[string]protocol.Service{"cache": service},
	}
	if d.ID != "web" || !reflect.DeepEqual(d.Spec, want) {
		t.Errorf("differs in %v\ngot  %+v\nwant %+v", Difference(d.Spec, want), d.Spec, want)
	}
	local := []LocalCopy{{0, "./src", nil}, {2, "/etc/x", []string{".git", "b"}}, {3, "./seed", nil}, {4, "a", nil},
		{5, "/with/colon", nil}}
	if !reflect.DeepEqual(d.Copies, local) {
		t.Errorf("local copies: got %+v, want %+v", d.Copies, local)
	}
}

func TestP9_InvalidYAMLIsRejectedByLineColumnAndField(t *testing.T) {
	for text, want := range map[string]string{
		"image: x\nimagee: y":                  "spec.imagee: line 2, column 1: is not a known field",
		"image: x\nimage: y":                   "spec.image: line 2, column 1: appears twice",
		"image: x\nmounts:\n- sauce: /":        "spec.mounts[0].sauce: line 3, column 3",
		"image: x\ncpu: many":                  `spec.cpu: line 2, column 6: must be a number, got "many"`,
		"image: x\ncpu: \"2\"":                 "spec.cpu: line 2, column 6",
		"image: x\npids: 1.5":                  "spec.pids: line 2, column 7: must be a whole number",
		"image: x\npids: 99999999999999999999": "spec.pids: line 2, column 7",
		"image: x\nmemory: 1q":                 "spec.memory: line 2, column 9",
		"image: x\nmemory: [1]":                "spec.memory: line 2, column 9: must be a value, got a list",
		"image: x\ngrace: 5":                   "spec.grace: line 2, column 8",
		"image: x\ncommand: ls -l":             `["sh", "-c", "..."]`,
		"image: x\non_delete: ls":              `["sh", "-c", "..."]`,
		"image: x\nenv: [a]":                   "spec.env[0]: line 2, column 7: must be K=V",
		"image: x\nenv: [A=1, A=2]":            "spec.env.A: line 2, column 12: appears twice",
		"image: x\nenv: {A: {B: 1}}":           "spec.env.A: line 2, column 10: must be text, or a map with sensitive: VALUE",
		"image: x\nenv: {A: }":                 "spec.env.A: line 2, column 10: has no value",
		"image: x\nenv:":                       "spec.env: line 2, column 5: has no value",
		"image: x\nenv: 1":                     "spec.env: line 2, column 6: must be a map",
		"image: true":                          "spec.image: line 1, column 8: must be text",
		"image: [x]":                           "spec.image: line 1, column 8: must be text, got a list",
		"image: !!binary aGk=":                 "tags are not supported",
		"image: !mine x":                       "tags are not supported",
		"image: ! x":                           "spec.image: line 1, column 8: has the tag !;",
		"image: x\ncommand: ! [a]":             "spec.command: line 2, column 10: has the tag !;",
		"!foo image: x":                        "spec: line 1, column 1: a key has the tag !foo; tags are not supported",
		"image: x\nenv: {! A: 1}":              "spec.env: line 2, column 7: a key has the tag !;",
		"image: x\nrequired_services: {!!str db: {image: x}}": "spec.required_services: line 2, column 21: a key has the " +
			"tag !!str;",
		"--- !!null foo": "spec: line 1, column 5: has the tag !!null;",
		"image: x\ntools: [git, git, \"NO WAY\"]": "spec.tools[1]: line 2, column 14: appears twice: git",
		"- image": "spec: line 1, column 1: must be a map of fields",
		"x":       "spec: line 1, column 1: must be a map of fields",
		"image: [x": "spec: line 1, column 8: did not find expected ',' or ']', " +
			"while parsing a flow sequence",
		"image: *nowhere":                      "spec: line 1, column 8: unknown anchor",
		"image: x\n? [a]\n: y":                 "a key must be a name",
		"image: x\n<<: {user: y}":              "merge keys are not supported",
		"image: x\n---\nimage: y":              "spec: line 3, column 1: there is more than one document",
		"image: x\nread_only: yes":             "spec.read_only: line 2, column 12: must be true or false",
		"image: x\nnetwork: host":              "spec.network: line 2, column 10",
		"image: x\nnetwork: {deny: []}":        "spec.network.deny",
		"image: x\nports: 80":                  "spec.ports: line 2, column 8: must be a list",
		"image: x\nports: [\"0.0.0.0:1:2\"]":   "127.0.0.1 only",
		"image: x\nports: [\"1:2:3:4\"]":       "spec.ports[0]",
		"image: x\nports: [\"80/\"]":           "spec.ports[0]",
		"image: x\nports: [a]":                 "spec.ports[0]",
		"image: x\nports: [{container: many}]": "spec.ports[0].container",
		"image: x\nmounts: [/a]":               "spec.mounts[0]: line 2, column 10",
		"image: x\nmounts: [\"/a:/b:z\"]":      "spec.mounts[0]",
		"image: x\ntmpfs: [\"/a:z\"]":          "spec.tmpfs[0]",
		"image: x\ncopies: [{target: /a}]":     "either source",
		"image: x\ncopies: [/a]":               "spec.copies[0]",
		"image: x\ncopies: [\"a::/b\"]": "spec.copies[0]: line 2, column 10: must be SOURCE:TARGET " +
			"or SOURCE:SERVICE:TARGET",
		"image: x\ncopies: [\"a:db:\"]":                 "spec.copies[0]: line 2, column 10: must be SOURCE:TARGET",
		"image: x\ncopies: a":                           "spec.copies: line 2",
		"image: x\ncopies: [{source: a, digest: b}]":    "either source",
		"image: x\ncopies: [{digest: b, exclude: [c]}]": "spec.copies[0].exclude",
		"image: x\nrequired_services: [db]": "spec.required_services: line 2, column 20: must be a map " +
			"of names",
		"image: x\nrequired_services: {db: {imag: y}}":         "spec.required_services.db.imag",
		"image: x\ncopies: [{source: a, target: /b, size: 1}]": "spec.copies[0].size",
		"image: x\ntools: git":                                 "spec.tools: line 2, column 8: must be a list",
	} {
		_, err := Parse([]byte(text), Options{})
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != protocol.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%q\nwant %q\ngot  %v", text, want, err)
		}
	}
}

// The parser reports the position of the next value, which is after the end of the text.
func TestUnterminatedValuesAreReportedInsideTheText(t *testing.T) {
	_, err := ParseAll([]byte("command: [\n"), Options{Name: "f"})
	if err == nil || !strings.HasSuffix(err.Error(), "f: line 1, column 11: did not find expected node content") {
		t.Error(err)
	}
}

func TestSyntaxErrorsPointAtTheMistake(t *testing.T) {
	const head = "# one\nimage: x\ncpu: 2\n"
	for text, want := range map[string]string{
		head + "env:\n  A: 1\n B: 2": "line 6, column 2: did not find expected key, while parsing a " +
			"block mapping that starts at line 2, column 1",
		head + "\ncommand: [sh, -c": "line 5, column 10: did not find expected ',' or ']', while " +
			"parsing a flow sequence",
		head + "command: [sh, -c\n\n# end\n": "line 4, column 10: did not find expected ',' or ']'",
		head + "command: [sh, -c\nuser: y\n": "line 5, column 5: did not find expected ',' or ']', while " +
			"parsing a flow sequence that starts at line 4, column 10",
		head + "command: [": "line 4, column 11: did not find expected node content",
		head + "user: 'ada\nids: 5\n": "line 4, column 7: found unexpected end of stream, while " +
			"scanning a quoted scalar",
		head + "user: \"\\q\"":                           "line 4, column 8: found unknown escape character",
		head + "env: *nope\n":                            "line 4, column 6: unknown anchor 'nope' referenced",
		head + "env:\n\tA: 1":                            "line 5, column 1: found character that cannot start any token",
		head + "user: x: y":                              "line 4, column 8: mapping values are not allowed in this context",
		head + "user: \"a\x01\"\n":                       "line 4, column 9: control characters are not allowed",
		head + "user: é\xff\n":                           "line 4, column 8: invalid leading UTF-8 octet",
		head + "user: \xe2\x82":                          "line 4, column 7: incomplete UTF-8 octet sequence",
		head + "user: " + strings.Repeat("[", 20_000):    "line 4, column 10007: exceeded max depth",
		head + "user: " + strings.Repeat("{a: ", 20_000): "line 4, column 40007: exceeded max depth",
		head + "user: !e!x y":                            "line 4, column 7: found undefined tag handle",
		"%YAML 9.9\n---\nimage: x":                       "line 1, column 1: found incompatible YAML document",
		"image: x\n---\nimage: y\n---\nimage: {":         "line 5, column 9: did not find expected node content",
		"\xff\xfei":                                      "line 1, column ",
	} {
		_, inRequest := ParseAll([]byte(text), Options{Name: "f"})
		_, inDefaults := ParseDefaults([]byte(text), Options{Name: "f"})
		for field, err := range map[string]error{"spec": inRequest, "defaults": inDefaults} {
			if field == "defaults" && strings.Count(text, "---") > 1 {
				continue // these texts are valid as one document
			}
			if err == nil || !strings.HasPrefix(err.Error(), "invalid_argument: "+field+": f: "+want) {
				t.Errorf("%.60q\nwant %q\ngot  %v", text, want, err)
			}
		}
	}
}

func TestInvalidValuesAreRejectedWithTheirPosition(t *testing.T) {
	for text, want := range map[string]string{
		"image: x\nuser: 1000\nnetwork: {mode: foo}": "spec.network.mode: f: line 3, column 17",
		"image: x\nmounts:\n- /a:/b\n- /c:/b": "spec.mounts[1].target: f: line 4, column 3: is the same target as " +
			"mounts[0].target",
		"image: x\nenv:\n- 1A=x":                     "spec.env.1A: f: line 3, column 3",
		"image: x\ncopies: [a:db:/b]":                "spec.copies[0].service: f: line 2, column 10: the spec has no service",
		"image: x\ncopies: [{source: a, target: b}]": "spec.copies[0].target: f: line 2, column 30",
		"user: x":                        "spec.image: must not be empty",
		"image: x\nnetwork: {allow: []}": "spec.network.allow: f: line 2, column 18: must have 1 to 64 ranges, got 0",
		"image: x\nnetwork: {allow: [], mode: \"${UNSET:-}\"}": "spec.network.allow: f: line " +
			"2, column 18: must have 1 to 64 ranges, got 0",
		"image: x\nrequired_services: {db: {image: x, healthcheck: {test: \"\"}}}": "spec." +
			"required_services.db.healthcheck.test: f: line 2, column 56: has an empty command",
		"image: x\nrequired_services: {db: {image: x, healthcheck: {test: \"${UNSET:-}\"}}}": "spec." +
			"required_services.db.healthcheck.test: f: line 2, column 56: has an empty command",
		"image: x\nrequired_services: {db: {user: x}}": "spec.required_services.db.image: " +
			"f: line 2, column 25",
		"image: x\nrequired_services: {env: {user: x}}": "spec.required_services.env.image: " +
			"f: line 2, column 26",
		"image: x\noptional_services: {labels: {user: x}}": "spec.optional_services.labels.image: " +
			"f: line 2, column 29",
		"image: x\ntools: [git, \"NO WAY\"]": "spec.tools[1]: f: line 2, " +
			"column 14: is not the name of a tool",
		"image: x\nid: a.b": "id: f: line 2, column 5",
		"image: x\nrequired_services: {a: {image: x}}\noptional_services: {a: {image: x}}": "spec.optional_services.a: " +
			"f: line 3, column 24: is also a required service",
	} {
		d, err := Parse([]byte(text), Options{Name: "f"})
		if err == nil {
			err = d.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q\nwant %q\ngot  %v", text, want, err)
		}
	}
}

func TestAnErrorInAParameterHasNoPosition(t *testing.T) {
	d, err := Parse([]byte("image: x\ncpu: 1\nenv: {A: 1}\nmounts: [/a:/b]"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for want, parameters := range map[string]protocol.SandboxSpec{
		"invalid_argument: spec.cpu: must":              {CPU: 9999},
		"invalid_argument: spec.env.A: must":            {Env: map[string]string{"A": "\x00"}},
		"invalid_argument: spec.network.allow: must":    {Network: &protocol.Network{Allow: []string{}}},
		"invalid_argument: spec.env.1A: name":           {Env: map[string]string{"1A": ""}},
		"invalid_argument: spec.mounts[1].source: must": {Mounts: []protocol.Mount{{Source: "a", Target: "/c"}}},
	} {
		d, _ := Parse([]byte("image: x\ncpu: 1\nenv: {A: 1}\nmounts: [/a:/b]"), Options{})
		d.Override(parameters)
		if err := d.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	d.Override(protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: "/c", Target: "/b"}}})
	if err := d.Validate(); err == nil || !strings.HasPrefix(err.Error(),
		"invalid_argument: spec.mounts[1].target: is the same") {
		t.Errorf("got %v", err)
	}
}

func TestVariablesExpandAsInCompose(t *testing.T) {
	env := map[string]string{"A": "a", "EMPTY": "", "TRICK": "x}\nimage: evil # ${A} $A"}
	for text, want := range map[string]string{
		"plain":                      "plain",
		"$A":                         "a",
		"-$A-${A}b":                  "-a-ab",
		"$$A $${A} $$$A":             "$A ${A} $a",
		"${EMPTY}|$EMPTY":            "|",
		"${EMPTY:-d}|${EMPTY-d}":     "d|",
		"${NONE:-d}|${NONE-d}":       "d|d",
		"${NONE:-}|${NONE-}":         "|",
		"${A:-d}|${A-d}":             "a|a",
		"${A:+r}|${A+r}":             "r|r",
		"${EMPTY:+r}|${EMPTY+r}":     "|r",
		"${NONE:+r}|${NONE+r}":       "|",
		"${A:?e}|${A?e}|${EMPTY?e}":  "a|a|",
		"${NONE:-${A}}${NONE:-$A}":   "aa",
		"${NONE:-${NONE:-${A}x}y}":   "axy",
		"${NONE:-$${A}z}":            "${Az}",
		"${A:-${NONE}}":              "a", // an unused default is not expanded
		"cost $5 $(ls) $ awk {$1} $": "cost $5 $(ls) $ awk {$1} $",
		"${NONE:-{x}y}":              "{xy}",
		"$TRICK":                     "x}\nimage: evil # ${A} $A", // values are not expanded again
	} {
		if got, err := interpolate(text, env, 1000, 0); err != nil || got != want {
			t.Errorf("%q: want %q, got %q, %v", text, want, got, err)
		}
	}
	for text, want := range map[string]string{
		"$NONE":              "NONE is not set",
		"${NONE}":            "NONE is not set",
		"${NONE:?say $A}":    "NONE is not set: say a",
		"${EMPTY:?say}":      "EMPTY is empty: say",
		"${NONE?is not set}": "NONE is not set",
		"${NONE?say}":        "NONE is not set: say",
		"${NONE:-$MISSING}":  "MISSING is not set",
		"${A":                "without a closing }",
		"${":                 "without a closing }",
		"${}":                "name of a variable",
		"${1A}":              "name of a variable",
		"${A/x/y}":           "must be followed by",
		"${A:}":              "must be followed by",
		"${A:0:1}":           "must be followed by",
		strings.Repeat("${NONE:-", 40) + strings.Repeat("}", 40): "nested",
		strings.Repeat("$TRICK", 100):                            "too long",
	} {
		if got, err := interpolate(text, env, 1000, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %q, %v", text, want, got, err)
		}
	}
}

func TestVariablesChangeValuesNotTheDocument(t *testing.T) {
	env := map[string]string{"N": "2", "B": "true", "M": "64m", "P": "80", "EVIL": "x\nuser: root", "LIST": "[a, b]",
		"WORD": "two", "BYTES": "\xff"}
	read := func(text string) (*Document, error) { return Parse([]byte(text), Options{Env: env}) }
	d, err := read("image: ${EVIL}\ncpu: $N\npids: ${X:-100}\nread_only: ${B}\nmemory: $M\nports: [\"${P}\"]\nenv: {$N: " +
		"$LIST}\ngrace: ${N}s\ncommand: [$LIST]")
	if err != nil {
		t.Fatal(err)
	}
	want := protocol.SandboxSpec{Image: "x\nuser: root", CPU: 2, PIDs: 100, ReadOnly: true, Memory: 64 << 20,
		Ports: []protocol.Port{{Container: 80}},
		Env:   map[string]string{"$N": "[a, b]"}, Grace: protocol.Duration(2 * time.Second), Command: []string{"[a, b]"}}
	if !reflect.DeepEqual(d.Spec, want) {
		t.Errorf("got %+v\nwant %+v", d.Spec, want)
	}
	for text, want := range map[string]string{
		"image: x\nuser:\n  $NONE":     "spec.user: line 3, column 3: NONE is not set",
		"image: x\ncpu: $WORD":         `spec.cpu: line 2, column 6: must be a number, got "two"`,
		"image: x\ncommand: $LIST":     "must be a list",
		"image: x\nread_only: ${WORD}": "must be true or false",
		"image: x\nuser: ${BYTES}":     "spec.user: line 2, column 7: has a variable that is not valid UTF-8",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v", text, want, err)
		}
	}
}

func TestOnlyParseAllAcceptsSeveralDocuments(t *testing.T) {
	documents, err := ParseAll([]byte("---\nid: a\nimage: x\n---\n# nothing\n---\nid: b\nimage: x\ncpu: 9999\n"),
		Options{Name: "f"})
	if err != nil || len(documents) != 2 || documents[0].ID != "a" || documents[1].ID != "b" {
		t.Fatalf("got %+v, %v", documents, err)
	}
	if err := documents[1].Validate(); err == nil || !strings.Contains(err.Error(), "f: line 9, column 6") {
		t.Errorf("got %v", err)
	}
	for text, want := range map[string]string{
		"":          "no document",
		"# nothing": "no document",
		"a: 1":      "spec.a: line 1",
		strings.Repeat("---\nimage: x\n", MaxDocuments+1): "line 514, column 1: there are more than 256",
		strings.Repeat(" ", MaxFileBytes+1):               "more than 4194304 bytes",
	} {
		if _, err := ParseAll([]byte(text), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: want %q, got %v", text, want, err)
		}
	}
	d, err := Parse(nil, Options{})
	if err != nil || d.Spec.Image != "" {
		t.Errorf("an empty text: %+v, %v", d, err)
	}
}

func TestTheDocumentLimitAppliesAmongOthersToo(t *testing.T) {
	long := "---\nimage: x\n" + strings.Repeat("#", MaxBytes-14) + "\n"
	for text, want := range map[string]string{
		long:                     "",
		"image: x\n" + long:      "",
		long + "---\nimage: x\n": "",
		long + "#":               "spec: line 1, column 1: the document has more than 262144 bytes",
		long + "---x":            "spec: line 1, column 1: the document has more than",
		"image: x\n---\n\n" + long + "---\n" + long + "#": "spec: line 8, column 1: the document has more than",
	} {
		if _, err := ParseAll([]byte(text), Options{}); want == "" && err != nil || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes: want %q, got %v", len(text), want, err)
		}
	}
}

func TestYAMLBombsCostLittle(t *testing.T) {
	aliases := "env:\n  A0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 10; i++ {
		n, m := string(rune('0'+i)), string(rune('0'+i-1))
		aliases += "  A" + n + ": &a" + n + " [" + strings.Repeat("*a"+m+",", 9) + "]\n"
	}
	services := "image: x\nrequired_services:\n  a: &a {image: x, command: &c [" + strings.Repeat("x,", 1000) + "]}\n"
	for i := range 100 {
		services += "  s" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ": *a\n"
	}
	for name, text := range map[string]string{
		"aliases of aliases":  strings.Replace(aliases, "env:", "tools:", 1),
		"aliases in commands": "image: x\ncommand: &a [&b [" + strings.Repeat("*b,", 10) + "]]",
		"an alias of itself":  "image: x\nenv: &a\n  A: *a",
		"many services":       services,
		"a text many times": "image: x\nenv:\n  A: &a " + strings.Repeat("x", 10_000) + "\n" + strings.Repeat("", 1) +
			manyAliases(100),
		"a variable many times": "image: x\nenv:\n  A: \"" + strings.Repeat("$BIG", 1000) + "\"",
		"deep lists":            "image: " + strings.Repeat("[", 50_000),
		"deep maps":             "image: " + strings.Repeat("{a: ", 9_000),
		"too long":              strings.Repeat("#", MaxBytes+1),
		"many values":           "image: x\ntools: [" + strings.Repeat("a,", 100_000) + "]",
	} {
		started := time.Now()
		_, err := Parse([]byte(text), Options{Env: map[string]string{"BIG": strings.Repeat("x", 100_000)}})
		if took := time.Since(started); err == nil || took > 5*time.Second || len(err.Error()) > 1000 {
			t.Errorf("%s: took %s, %.200v", name, took, err)
		}
	}
}

func manyAliases(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("  A" + strings.Repeat("A", i+1) + ": *a\n")
	}
	return b.String()
}

func TestAnEmptyFlagClearsTheField(t *testing.T) {
	d, err := Parse([]byte("image: x\nread_only: true\ncpu: 2\nenv: {A: 1}\nnetwork: none"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"read_only", "cpu", "env", "network", "file"} {
		d.Clear(field)
	}
	if s := d.Spec; s.ReadOnly || s.CPU != 0 || s.Network != nil || s.Env["A"] != "1" {
		t.Errorf("got %+v", s)
	}
}

func TestAHealthCheckCanBeDisabled(t *testing.T) {
	for _, test := range []string{"NONE", "[NONE]"} {
		d, err := Parse([]byte("image: x\nrequired_services: {db: {image: y, healthcheck: {test: "+test+"}}}"), Options{})
		if err != nil || d.Validate() != nil || !d.Spec.RequiredServices["db"].Healthcheck.Disabled() {
			t.Errorf("%s: %+v, %v, %v", test, d, err, d.Validate())
		}
	}
}
