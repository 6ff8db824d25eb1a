package spec

import (
	"cmp"
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// decoder reads the YAML nodes of one document into the types of the wire, by their names there, so
// that each field has one spelling everywhere.
type decoder struct {
	document *Document
	options  Options
	field    string // that errors are about; default: spec
	nodes    int    // seen so far
	bytes    int    // of text, seen so far
	faults   faults
}

// whole reads a document, and says everything that is wrong with it.
func (d *decoder) whole(root *yaml.Node, into reflect.Value) error {
	return d.faults.ended(d.value(root, into, ""))
}

// wrong is the error of a value.
func (d *decoder) wrong(node *yaml.Node, path, format string, args ...any) error {
	field := cmp.Or(d.field, "spec")
	if path != "" {
		field = join(field, path)
	}
	return faultAt(d.options.Name, field, position{node.Line, node.Column}, format, args...)
}

// enter follows an alias, and checks what holds of every value: the text may be somebody else's, and
// a few lines of aliases can stand for gigabytes. How deep values nest needs no check: the types do
// not nest without end.
func (d *decoder) enter(node *yaml.Node, path string) (*yaml.Node, error) {
	at := node
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	d.nodes++
	switch {
	case d.nodes > maxNodes:
		d.faults.over = true
		return nil, d.wrong(at, path, "the document has more than %d values", maxNodes)
	case tagged(node):
		return nil, d.wrong(at, path, "has the tag %.40s; tags are not supported", node.Tag)
	}
	d.mark(at, path)
	return node, nil
}

// mark notes where a value is.
func (d *decoder) mark(node *yaml.Node, path string) {
	d.document.at[path] = position{node.Line, node.Column}
}

// value reads a node into a value of a wire type.
func (d *decoder) value(node *yaml.Node, into reflect.Value, path string) error {
	node, err := d.enter(node, path)
	if err != nil {
		return err
	}
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" {
		return d.wrong(node, path, "has no value; leave it out, or write \"\" for empty text")
	}
	if done, err := d.shortForm(node, into.Addr().Interface(), path); done || err != nil {
		return err
	}
	if t, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, err := d.scalar(node, path, "a value")
		if err == nil {
			if err := t.UnmarshalText([]byte(whole(node, text))); err != nil {
				return d.wrong(node, path, "%v", err)
			}
		}
		return err
	}
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		return d.value(node, into.Elem(), path)
	case reflect.Struct:
		return d.structure(node, into, path)
	case reflect.Slice:
		return d.list(node, into, path)
	case reflect.Map:
		return d.table(node, into, path)
	case reflect.String:
		text, err := d.text(node, path)
		into.SetString(text)
		return err
	case reflect.Bool:
		v, err := parsed(d, node, path, "true or false", func(s string) (bool, error) { return strconv.ParseBool(strings.ToLower(s)) }, "!!bool")
		into.SetBool(v)
		return err
	case reflect.Int, reflect.Int64:
		v, err := parsed(d, node, path, "a whole number", func(s string) (int64, error) { return strconv.ParseInt(whole(node, s), 10, into.Type().Bits()) }, "!!int", "!!float")
		into.SetInt(v)
		return err
	case reflect.Float64:
		v, err := parsed(d, node, path, "a number", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, "!!int", "!!float")
		into.SetFloat(v)
		return err
	}
	panic("spec: no YAML form for " + into.Type().String())
}

// structure reads a map of known fields.
func (d *decoder) structure(node *yaml.Node, into reflect.Value, path string) error {
	if node.Kind != yaml.MappingNode {
		return d.wrong(node, path, "must be a map of fields, got %s", describe(node))
	}
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(into.Type()) {
		if !f.Anonymous {
			fields[jsonName(f)] = f
		}
	}
	return d.entries(node, path, func(key, value *yaml.Node) error {
		f, known := fields[key.Value]
		if !known {
			return d.unknownField(key, path, fields)
		}
		return d.value(value, into.FieldByIndex(f.Index), join(path, key.Value))
	})
}

// entries calls f with each entry of a map, and refuses keys that are there twice.
func (d *decoder) entries(node *yaml.Node, path string, f func(key, value *yaml.Node) error) error {
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		err := d.key(key, path)
		switch {
		case err != nil:
		case seen[key.Value]:
			err = d.wrong(key, join(path, key.Value), "is there twice")
		default:
			seen[key.Value] = true
			err = f(key, node.Content[i+1])
		}
		if err := d.faults.add(err); err != nil {
			return err
		}
	}
	return nil
}

