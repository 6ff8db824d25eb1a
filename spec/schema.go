package spec

import _ "embed"

// The schema is written by its test, which makes it from the types of protocol and their comments:
//
//	go test ./spec -run TestTheSchemaIsTheTypes -update
//
//go:embed sandbox.schema.json
var schema []byte

//go:embed example.yaml
var example []byte

// Schema is the JSON Schema of a document, for editors.
func Schema() []byte { return append([]byte(nil), schema...) }

// Example is a document with every field.
func Example() []byte { return append([]byte(nil), example...) }
