package spec

import (
	"reflect"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// ParseWorkerDefaults reads the defaults that the operator of a worker sets for the sandboxes there;
// nil where the text has none. Errors: invalid_argument that names line, column and field.
func ParseWorkerDefaults(data []byte, o Options) (*protocol.SandboxSpec, error) {
	var s protocol.SandboxSpec
	d, err := parseInto(data, o, "worker.defaults", reflect.ValueOf(&s).Elem())
	if err == nil {
		err = d.locateBelow("worker.defaults", protocol.ValidateWorkerDefaults(&s))
	}
	if err != nil || isEmpty(reflect.ValueOf(s)) {
		return nil, err
	}
	return &s, nil
}

// Resolve fills in the built-in defaults, and names the fields that got one because nobody said
// anything.
func Resolve(s protocol.SandboxSpec) (resolved protocol.SandboxSpec, builtIn []string) {
	resolved = Merge(s, protocol.SandboxSpec{})
	resolved.Resolve()
	before, after := reflect.ValueOf(s), reflect.ValueOf(resolved)
	for i := range after.NumField() {
		if isEmpty(before.Field(i)) && !isEmpty(after.Field(i)) {
			builtIn = append(builtIn, jsonName(after.Type().Field(i)))
		}
	}
	return resolved, builtIn
}

// OnWorker is what a resolved spec becomes on a worker with these defaults: they lie below
// everything that was said, and above what is built in. What contradicts itself in the result is
// found by its Validate.
func OnWorker(resolved protocol.SandboxSpec, builtIn []string, defaults *protocol.SandboxSpec) protocol.SandboxSpec {
	if defaults == nil {
		return resolved
	}
	there := resolved
	into, below := reflect.ValueOf(&there).Elem(), reflect.ValueOf(*defaults)
	for i := range into.NumField() {
		f := into.Type().Field(i)
		name := jsonName(f)
		switch {
		case isEmpty(below.Field(i)) || !slices.Contains(protocol.WorkerDefaults, name):
		case slices.Contains(builtIn, name):
			into.Field(i).Set(clone(below.Field(i)))
		default:
			into.Field(i).Set(mergeField(f, below.Field(i), into.Field(i)))
		}
	}
	there.Tools = withoutRepeats(there.Tools)
	there.Resolve()
	return there
}

// Says tells whether a resolved spec has everything that a layer of it says. It cannot tell what
// other layers added.
func Says(resolved, layer protocol.SandboxSpec) bool {
	whole := Merge(layer, protocol.SandboxSpec{})
	whole.Resolve() // also what is in the fields that it has
	said, full, has := reflect.ValueOf(layer), reflect.ValueOf(whole), reflect.ValueOf(Merge(resolved, protocol.SandboxSpec{}))
	for i := range said.NumField() {
		f := said.Type().Field(i)
		if !isEmpty(said.Field(i)) && !says(f, has.Field(i), full.Field(i)) {
			return false
		}
	}
	return true
}

func says(f reflect.StructField, has, wanted reflect.Value) bool {
	switch {
	case f.Type.Kind() == reflect.Map:
		for key, value := range wanted.Seq2() {
			if got := has.MapIndex(key); !got.IsValid() || !reflect.DeepEqual(got.Interface(), value.Interface()) {
				return false
			}
		}
		return true
	case jsonName(f) == "tools":
		for _, name := range wanted.Seq2() {
			if !slices.Contains(has.Interface().([]string), name.String()) {
				return false
			}
		}
		return true
	case f.Type.Kind() == reflect.Slice && !replaced(f): // upper layers are appended
		if has.Len() < wanted.Len() {
			return false
		}
		has = has.Slice(has.Len()-wanted.Len(), has.Len())
	}
	return reflect.DeepEqual(has.Interface(), wanted.Interface())
}