// key checks what holds of every key.
func (d *decoder) key(key *yaml.Node, path string) error {
	switch {
	case tagged(key):
		return d.wrong(key, path, "a key has the tag %.40s; tags are not supported", key.Tag)
	case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
		return d.wrong(key, path, "a key must be a name")
	case key.ShortTag() == "!!merge":
		return d.wrong(key, path, "merge keys are not supported")
	case len(key.Value) > 512:
		return d.wrong(key, path, "a key has more than 512 bytes")
	}
	return nil
}

func (d *decoder) list(node *yaml.Node, into reflect.Value, path string) error {
	if node.Kind != yaml.SequenceNode {
		hint := ""
		if node.Kind == yaml.ScalarNode && strings.HasSuffix(path, "command") {
			hint = `; for a line of shell write ["sh", "-c", "..."]`
		}
		return d.wrong(node, path, "must be a list, got %s%s", describe(node), hint)
	}
	into.Set(reflect.MakeSlice(into.Type(), 0, min(len(node.Content), 64)))
	for i, item := range node.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		v := reflect.New(into.Type().Elem()).Elem()
		if err := d.faults.add(d.value(item, v, at)); err != nil {
			return err
		}
		// Merge takes repeats away, and the errors that come after it would name another entry.
		if names, ok := into.Interface().([]string); ok && strings.HasSuffix(path, "tools") && v.String() != "" && slices.Contains(names, v.String()) {
			if err := d.faults.add(d.wrong(item, at, "is there twice: %.60s", v.String())); err != nil {
				return err
			}
		}
		into.Set(reflect.Append(into, v))
	}
	return nil
}

// table reads a map with names that the caller chooses.
func (d *decoder) table(node *yaml.Node, into reflect.Value, path string) error {
	if node.Kind != yaml.MappingNode {
		return d.wrong(node, path, "must be a map by name, got %s", describe(node))
	}
	into.Set(reflect.MakeMap(into.Type()))
	d.document.open[path] = true
	return d.entries(node, path, func(key, value *yaml.Node) error {
		v := reflect.New(into.Type().Elem()).Elem()
		if err := d.value(value, v, join(path, key.Value)); err != nil {
			return err
		}
		into.SetMapIndex(reflect.ValueOf(key.Value), v)
		return nil
	})
}

// text reads a text. A number is taken as it is written; what could be meant as true or false is not.
func (d *decoder) text(node *yaml.Node, path string) (string, error) {
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!bool" {
		return "", d.wrong(node, path, "must be text, got %s; put it in quotes", describe(node))
	}
	return d.scalar(node, path, "text")
}

// scalar is the text of a value, with its variables filled in.
func (d *decoder) scalar(node *yaml.Node, path, want string) (string, error) {
	if node.Kind != yaml.ScalarNode {
		return "", d.wrong(node, path, "must be %s, got %s", want, describe(node))
	}
	text := node.Value
	if node.ShortTag() == "!!str" {
		var err error
		if text, err = interpolate(node.Value, d.options.Env, MaxBytes, 0); err != nil {
			return "", d.wrong(node, path, "%v", err)
		}
		if !utf8.ValidString(text) {
			return "", d.wrong(node, path, "has a variable that is not UTF-8")
		}
	}
	if d.bytes += len(text); d.bytes > MaxBytes {
		d.faults.over = true
		return "", d.wrong(node, path, "with its variables and aliases the document has more than %d bytes of text", MaxBytes)
	}
	return text, nil
}

// parsed reads a value that is no text. Text is taken only where a variable made it.
func parsed[T any](d *decoder, node *yaml.Node, path, want string, parse func(string) (T, error), tags ...string) (T, error) {
	var zero T
	text, err := d.scalar(node, path, want)
	if err != nil {
		return zero, err
	}
	wanted := node.ShortTag() == "!!str" && text != node.Value
	for _, tag := range tags {
		wanted = wanted || node.ShortTag() == tag
	}
	if !wanted {
		return zero, d.wrong(node, path, "must be %s, got %s", want, describe(node))
	}
	v, err := parse(strings.ReplaceAll(text, "_", ""))
	if err != nil {
		return zero, d.wrong(node, path, "must be %s, got %.40q", want, text)
	}
	return v, nil
}

// whole writes a number such as 50.0 or 5e1 as the whole number that it is; a JSON Schema cannot tell
// them apart.
func whole(node *yaml.Node, text string) string {
	if v, err := strconv.ParseFloat(text, 64); err == nil && node.ShortTag() == "!!float" && v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatInt(int64(v), 10)
	}
	return text
}

func describe(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%.40q", node.Value)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
