package protocol

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
)

// The errors of the decoders mention Go types, and the errors of the msgpack decoder do not name the field. When
// decoding fails, the payload is therefore decoded again without a type and compared with the expected type. The error
// then names the first mismatched field by its path in the payload.

// firstMismatch returns an error for the first field of a JSON or msgpack payload that does not fit the type of
// v, or nil if it finds none.
func firstMismatch(isJSON bool, data []byte, v any, strict bool) *Error {
	var payload any
	var err error
	if isJSON {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		err = dec.Decode(&payload)
	} else {
		payload, err = untyped(data)
	}
	if err != nil {
		return nil
	}
	return typeChecker{isJSON, strict}.check("", payload, reflect.TypeOf(v))
}

func untyped(data []byte) (v any, err error) {
	dec := msgpack.NewDecoder(bytes.NewReader(data))
	dec.UseLooseInterfaceDecoding(true)
	dec.SetMapDecoder(func(d *msgpack.Decoder) (any, error) { return d.DecodeUntypedMap() })
	return dec.DecodeInterface()
}

type typeChecker struct {
	json   bool
	strict bool // unknown fields are errors
}

var (
	durationType = reflect.TypeFor[Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
)

// check returns an error if the value does not fit the type.
func (c typeChecker) check(path string, value any, t reflect.Type) *Error {
	if value == nil {
		return nil
	}
	switch t {
	case durationType:
		return c.leaf(path, value, t, `text such as "90s" or "1h30m"`)
	case bytesType:
		return c.leaf(path, value, t, `bytes, as a whole number, or text such as "512m" or "4GiB"`)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return c.check(path, value, t.Elem())
	case reflect.Struct:
		return c.object(path, value, t)
	case reflect.Map:
		return c.entries(path, value, t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return c.binary(path, value)
		}
		list, ok := value.([]any)
		if !ok {
			return wrongType(path, "a list", value)
		}
		for i, v := range list {
			if e := c.check(fmt.Sprintf("%s[%d]", path, i), v, t.Elem()); e != nil {
				return e
			}
		}
		return nil
	case reflect.String:
		return c.leaf(path, value, t, "text")
	case reflect.Bool:
		return c.leaf(path, value, t, "true or false")
	case reflect.Float32, reflect.Float64:
		return c.leaf(path, value, t, "a number")
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return c.leaf(path, value, t, "a non-negative whole number")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return c.leaf(path, value, t, "a whole number")
	}
	return nil
}

func wrongType(path, want string, got any) *Error {
	return &Error{Code: InvalidArgument, Reason: ReasonUndecodable, Field: path,
		Message: "must be " + want + ", got " + describeValue(got)}
}

// describeValue describes a value of the payload without Go types.
func describeValue(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("the text %.40q", v)
	case []byte:
		return fmt.Sprintf("%d bytes", len(v))
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "a list"
	case map[any]any, map[string]any:
		return "an object"
	}
	return fmt.Sprintf("%.40s", fmt.Sprint(v))
}

// leaf checks a scalar by letting the decoder decode it.
func (c typeChecker) leaf(path string, value any, t reflect.Type, want string) *Error {
	v := reflect.New(t).Interface()
	var err error
	switch value.(type) {
	case []any, map[any]any, map[string]any:
		err = errors.ErrUnsupported
	default:
		if c.json {
			var data []byte
			if data, err = json.Marshal(value); err == nil {
				err = json.Unmarshal(data, v)
			}
		} else {
			var data []byte
			if data, err = msgpack.Marshal(value); err == nil {
				err = msgpack.Unmarshal(data, v)
			}
		}
	}
	if err != nil {
		return wrongType(path, want, value)
	}
	return nil
}

func (c typeChecker) binary(path string, value any) *Error {
	text, isText := value.(string)
	if !c.json {
		if _, isBytes := value.([]byte); isText || isBytes {
			return nil
		}
		return wrongType(path, "bytes", value)
	}
	if _, err := base64.StdEncoding.DecodeString(text); !isText || err != nil {
		return wrongType(path, "bytes in padded base64", value)
	}
	return nil
}

// keys returns the entries of an object and their sorted names, or nil if the value is not an object.
func keys(value any) (names []string, entries map[string]any) {
	entries = map[string]any{}
	switch m := value.(type) {
	case map[string]any:
		entries = m
	case map[any]any:
		for k, v := range m {
			switch k := k.(type) {
			case string:
				entries[k] = v
			case []byte:
				entries[string(k)] = v
			default:
				return nil, nil
			}
		}
	default:
		return nil, nil
	}
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, entries
}

func (c typeChecker) entries(path string, value any, t reflect.Type) *Error {
	names, entries := keys(value)
	if entries == nil {
		return wrongType(path, "an object", value)
	}
	for _, name := range names {
		if e := c.check(fieldPath(path, name), entries[name], t.Elem()); e != nil {
			return e
		}
	}
	return nil
}

// maxName limits how many bytes of a caller's field name an error repeats.
const maxName = 200

func fieldPath(path, name string) string {
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func (c typeChecker) object(path string, value any, t reflect.Type) *Error {
	names, entries := keys(value)
	if entries == nil {
		return wrongType(path, "an object", value)
	}
	for _, name := range names {
		field, known := c.field(t, name)
		switch {
		case !known && c.strict:
			return &Error{Code: InvalidArgument, Reason: ReasonUnknownField, Field: fieldPath(path, name),
				Message: "is not a known field"}
		case !known:
			continue
		}
		if e := c.check(fieldPath(path, name), entries[name], field); e != nil {
			return e
		}
	}
	return nil
}

// field returns the type of a field by its name on the wire. For JSON it ignores letter case, as the JSON decoder does.
func (c typeChecker) field(t reflect.Type, name string) (reflect.Type, bool) {
	for i := range t.NumField() {
		on, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if on != "-" && on != "" && (on == name || c.json && strings.EqualFold(on, name)) {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}
