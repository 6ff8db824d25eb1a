package protocol

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// canonical returns a deep copy of v without the differences that are lost on the wire: an empty map or list is nil, a
// time is in UTC without its monotonic part, and a field that is not on the wire is zero.
func canonical[T any](v T) T {
	return canonicalValue(reflect.ValueOf(&v).Elem()).Interface().(T)
}

func canonicalValue(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(canonicalValue(v.Elem()))
		}
	case reflect.Struct:
		if t, ok := v.Interface().(time.Time); ok {
			return reflect.ValueOf(t.Round(0).UTC())
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") != "-" {
				out.Field(i).Set(canonicalValue(v.Field(i)))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			out.Set(reflect.Append(out, canonicalValue(v.Index(i))))
		}
	case reflect.Map:
		if v.Len() > 0 {
			out.Set(reflect.MakeMap(v.Type()))
		}
		for _, key := range v.MapKeys() {
			out.SetMapIndex(key, canonicalValue(v.MapIndex(key)))
		}
	default:
		out.Set(v)
	}
	return out
}

// same reports whether a and b are the same on the wire.
func same[T any](a, b T) bool { return reflect.DeepEqual(canonical(a), canonical(b)) }

// show formats a value for a failure message.
func show(v any) string {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// wantError checks that err is an *Error with this code, reason and field.
func wantError(t testing.TB, err error, code Code, reason, field string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("want %s %s %s, got %v (%T)", code, reason, field, err, err)
	}
	if e.Code != code || e.Reason != reason || e.Field != field {
		t.Fatalf("want code %q reason %q field %q, got code %q reason %q field %q: %v",
			code, reason, field, e.Code, e.Reason, e.Field, e)
	}
	if e.Message == "" {
		t.Fatalf("the error has no message: %#v", e)
	}
}

// anyValue generates values of a wire type, including its nested fields.
func anyValue[T any]() *rapid.Generator[T] {
	return rapid.MakeCustom[T](rapid.MakeConfig{
		Types: map[reflect.Type]*rapid.Generator[any]{
			reflect.TypeFor[time.Time](): rapid.Custom(func(t *rapid.T) any {
				if rapid.Bool().Draw(t, "zero time") {
					return time.Time{}
				}
				at := time.Unix(rapid.Int64Range(minTime, maxTime-1).Draw(t, "seconds"),
					rapid.Int64Range(0, 999999999).Draw(t, "nanoseconds"))
				return at.In(time.FixedZone("", 60*rapid.IntRange(-14*60, 14*60).Draw(t, "zone")))
			}),
		},
	})
}
