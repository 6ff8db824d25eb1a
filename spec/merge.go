package spec

import (
	"maps"
	"reflect"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// Merge puts one spec over another:
//
//   - a value of override that is not empty replaces that of base; command, network and on_delete
//     are one value each;
//   - maps are merged by key: an entry of override replaces the whole entry of base, also a service;
//   - lists are appended to those of base, tools without those that are there.
//
// An empty value of override, 0 or false among them, says nothing: override can add and replace,
// not take away. Neither argument is changed or shared. What contradicts itself in the result, such
// as two mounts at one target, is found by its Validate.
func Merge(base, override protocol.SandboxSpec) protocol.SandboxSpec {
	var merged protocol.SandboxSpec
	into, b, o := reflect.ValueOf(&merged).Elem(), reflect.ValueOf(base), reflect.ValueOf(override)
	for i := range into.NumField() {
		into.Field(i).Set(mergeField(into.Type().Field(i), b.Field(i), o.Field(i)))
	}
	merged.Tools = withoutRepeats(merged.Tools)
	return merged
}

func mergeField(f reflect.StructField, base, override reflect.Value) reflect.Value {
	switch {
	case f.Type.Kind() == reflect.Map:
		return mergeMaps(base, override)
	case f.Type.Kind() == reflect.Slice && !replaced(f):
		return clone(reflect.AppendSlice(base.Slice3(0, base.Len(), base.Len()), override))
	case isEmpty(override):
		return clone(base)
	}
	return clone(override)
}

// replaced says whether a list is one value: an argument vector is no heap of arguments.
func replaced(f reflect.StructField) bool { return jsonName(f) == "command" }

// isEmpty says whether a value says nothing. Nor does a network without fields: it is not the internet where a layer
// below keeps that shut.
func isEmpty(v reflect.Value) bool {
	if v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
		return true
	}
	n, is := v.Interface().(*protocol.Network)
	return is && n.Mode == "" && len(n.Allow) == 0
}

func mergeMaps(base, override reflect.Value) reflect.Value {
	if base.Len()+override.Len() == 0 {
		return reflect.Zero(base.Type())
	}
	merged := reflect.MakeMap(base.Type())
	for _, layer := range []reflect.Value{base, override} {
		for key, value := range layer.Seq2() {
			merged.SetMapIndex(key, clone(value))
		}
	}
	return merged
}

// clone copies a value of the wire so deeply that nothing is shared. What is empty becomes nil.
func clone(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		if isEmpty(v) {
			return reflect.Zero(v.Type())
		}
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(clone(v.Elem()))
		return p
	case reflect.Slice:
		if v.Len() == 0 {
			return reflect.Zero(v.Type())
		}
		s := reflect.MakeSlice(v.Type(), 0, v.Len())
		for _, item := range v.Seq2() {
			s = reflect.Append(s, clone(item))
		}
		return s
	case reflect.Map:
		return mergeMaps(v, reflect.Zero(v.Type()))
	case reflect.Struct:
		s := reflect.New(v.Type()).Elem()
		for i := range v.NumField() {
			s.Field(i).Set(clone(v.Field(i)))
		}
		return s
	}
	return v
}

func withoutRepeats(names []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(name string) bool {
		repeated := seen[name]
		seen[name] = true
		return repeated
	})
}

// Equal says whether two specs say the same: what is empty and what is nil are one.
func Equal(a, b protocol.SandboxSpec) bool { return len(Difference(a, b)) == 0 }

// Difference names the fields, as on the wire, in which two specs differ.
func Difference(a, b protocol.SandboxSpec) []string {
	x, y := reflect.ValueOf(Merge(a, protocol.SandboxSpec{})), reflect.ValueOf(Merge(b, protocol.SandboxSpec{}))
	var names []string
	for i := range x.NumField() {
		name := jsonName(x.Type().Field(i))
		if x.Field(i).Kind() == reflect.Map && x.Type().Field(i).Type == reflect.TypeFor[map[string]string]() {
			names = append(names, differentKeys(name, x.Field(i).Interface().(map[string]string), y.Field(i).Interface().(map[string]string))...)
		} else if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			names = append(names, name)
		}
	}
	return names
}

func differentKeys(field string, a, b map[string]string) []string {
	keys := maps.Clone(a)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, b)
	var names []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		x, inA := a[key]
		if y, inB := b[key]; inA != inB || x != y {
			names = append(names, join(field, key))
		}
	}
	return names
}
