package spec

import (
	"maps"
	"reflect"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// Merge merges one spec over another:
//   - A non-empty value of override replaces the value of base; command, network and on_delete are one value each.
//   - Maps are merged by key: an entry of override replaces the whole entry of base, even a service.
//   - Lists are appended to the lists of base; repeated tools are dropped.
//   - A variable or a file of a secret in override replaces that of base, also if it is in another field.
//
// An empty value of override, such as 0 or false, keeps the value of base: override can add and replace, but not
// remove. Merge neither changes nor shares its arguments. Validate finds contradictions in the result, such as two
// mounts with the same target.
func Merge(base, override protocol.SandboxSpec) protocol.SandboxSpec {
	var merged protocol.SandboxSpec
	into, b, o := reflect.ValueOf(&merged).Elem(), reflect.ValueOf(base), reflect.ValueOf(override)
	for i := range into.NumField() {
		into.Field(i).Set(mergeField(into.Type().Field(i), b.Field(i), o.Field(i)))
	}
	merged.Tools = withoutRepeats(merged.Tools)
	replaceVariables(&merged, &base, &override)
	return merged
}

// replaceVariables removes from a merged spec the variables and secrets of base that override sets in another field.
// A variable can be in env, in sensitive_env and in secrets.
func replaceVariables(merged, base, override *protocol.SandboxSpec) {
	variables, files := map[string]bool{}, map[string]bool{}
	for name := range override.SensitiveEnv {
		variables[name] = true
	}
	for i := range override.Secrets {
		if u := &override.Secrets[i]; u.Env != "" {
			variables[u.Env] = true
		} else {
			files[u.Path()] = true
		}
	}
	maps.DeleteFunc(merged.Env, func(name, _ string) bool {
		_, set := override.Env[name]
		return variables[name] && !set
	})
	for name := range override.Env {
		variables[name] = true
	}
	maps.DeleteFunc(merged.SensitiveEnv, func(name string, _ protocol.Sealed) bool {
		_, set := override.SensitiveEnv[name]
		return variables[name] && !set
	})
	kept := slices.DeleteFunc(slices.Clone(base.Secrets), func(u protocol.SecretUse) bool {
		return u.Env != "" && variables[u.Env] || u.Env == "" && files[u.Path()]
	})
	merged.Secrets = append(kept, override.Secrets...)
	if len(merged.Secrets) == 0 {
		merged.Secrets = nil
	}
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

// replaced reports whether a list is one value, as a command is: a higher layer replaces it instead of appending.
func replaced(f reflect.StructField) bool { return jsonName(f) == "command" }

// isEmpty reports whether a value leaves a field unset. A network without fields also counts as unset, so that it
// does not open a network that a lower layer restricts.
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

// clone returns a deep copy of a wire value. Empty values become nil.
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

// Equal reports whether two specs are equal. Empty and nil are the same.
func Equal(a, b protocol.SandboxSpec) bool { return len(Difference(a, b)) == 0 }

// Difference returns the wire names of the fields in which two specs differ; for maps of text, the name includes the
// key.
func Difference(a, b protocol.SandboxSpec) []string {
	x := reflect.ValueOf(Merge(a, protocol.SandboxSpec{}))
	y := reflect.ValueOf(Merge(b, protocol.SandboxSpec{}))
	var names []string
	for i := range x.NumField() {
		name := jsonName(x.Type().Field(i))
		if m, ok := x.Field(i).Interface().(map[string]string); ok {
			names = append(names, differentKeys(name, m, y.Field(i).Interface().(map[string]string))...)
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
