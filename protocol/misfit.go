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

// The decoders say what is wrong in terms of Go, and the one of msgpack not where. So where one fails, the payload is
// read once more without a type, and compared with what it should be: the first field that does not fit is named by
// its path in the payload.

// misfit looks for the first field of a JSON or msgpack payload that v cannot take. nil: it finds none.
func misfit(isJSON bool, data []byte, v any, strict bool) *Error {
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
	return fitting{isJSON, strict}.check("", payload, reflect.TypeOf(v))
}

func untyped(data []byte) (v any, err error) {
	dec := msgpack.NewDecoder(bytes.NewReader(data))
	dec.UseLooseInterfaceDecoding(true)
	dec.SetMapDecoder(func(d *msgpack.Decoder) (any, error) { return d.DecodeUntypedMap() })
	return dec.DecodeInterface()
}

type fitting struct {
	json   bool
	strict bool // fields that are not known do not fit
}

var (
	durationType = reflect.TypeFor[Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
)

// check returns why a value does not fit a type, nil where it does.
func (f fitting) check(path string, value any, t reflect.Type) *Error {
	if value == nil {
		return nil
	}
	switch t {
	case durationType:
		return f.leaf(path, value, t, `text such as "90s" or "1h30m"`)
	case bytesType:
		return f.leaf(path, value, t, `bytes, as a whole number, or text such as "512m" or "4GiB"`)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return f.check(path, value, t.Elem())
	case reflect.Struct:
		return f.object(path, value, t)
	case reflect.Map:
		return f.entries(path, value, t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return f.binary(path, value)
		}
		list, ok := value.([]any)
		if !ok {
			return wrongType(path, "a list", value)
		}
		for i, v := range list {
			if e := f.check(fmt.Sprintf("%s[%d]", path, i), v, t.Elem()); e != nil {
				return e
			}
		}
		return nil
	case reflect.String:
		return f.leaf(path, value, t, "text")
	case reflect.Bool:
		return f.leaf(path, value, t, "true or false")
	case reflect.Float32, reflect.Float64:
		return f.leaf(path, value, t, "a number")
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return f.leaf(path, value, t, "a whole number, not negative")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return f.leaf(path, value, t, "a whole number")
	}
	return nil
}

func wrongType(path, want string, got any) *Error {
	return &Error{Code: InvalidArgument, Reason: ReasonUndecodable, Field: path, Message: "must be " + want + ", got " + described(got)}
}

// described says what a value is, in words of the payload.
func described(v any) string {
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

// leaf has the decoder itself judge a value that has no others in it.
func (f fitting) leaf(path string, value any, t reflect.Type, want string) *Error {
	v := reflect.New(t).Interface()
	var err error
	switch value.(type) {
	case []any, map[any]any, map[string]any:
		err = errors.ErrUnsupported
	default:
		if f.json {
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

func (f fitting) binary(path string, value any) *Error {
	text, isText := value.(string)
	if !f.json {
		if _, isBytes := value.([]byte); isText || isBytes {
			return nil
		}
		return wrongType(path, "bytes", value)
	}
	if _, err := base64.StdEncoding.DecodeString(text); !isText || err != nil {
		return wrongType(path, "bytes in base64, with its padding", value)
	}
	return nil
}

// keys lists the entries of an object by name, nil where it is none.
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

func (f fitting) entries(path string, value any, t reflect.Type) *Error {
	names, entries := keys(value)
	if entries == nil {
		return wrongType(path, "an object", value)
	}
	for _, name := range names {
		if e := f.check(joined(path, name), entries[name], t.Elem()); e != nil {
			return e
		}
	}
	return nil
}

// maxName is how much of a name that somebody chose is said.
const maxName = 200

func joined(path, name string) string {
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func (f fitting) object(path string, value any, t reflect.Type) *Error {
	names, entries := keys(value)
	if entries == nil {
		return wrongType(path, "an object", value)
	}
	for _, name := range names {
		field, known := f.field(t, name)
		switch {
		case !known && f.strict:
			return &Error{Code: InvalidArgument, Reason: ReasonUnknownField, Field: joined(path, name), Message: "is not a known field"}
		case !known:
			continue
		}
		if e := f.check(joined(path, name), entries[name], field); e != nil {
			return e
		}
	}
	return nil
}

// field finds a field by its name on the wire, in JSON also in another letter case, as its decoder does.
func (f fitting) field(t reflect.Type, name string) (reflect.Type, bool) {
	for i := range t.NumField() {
		on, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if on != "-" && on != "" && (on == name || f.json && strings.EqualFold(on, name)) {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}
