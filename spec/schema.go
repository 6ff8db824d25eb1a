package spec

import _ "embed"

// A test generates the schema from protocol's types and their comments:
//
//	go test ./spec -run TestTheSchemaIsTheTypes -update
//
//go:embed sandbox.schema.json
var schema []byte

//go:embed example.yaml
var example []byte

// Schema returns the JSON Schema of a document, for editors.
func Schema() []byte { return append([]byte(nil), schema...) }

// Example returns a document with every field.
func Example() []byte { return append([]byte(nil), example...) }
