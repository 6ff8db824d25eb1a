package spec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
)

var update = flag.Bool("update", false, "write sandbox.schema.json from the types")

// wireTypes are the Go types whose fields can stand in a document.
var wireTypes = []reflect.Type{
	reflect.TypeFor[protocol.SandboxSpec](), reflect.TypeFor[protocol.Network](), reflect.TypeFor[protocol.Port](),
	reflect.TypeFor[protocol.Mount](), reflect.TypeFor[protocol.Copy](), reflect.TypeFor[protocol.Tmpfs](),
	reflect.TypeFor[protocol.Hook](), reflect.TypeFor[protocol.Service](), reflect.TypeFor[protocol.Healthcheck](),
	reflect.TypeFor[protocol.SecretUse](),
}

// variable matches text with a variable, which may expand to anything.
func variable() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `\$`}
}

func anyOf(schemas ...*jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: schemas}
}

func text(pattern string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: pattern}
}

// enum matches one of the values, empty text, or text that contains a variable.
func enum(values ...any) *jsonschema.Schema {
	return anyOf(&jsonschema.Schema{Enum: values}, text(`^$|\$`))
}

// scalarOf matches text that may also be written as a value of these types.
func scalarOf(types ...string) *jsonschema.Schema {
	return &jsonschema.Schema{Types: append([]string{"string"}, types...)}
}

// nonEmpty matches text that is not empty.
func nonEmpty() *jsonschema.Schema { return anyOf(text(`\S`), &jsonschema.Schema{Type: "number"}) }

// sizeForm is the pattern of a size.
const sizeForm = `\s*([0-9]+ *[bB]?|([0-9]+|[0-9]*\.[0-9]+) *[kKmMgGtT]([iI]?[bB])?)\s*`

// sensitiveForm matches an entry of env with a sensitive value.
func sensitiveForm() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Required: []string{"sensitive"},
		Properties:           map[string]*jsonschema.Schema{"sensitive": scalarOf("number", "boolean")},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}
}

// typeForms returns the schemas of types with special forms in YAML.
func typeForms() map[reflect.Type]*jsonschema.Schema {
	zero := 0.0
	forms := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[protocol.Duration](): anyOf(&jsonschema.Schema{Enum: []any{0}},
			text(`^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$|^0$|\$`)),
		reflect.TypeFor[protocol.Bytes](): anyOf(&jsonschema.Schema{Type: "integer", Minimum: &zero},
			text("^"+sizeForm+`$|\$`)),
		reflect.TypeFor[map[string]string](): anyOf(
			&jsonschema.Schema{Type: "object", AdditionalProperties: anyOf(scalarOf("number", "boolean"), sensitiveForm())},
			&jsonschema.Schema{Type: "array", Items: text(`=|\$`)}),
	}
	forms[reflect.TypeFor[map[string]protocol.Sealed]()] = &jsonschema.Schema{Type: "object",
		AdditionalProperties: scalarOf("number", "boolean")}
	for _, t := range wireTypes {
		forms[t] = &jsonschema.Schema{Ref: "#/$defs/" + t.Name()}
	}
	return forms
}

// fieldForms returns the schemas of fields with special forms.
func fieldForms() map[string]*jsonschema.Schema {
	return map[string]*jsonschema.Schema{
		"SandboxSpec.image":        nonEmpty(),
		"SandboxSpec.cwd":          text(`^/|^$|\$`),
		"Mount.source":             text(`^/|\$`),
		"Mount.target":             text(`^/|\$`),
		"Copy.target":              text(`^/|\$`),
		"Copy.digest":              text(`^sha256-[0-9a-f]{64}$|\$`),
		"Tmpfs.target":             text(`^/|\$`),
		"Network.allow":            {Type: "array", Items: text(`/|\$`)},
		"Service.image":            nonEmpty(),
		"Healthcheck.test":         anyOf(nonEmpty(), &jsonschema.Schema{Type: "array", Items: scalarOf("number")}),
		"SandboxSpec.profile":      enum(protocol.ProfileHardened, protocol.ProfileStandard),
		"Service.profile":          enum(protocol.ProfileHardened, protocol.ProfileStandard),
		"SandboxSpec.pull":         enum(protocol.PullMissing, protocol.PullAlways, protocol.PullNever),
		"SandboxSpec.on_host_loss": enum(protocol.OnHostLossWait, protocol.OnHostLossFail, protocol.OnHostLossReplace),
		"SandboxSpec.placement":    {Type: "array", Items: text(`=| in |\$`)},
		"Network.mode":             enum(protocol.NetworkInternet, protocol.NetworkNone, protocol.NetworkAllow),
		"SecretUse.name":           text(`^[A-Za-z0-9_-]{1,64}$|\$`),
		"SandboxSpec.labels": anyOf(&jsonschema.Schema{Type: "object", AdditionalProperties: scalarOf("number", "boolean")},
			&jsonschema.Schema{Type: "array", Items: text(`=|\$`)}),
		"Port.protocol": enum(protocol.ProtocolTCP, protocol.ProtocolUDP, protocol.ProtocolSCTP),
	}
}

