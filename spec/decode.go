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

	"github.com/boxfleet/boxfleet/protocol"
)

// decoder decodes the YAML nodes of one document into wire types by their wire names, so that each field has
// the same spelling everywhere.
type decoder struct {
	document *Document
	options  Options
	field    string // prefix of the fields in errors; default: spec
	nodes    int    // decoded so far
	bytes    int    // bytes of text decoded so far
	faults   faults
}

// root decodes a document and reports all of its errors at once.
func (d *decoder) root(root *yaml.Node, into reflect.Value) error {
	return d.faults.result(d.value(root, into, ""))
}

// wrong returns an error about a value.
func (d *decoder) wrong(node *yaml.Node, path, format string, args ...any) error {
	field := cmp.Or(d.field, "spec")
	if path != "" {
		field = join(field, path)
	}
	return faultAt(d.options.Name, field, position{node.Line, node.Column}, format, args...)
}

// enter resolves an alias and checks the rules that every value must meet. The text is untrusted, and a few lines of
// aliases can expand to gigabytes. Nesting depth needs no check, because the types have a fixed depth.
func (d *decoder) enter(node *yaml.Node, path string) (*yaml.Node, error) {
	at := node
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	d.nodes++
	switch {
	case d.nodes > maxNodes:
		d.faults.stopped = true
		return nil, d.wrong(at, path, "the document has more than %d values", maxNodes)
	case tagged(node):
		return nil, d.wrong(at, path, "has the tag %.40s; tags are not supported", node.Tag)
	}
	d.mark(at, path)
	return node, nil
}

// mark records the position of a value.
func (d *decoder) mark(node *yaml.Node, path string) {
	d.document.at[path] = position{node.Line, node.Column}
}

// value decodes a node into a value of a wire type.
func (d *decoder) value(node *yaml.Node, into reflect.Value, path string) error {
	node, err := d.enter(node, path)
	if err != nil {
		return err
	}
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" {
		return d.wrong(node, path, "has no value; omit it, or write \"\" for empty text")
	}
	if done, err := d.shortForm(node, into.Addr().Interface(), path); done || err != nil {
		return err
	}
	if t, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, err := d.scalar(node, path, "a value")
		if err == nil {
			if err := t.UnmarshalText([]byte(integral(node, text))); err != nil {
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
		v, err := parsed(d, node, path, "true or false",
			func(s string) (bool, error) { return strconv.ParseBool(strings.ToLower(s)) }, "!!bool")
		into.SetBool(v)
		return err
	case reflect.Int, reflect.Int64:
		v, err := parsed(d, node, path, "a whole number",
			func(s string) (int64, error) { return strconv.ParseInt(integral(node, s), 10, into.Type().Bits()) },
			"!!int", "!!float")
		into.SetInt(v)
		return err
	case reflect.Uint64:
		v, err := parsed(d, node, path, "a whole number",
			func(s string) (uint64, error) { return strconv.ParseUint(integral(node, s), 10, 64) }, "!!int", "!!float")
		into.SetUint(v)
		return err
	case reflect.Float64:
		v, err := parsed(d, node, path, "a number",
			func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, "!!int", "!!float")
		into.SetFloat(v)
		return err
	}
	panic("spec: no YAML form for " + into.Type().String())
}

// structure decodes a map of known fields.
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
	err := d.entries(node, path, func(key, value *yaml.Node) error {
		f, known := fields[key.Value]
		if !known {
			return d.unknownField(key, path, fields)
		}
		return d.value(value, into.FieldByIndex(f.Index), join(path, key.Value))
	})
	if f, has := fields["sensitive_env"]; has && err == nil {
		d.placeSensitive(path, into.FieldByIndex(f.Index).Addr().Interface().(*map[string]protocol.Sealed))
	}
	return err
}

// entries calls f for each entry of a map, and rejects duplicate keys.
func (d *decoder) entries(node *yaml.Node, path string, f func(key, value *yaml.Node) error) error {
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		err := d.key(key, path)
		switch {
		case err != nil:
		case seen[key.Value]:
			err = d.wrong(key, join(path, key.Value), "appears twice")
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

// key checks the rules that every key must meet.
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
		// Refuse a repeated tool here. Merge would drop it silently, and the errors for later entries would have the
		// wrong index.
		names, ok := into.Interface().([]string)
		if ok && strings.HasSuffix(path, "tools") && v.String() != "" && slices.Contains(names, v.String()) {
			if err := d.faults.add(d.wrong(item, at, "appears twice: %.60s", v.String())); err != nil {
				return err
			}
		}
		into.Set(reflect.Append(into, v))
	}
	return nil
}

// table decodes a map whose keys the document's author chooses, such as labels.
func (d *decoder) table(node *yaml.Node, into reflect.Value, path string) error {
	if node.Kind != yaml.MappingNode {
		return d.wrong(node, path, "must be a map of names, got %s", describe(node))
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

// text decodes text. It takes numbers as they are written, but rejects booleans, which are probably a mistake.
func (d *decoder) text(node *yaml.Node, path string) (string, error) {
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!bool" {
		return "", d.wrong(node, path, "must be text, got %s; put it in quotes", describe(node))
	}
	return d.scalar(node, path, "text")
}

// scalar returns the text of a value with its variables expanded.
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
			return "", d.wrong(node, path, "has a variable that is not valid UTF-8")
		}
	}
	if d.bytes += len(text); d.bytes > MaxBytes {
		d.faults.stopped = true
		return "", d.wrong(node, path, "with its variables and aliases the document has more than %d bytes of text", MaxBytes)
	}
	return text, nil
}

// parsed decodes a value that is not text. It accepts text only if a variable expanded to it.
func parsed[T any](
	d *decoder, node *yaml.Node, path, want string, parse func(string) (T, error), tags ...string,
) (T, error) {
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

// integral converts a whole number in a form such as 50.0 or 5e1 to 50, because a JSON Schema accepts all these forms
// as an integer. It returns other text unchanged.
func integral(node *yaml.Node, text string) string {
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && node.ShortTag() == "!!float" && v == math.Trunc(v) && math.Abs(v) < 1<<53 {
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
