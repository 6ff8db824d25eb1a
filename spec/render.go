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

// Layer is a spec to merge, with a name to show.
type Layer struct {
	Name string
	Spec protocol.SandboxSpec
}

// builtInOrigin is the origin of fields that no layer sets.
const builtInOrigin = "built in"

// Origins returns the layers that each field of a resolved spec comes from, by the wire name of the field. The layers
// are in the order of [Merge], lowest first.
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
				names = nil // the last layer replaces the others
			}
			names = append(names, layer.Name)
		}
		if names == nil {
			names = []string{builtInOrigin}
		}
		origins[jsonName(f)] = strings.Join(names, ", ")
	}
	return origins
}

// YAML encodes the document so that [Parse] returns it again. The parameter comments maps wire names of fields to
// comments for the fields' lines.
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
		panic("spec: write YAML: " + err.Error()) // unreachable: the nodes are built above
	}
	return out.Bytes()
}

// putSources adds the sources of local copies to the list of copies.
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

// structNode encodes the fields that are not empty.
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
	case protocol.Sealed:
		return node(protocol.Masked)
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

// exactSize returns a size as text in the largest unit that represents it exactly, or as a number.
func exactSize(size protocol.Bytes) any {
	text := size.String()
	if again, err := protocol.ParseBytes(text); err == nil && again == size && size >= 1<<10 {
		return text
	}
	return int64(size)
}

// node returns a scalar, quoted if necessary. Bytes that are not UTF-8 are replaced, because YAML cannot
// represent them.
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