// shortForms returns the schemas of the short forms of types.
func shortForms() map[string]*jsonschema.Schema {
	return map[string]*jsonschema.Schema{
		"Network": anyOf(&jsonschema.Schema{Enum: []any{protocol.NetworkInternet, protocol.NetworkNone}}, variable()),
		"Port": anyOf(&jsonschema.Schema{Type: "integer"},
			text(`^(127\.0\.0\.1:)?([0-9]+:)?[0-9]+(/(tcp|udp|sctp))?$|\$`)),
		"Mount":     text(`^[^:]+:[^:]+(:ro|:rw)?$|\$`),
		"Copy":      text(`^[^:]+:([^/:]+:)?/|\$`),
		"Tmpfs":     text("^/[^:]*(:" + sizeForm + `)?$|\$`),
		"SecretUse": text(`^[A-Za-z0-9_-]{1,64}(,(file=[^,]+|env=[^,]+|version=[0-9]+|mask))*$|\$`),
		"Hook":      {Type: "array", Items: scalarOf("number")},
	}
}

// generated returns the schema, generated from the wire types and their comments.
func generated(t *testing.T) []byte {
	t.Helper()
	comments, defaults := commentsOf(t, "../protocol"), defaultsOf()
	root := &jsonschema.Schema{Schema: "https://json-schema.org/draft/2020-12/schema", Title: "A Boxfleet sandbox",
		Ref:  "#/$defs/SandboxSpec",
		Defs: map[string]*jsonschema.Schema{}}
	forms := typeForms()
	for _, typ := range wireTypes {
		others := map[reflect.Type]*jsonschema.Schema{}
		for other, form := range forms {
			if other != typ {
				others[other] = form
			}
		}
		s, err := jsonschema.ForType(typ, &jsonschema.ForOptions{TypeSchemas: others})
		if err != nil {
			t.Fatal(err)
		}
		s.Description = comments[typ.Name()]
		for name, property := range s.Properties {
			path := typ.Name() + "." + name
			if form := fieldForms()[path]; form != nil {
				property = form
			}
			property = inYAML(property)
			property.Description, property.Default = comments[path], defaults[path]
			s.Properties[name] = property
		}
		switch typ.Name() {
		case "SandboxSpec":
			s.Properties["id"] = anyOf(&jsonschema.Schema{Type: "integer", Minimum: jsonschema.Ptr(0.0)},
				text(`^[A-Za-z0-9_-]{0,64}$|\$`))
			s.Properties["id"].Description = "the sandbox's id, which can be used once; default: a new one"
			s.Properties["name"] = anyOf(&jsonschema.Schema{Type: "integer", Minimum: jsonschema.Ptr(0.0)},
				text(`^[A-Za-z0-9_-]{0,64}$|\$`))
			s.Properties["name"].Description = "the sandbox's name, which one living sandbox has; default: none; apply finds " +
				"its sandboxes by it"
			s.PropertyOrder = append([]string{"id", "name"}, s.PropertyOrder...)
		case "Copy":
			s.Properties["source"] = &jsonschema.Schema{Types: []string{"string", "number"},
				Description: "file or directory of this machine, as seen from the document's file; it is uploaded"}
			s.Properties["exclude"] = &jsonschema.Schema{Type: "array", Items: scalarOf("number"),
				Description: "what is not uploaded of source"}
			s.Required = []string{"target"}
			s.OneOf = []*jsonschema.Schema{{Required: []string{"source"}}, {Required: []string{"digest"}}}
		}
		if short := shortForms()[typ.Name()]; short != nil {
			description := s.Description
			s.Description = ""
			s = anyOf(s, short)
			s.Description = description
		}
		root.Defs[typ.Name()] = s
	}
	data, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(data, '\n')
}

// inYAML adapts a schema to YAML: it removes null, which documents do not have, and allows variables instead of
// numbers, and numbers instead of text.
func inYAML(s *jsonschema.Schema) *jsonschema.Schema {
	switch s.Types = slices.DeleteFunc(s.Types, func(t string) bool { return t == "null" }); len(s.Types) {
	case 0:
		s.Types = nil
	case 1:
		s.Type, s.Types = s.Types[0], nil
	}
	switch {
	case s.Type == "number" || s.Type == "integer" || s.Type == "boolean":
		return anyOf(s, variable())
	case s.Type == "string" && s.Pattern == "":
		s.Type, s.Types = "", []string{"string", "number"}
	case s.Type == "array" || s.Type == "object":
		for _, inner := range []*jsonschema.Schema{s.Items, s.AdditionalProperties} {
			if inner != nil {
				inYAML(inner)
			}
		}
	}
	return s
}

