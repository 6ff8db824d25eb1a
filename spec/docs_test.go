package spec

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// sections maps each type to the heading below which docs/spec.md describes the type.
var sections = map[string]string{
	"SandboxSpec": "## Fields", "Network": "### network", "Port": "### ports", "Mount": "### mounts", "Copy": "### copies",
	"Tmpfs": "### tmpfs", "Hook": "### Commands of hooks", "Service": "### Services", "Healthcheck": "### healthcheck",
	"SecretUse": "### secrets",
}

func TestEveryFieldIsInTheSchemaAndTheDocumentation(t *testing.T) {
	data, err := os.ReadFile("../docs/spec.md")
	if err != nil {
		t.Fatal(err)
	}
	var root jsonschema.Schema
	if err := json.Unmarshal(Schema(), &root); err != nil {
		t.Fatal(err)
	}
	defaults := defaultsOf()
	for _, typ := range wireTypes {
		schema := root.Defs[typ.Name()]
		if len(schema.AnyOf) > 0 {
			schema = schema.AnyOf[0]
		}
		rows := rowsBelow(string(data), sections[typ.Name()])
		for i := range typ.NumField() {
			name := jsonName(typ.Field(i))
			if schema.Properties[name] == nil {
				t.Errorf("the schema of %s lacks %s", typ.Name(), name)
			}
			row, there := rows[name]
			if !there {
				t.Errorf("docs/spec.md has no row for %s of %s below %q", name, typ.Name(), sections[typ.Name()])
			}
			if def := strings.Trim(string(defaults[typ.Name()+"."+name]), `"`); def != "" && row != "`"+def+"`" {
				t.Errorf("docs/spec.md: the default of %s of %s is `%s`, not %s", name, typ.Name(), def, row)
			}
			delete(rows, name)
		}
		for name := range rows {
			if schema.Properties[name] == nil {
				t.Errorf("docs/spec.md documents %s of %s, which does not exist", name, typ.Name())
			}
		}
	}
}

func TestEveryTypeOfASpecIsDocumented(t *testing.T) {
	known := map[reflect.Type]bool{}
	for _, typ := range wireTypes {
		known[typ] = true
	}
	for _, typ := range wireTypes {
		for i := range typ.NumField() {
			field := typ.Field(i).Type
			for field.Kind() == reflect.Slice || field.Kind() == reflect.Map || field.Kind() == reflect.Pointer {
				field = field.Elem()
			}
			if field.Kind() == reflect.Struct && !known[field] {
				t.Errorf("%s of %s has a type that is missing in schema and documentation: %s", typ.Field(i).Name, typ, field)
			}
		}
	}
}

// rowsBelow returns the fields and their defaults in the first table below a heading.
func rowsBelow(text, heading string) map[string]string {
	rows := map[string]string{}
	_, section, _ := strings.Cut(text, "\n"+heading+"\n")
	for _, line := range strings.Split(section, "\n") {
		if strings.HasPrefix(line, "#") {
			break
		}
		cells := strings.Split(line, " | ")
		if name, ok := strings.CutPrefix(cells[0], "| `"); ok && len(cells) > 1 {
			rows[strings.TrimSuffix(name, "`")] = strings.TrimSpace(cells[1])
		}
	}
	return rows
}
