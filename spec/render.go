package spec

import (
	"bytes"
	"encoding"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
)

// Layer is one of the specs that are put together, and what people call it.
type Layer struct {
	Name string
	Spec protocol.SandboxSpec
}

// builtIn is the origin of what no layer says.
const builtIn = "built in"

// Origins says where each field of a resolved spec comes from. Layers are given as [Merge] gets them,
// the lowest first.
func Origins(resolved protocol.SandboxSpec, layers ...Layer) map[string]string {
	origins := map[string]string{}
	v := reflect.ValueOf(resolved)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if isEmpty(v.Field(i)) {
			continue
		}
		var names []string
		for _, layer := range layers {
			if isEmpty(reflect.ValueOf(layer.Spec).Field(i)) {
				continue
			}
			if f.Type.Kind() != reflect.Map && (f.Type.Kind() != reflect.Slice || replaced(f)) {
				names = nil // only the last one counts
			}
			names = append(names, layer.Name)
		}
		if names == nil {
			names = []string{builtIn}
		}
		origins[jsonName(f)] = strings.Join(names, ", ")
	}
	return origins
}

// YAML writes the document so that [Parse] reads the same again, with comments behind the fields
// that have one.
func (d *Document) YAML(comments map[string]string) []byte {
	fields := &yaml.Node{Kind: yaml.MappingNode}
	if d.ID != "" {
		fields.Content = append(fields.Content, node("id"), node(d.ID))
	}
	if d.Name != "" {
		fields.Content = append(fields.Content, node("name"), node(d.Name))
	}
	fields.Content = append(fields.Content, structNode(reflect.ValueOf(d.Spec)).Content...)
	for i := 0; i+1 < len(fields.Content); i += 2 {
		key, value := fields.Content[i], fields.Content[i+1]
		if key.Value == "copies" {
			d.putSources(value)
		}
		if comment := comments[key.Value]; comment != "" && value.Kind == yaml.ScalarNode {
			value.LineComment = "# " + comment
		} else if comment != "" {
			key.LineComment = "# " + comment
		}
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(fields); err != nil {
		panic("spec: write YAML: " + err.Error()) // a node that was made here
	}
	return out.Bytes()
}

// putSources puts what is yet to be uploaded into the list of copies.
func (d *Document) putSources(copies *yaml.Node) {
	for _, c := range d.Copies {
		local := struct {
			Source  string   `json:"source"`
			Exclude []string `json:"exclude"`
		}{c.Source, c.Exclude}
		entry := copies.Content[c.Index]
		entry.Content = append(structNode(reflect.ValueOf(local)).Content, entry.Content...)
	}
}

// structNode writes the fields that are not empty.
func structNode(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := range v.NumField() {
		if !isEmpty(v.Field(i)) {
			n.Content = append(n.Content, node(jsonName(v.Type().Field(i))), valueNode(v.Field(i)))
		}
	}
	return n
}

func valueNode(v reflect.Value) *yaml.Node {
	switch value := v.Interface().(type) {
	case protocol.Bytes:
		return node(exactSize(value))
	case encoding.TextMarshaler:
		text, err := value.MarshalText()
		if err != nil {
			panic("spec: write YAML: " + err.Error())
		}
		return node(string(text))
	}
	switch v.Kind() {
	case reflect.Pointer:
		return valueNode(v.Elem())
	case reflect.Struct:
		return structNode(v)
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range v.Seq2() {
			n.Content = append(n.Content, valueNode(item))
		}
		if v.Type().Elem().Kind() == reflect.String {
			n.Style = yaml.FlowStyle
		}
		return n
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			n.Content = append(n.Content, node(key.String()), valueNode(v.MapIndex(key)))
		}
		return n
	case reflect.String:
		return node(strings.ReplaceAll(v.String(), "$", "$$"))
	}
	return node(v.Interface())
}

// exactSize is a size in the largest unit that says it exactly.
func exactSize(size protocol.Bytes) any {
	text := size.String()
	if again, err := protocol.ParseBytes(text); err == nil && again == size && size >= 1<<10 {
		return text
	}
	return int64(size)
}

// node is a scalar, quoted where it has to be. Bytes that are no text have no form in YAML.
func node(value any) *yaml.Node {
	n := &yaml.Node{}
	text, ok := value.(string)
	if ok {
		text = strings.ToValidUTF8(text, "\ufffd")
		value = text
	}
	if ok && strings.ContainsAny(text, "\n\r\t") {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Style: yaml.DoubleQuotedStyle}
	}
	if err := n.Encode(value); err != nil {
		panic("spec: write YAML: " + err.Error())
	}
	return n
}