// commentsOf returns the comments of types, as Type, and of their fields, as Type.name.
func commentsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	comments := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), dir+"/"+entry.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			types, ok := decl.(*ast.GenDecl)
			if !ok || types.Tok != token.TYPE {
				continue
			}
			for _, spec := range types.Specs {
				typ := spec.(*ast.TypeSpec)
				fields, ok := typ.Type.(*ast.StructType)
				if !ok {
					continue
				}
				comments[typ.Name.Name] = oneLine(types.Doc.Text())
				for _, f := range fields.Fields.List {
					if f.Tag != nil {
						name := jsonName(reflect.StructField{Tag: reflect.StructTag(strings.Trim(f.Tag.Value, "`"))})
						comments[typ.Name.Name+"."+name] = oneLine(cmp.Or(f.Comment.Text(), f.Doc.Text()))
					}
				}
			}
		}
	}
	return comments
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// defaultsOf returns the values that Resolve fills in.
func defaultsOf() map[string]json.RawMessage {
	s := protocol.SandboxSpec{OnDelete: &protocol.Hook{}, Ports: []protocol.Port{{}},
		RequiredServices: map[string]protocol.Service{"s": {Healthcheck: &protocol.Healthcheck{}}}}
	s.Resolve()
	service := s.RequiredServices["s"]
	defaults := map[string]json.RawMessage{}
	for name, v := range map[string]any{"SandboxSpec": s, "Network": *s.Network, "Hook": *s.OnDelete, "Port": s.Ports[0],
		"Service": service, "Healthcheck": *service.Healthcheck} {
		fields := reflect.ValueOf(v)
		for i := range fields.NumField() {
			switch f := fields.Field(i); f.Kind() {
			case reflect.Pointer, reflect.Slice, reflect.Map:
			default:
				if !f.IsZero() {
					data, _ := json.Marshal(f.Interface())
					if size, ok := f.Interface().(protocol.Bytes); ok {
						data, _ = json.Marshal(exactSize(size))
					}
					defaults[name+"."+jsonName(fields.Type().Field(i))] = data
				}
			}
		}
	}
	return defaults
}

func TestTheSchemaIsTheTypes(t *testing.T) {
	want := generated(t)
	if *update {
		if err := os.WriteFile("sandbox.schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(Schema(), want) {
		t.Error("sandbox.schema.json does not match the types; run go test ./spec -run TestTheSchemaIsTheTypes -update")
	}
}

// checker validates documents against the committed schema.
func checker(t *testing.T) func(text string) error {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		return resolved.Validate(v)
	}
}

