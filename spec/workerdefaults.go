package spec

import (
	"maps"
	"reflect"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// ParseWorkerDefaults parses the defaults that the operator of a worker sets for the worker's sandboxes. It returns nil
// if the text sets no default. Errors: invalid_argument, or permission_denied for a forbidden network range, with line,
// column and field.
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

// Resolve fills in the built-in defaults. defaulted has the wire names of the fields that got a built-in default
// because no layer sets them.
func Resolve(s protocol.SandboxSpec) (resolved protocol.SandboxSpec, defaulted []string) {
	resolved = Merge(s, protocol.SandboxSpec{})
	resolved.Resolve()
	before, after := reflect.ValueOf(s), reflect.ValueOf(resolved)
	for i := range after.NumField() {
		if isEmpty(before.Field(i)) && !isEmpty(after.Field(i)) {
			defaulted = append(defaulted, jsonName(after.Type().Field(i)))
		}
	}
	return resolved, defaulted
}

// OnWorker returns a resolved spec as it applies on a worker. The worker's defaults override the built-in defaults, and
// every other layer overrides the worker's defaults. Validate finds contradictions in the result.
func OnWorker(resolved protocol.SandboxSpec, defaulted []string, defaults *protocol.SandboxSpec) protocol.SandboxSpec {
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
		case slices.Contains(defaulted, name):
			into.Field(i).Set(clone(below.Field(i)))
		default:
			into.Field(i).Set(mergeField(f, below.Field(i), into.Field(i)))
		}
	}
	there.Tools = withoutRepeats(there.Tools)
	maps.DeleteFunc(there.Env, func(name, _ string) bool { // a worker's variable gives way to a secret one
		_, own := resolved.Env[name]
		_, sensitive := resolved.SensitiveEnv[name]
		return !own && (sensitive || slices.ContainsFunc(resolved.Secrets, func(u protocol.SecretUse) bool {
			return u.Env == name
		}))
	})
	there.Resolve()
	return there
}

// Says reports whether a resolved spec contains everything that a layer sets. The resolved spec may contain more.
func Says(resolved, layer protocol.SandboxSpec) bool {
	full := Merge(layer, protocol.SandboxSpec{})
	full.Resolve() // fills in the defaults inside the fields that the layer sets
	set, wanted := reflect.ValueOf(layer), reflect.ValueOf(full)
	has := reflect.ValueOf(Merge(resolved, protocol.SandboxSpec{}))
	for i := range set.NumField() {
		f := set.Type().Field(i)
		if !isEmpty(set.Field(i)) && !contains(f, has.Field(i), wanted.Field(i)) {
			return false
		}
	}
	return true
}

// contains reports whether a field's value contains the wanted value.
func contains(f reflect.StructField, has, wanted reflect.Value) bool {
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
	case f.Type.Kind() == reflect.Slice && !replaced(f): // higher layers append to the list
		if has.Len() < wanted.Len() {
			return false
		}
		has = has.Slice(has.Len()-wanted.Len(), has.Len())
	}
	return reflect.DeepEqual(has.Interface(), wanted.Interface())
}