func TestTheExampleHoldsAndHasEveryField(t *testing.T) {
	d, err := Parse(Example(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	if err := checker(t)(string(Example())); err != nil {
		t.Error(err)
	}
	s := reflect.TypeOf(d.Spec)
	for i := range s.NumField() {
		if _, there := d.at[jsonName(s.Field(i))]; !there {
			t.Errorf("the example has no %s", jsonName(s.Field(i)))
		}
	}
}

func TestTheSchemaAcceptsExactlyTheFormsThatParse(t *testing.T) {
	check := checker(t)
	for text, holds := range map[string]bool{
		"image: x":        true,
		"image: x\nid: a": true,
		"image: x\ncpu: ${CPU}\npids: 50\nread_only: $R":                                                             true,
		"image: x\nmemory: 64m\ndisk: 67108864\ngrace: 1m30s":                                                        true,
		"image: x\nenv: [A=1]\nlabels: {a: 1, b: true}":                                                              true,
		"image: x\nplacement: [\"a=b\", \"c in (d, e)\", \"f!=g\"]\non_host_loss: replace":                           true,
		"image: x\nplacement: [a]":                                                                                   false,
		"image: x\nnetwork: none":                                                                                    true,
		"image: x\nnetwork: {allow: [10.0.0.0/8]}":                                                                   true,
		"image: x\nports: [80, \"1:2/udp\", {container: 3}]":                                                         true,
		"image: x\nmounts: [\"/a:/b:rw\", {source: /a, target: /c}]":                                                 true,
		"image: x\ncopies: [\"a:/b\", {source: a, target: /c}]":                                                      true,
		"image: x\non_delete: [a, 1]\nuser: 5":                                                                       true,
		"image: x\nrequired_services: {db: {image: y, post_start: [[a]], healthcheck: {test: a}}}":                   true,
		"image: x\ncopies: [\"a:db:/b\", {source: a, target: /c, service: db}]\noptional_services: {db: {image: y}}": true,

		"image: 1":  true,
		"image: ''": false,
		"image: x\ncopies: [{source: 5, exclude: [5], target: /a, owner: 70}]": true,
		"image: x\nid: 5":                                            true,
		"image: x\nid: 5.5":                                          false,
		"image: x\nid: a.b":                                          false,
		"image: x\nid: ''\nprofile: ''\nhostname: ''":                true,
		"image: x\nhostname: 5\nuser: 1.5\ngpus: 1":                  true,
		"image: x\nhostname: true":                                   false,
		"image: x\ntools: [5]":                                       true,
		"image: x\ntools: [true]":                                    false,
		"image: x\nttl: 0\nidle_ttl: '0'\ngrace: +.5s":               true,
		"image: x\nttl: 1":                                           false,
		"image: x\nttl: 1.5":                                         false,
		"image: x\nttl: ''":                                          false,
		"image: x\nttl: -1s":                                         false,
		"image: x\nmemory: m":                                        false,
		"image: x\nmemory: ''":                                       false,
		"image: x\nmemory: 1.5":                                      false,
		"image: x\nmemory: '64000000.5'":                             false,
		"image: x\nmemory: ' .5 GiB '":                               true,
		"image: x\nmemory: 67108864.0\npids: 50.0\nports: [80.0]":    true,
		"image: x\npids: 1e2":                                        true,
		"image: x\npids: 50.5":                                       false,
		"image: x\npids: '50'":                                       false,
		"image: x\ntmpfs: [/a, \"/b:64m\", {target: /c, size: 64k}]": true,
		"image: x\ntmpfs: [\"/a:\"]":                                 false,
		"image: x\ntmpfs: [\"/a:m\"]":                                false,
		"image: x\ntmpfs: [a]":                                       false,
		"image: x\ncopies: [\"a:b\"]":                                false,
		"image: x\ncopies: [\"a::/b\"]":                              false,
		"image: x\ncopies: [\"a:db:\"]":                              false,
		"image: x\nmounts: [\"/a:/b:z\"]":                            false,
		"image: x\nports: [\"80/\"]":                                 false,
		"image: x\ncwd: ''":                                          true,
		"image: x\ncwd: 5":                                           false,
		"image: x\nmounts: [{source: 5, target: /a}]":                false,
		"image: x\nmounts: [{source: /a, target: 5}]":                false,
		"image: x\ncopies: [{digest: 5, target: /a}]":                false,
		"image: x\nnetwork: {allow: [5]}":                            false,
		"image: x\nnetwork: ''":                                      false,
		"image: x\nrequired_services: {db: {image: y, healthcheck: {test: 5}}}":  true,
		"image: x\nrequired_services: {db: {image: y, healthcheck: {test: ''}}}": false,

		"image: x\nenv: {A: {sensitive: 1}, B: b}\nsensitive_env: {C: c}":              true,
		"image: x\nenv: {A: {sensitive: a, b: c}}":                                     false,
		"image: x\nlabels: {A: {sensitive: a}}":                                        false,
		"image: x\nsensitive_env: [A=b]":                                               false,
		"image: x\nsecrets: [db, \"db,env=DB,version=3,mask\", {name: db, file: a/b}]": true,
		"image: x\nsecrets: [\"db,what=1\"]":                                           false,
		"image: x\nsecrets: [\"a b\"]":                                                 false,
		"image: x\nsecrets: [{file: a}]":                                               false,

		"image: x\nimagee: y":                          false,
		"user: x":                                      false,
		"image: x\ncpu: many":                          false,
		"image: x\ngrace: 5":                           false,
		"image: x\nmemory: 1q":                         false,
		"image: x\ncommand: ls":                        false,
		"image: x\nenv: [a]":                           false,
		"image: x\nenv: {A: [1]}":                      false,
		"image: x\nnetwork: host":                      false,
		"image: x\nports: [a]":                         false,
		"image: x\nports: 80":                          false,
		"image: x\nprofile: weak":                      false,
		"image: x\ncopies: [{target: /a}]":             false,
		"image: x\nrequired_services: {db: {}}":        false,
		"image: x\nrequired_services: {db: {imag: y}}": false,
	} {
		if err := check(text); (err == nil) != holds {
			t.Errorf("%q: the schema accepts it: %v, want %v: %v", text, err == nil, holds, err)
		}
		d, err := Parse([]byte(text), Options{Env: map[string]string{"CPU": "1", "R": "true"}})
		if err == nil {
			err = d.Validate()
		}
		if (err == nil) != holds {
			t.Errorf("%q: parsed: %v, want %v: %v", text, err == nil, holds, err)
		}
	}
}
