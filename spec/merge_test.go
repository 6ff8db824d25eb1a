package spec

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/boxfleet/boxfleet/protocol"
)

// anySpec draws a spec with any fields but few values, so that layers overlap.
func anySpec(t *rapid.T, label string) protocol.SandboxSpec {
	var s protocol.SandboxSpec
	fill(t, reflect.ValueOf(&s).Elem(), label)
	return s
}

// fill draws a value of a wire type.
func fill(t *rapid.T, v reflect.Value, label string) {
	pick := func(n int) int { return rapid.IntRange(0, n).Draw(t, label) }
	if sealed, is := v.Addr().Interface().(*protocol.Sealed); is {
		*sealed = protocol.Sealed(protocol.Masked)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if pick(2) > 0 {
				fill(t, v.Field(i), label+"."+v.Type().Field(i).Name)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), label)
	case reflect.Slice:
		for range pick(2) {
			item := reflect.New(v.Type().Elem()).Elem()
			fill(t, item, label)
			v.Set(reflect.Append(v, item))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range pick(2) {
			item := reflect.New(v.Type().Elem()).Elem()
			fill(t, item, label)
			v.SetMapIndex(reflect.ValueOf("k"+strconv.Itoa(pick(2))), item)
		}
	case reflect.String:
		v.SetString([]string{"", "a", "$b", "c: d # e", "${f}\n", "true", "1"}[pick(6)])
	case reflect.Bool:
		v.SetBool(pick(1) == 1)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(pick(3)) << (10 * pick(2)))
	case reflect.Uint64:
		v.SetUint(uint64(pick(3)))
	case reflect.Float64:
		v.SetFloat(float64(pick(3)) / 2)
	default:
		panic(v.Type().String())
	}
}

func TestMergeIsAssociativeAndKeepsItsArguments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anySpec(t, "a"), anySpec(t, "b"), anySpec(t, "c")
		before := clone(reflect.ValueOf(a)).Interface()
		left, right := Merge(Merge(a, b), c), Merge(a, Merge(b, c))
		if d := Difference(left, right); d != nil {
			t.Fatalf("(a b) c and a (b c) differ in %v", d)
		}
		if !Equal(Merge(a, protocol.SandboxSpec{}), Merge(protocol.SandboxSpec{}, a)) {
			t.Fatal("an empty spec changes something")
		}
		ab := Merge(a, b)
		for k := range ab.Env {
			ab.Env[k] = "changed"
		}
		for i := range ab.Ports {
			ab.Ports[i].Container = 9
		}
		for _, s := range ab.RequiredServices {
			for i := range s.Command {
				s.Command[i] = "changed"
			}
		}
		if ab.Network != nil {
			ab.Network.Mode = "changed"
		}
		if !reflect.DeepEqual(clone(reflect.ValueOf(a)).Interface(), before) {
			t.Fatal("the base was changed")
		}
	})
}

func TestTheUpperLayerWinsInEveryField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anySpec(t, "a"), anySpec(t, "b")
		merged := reflect.ValueOf(Merge(a, b))
		for i := range merged.NumField() {
			f, x, y, m := merged.Type().Field(i), reflect.ValueOf(a).Field(i), reflect.ValueOf(b).Field(i), merged.Field(i)
			name := jsonName(f)
			switch {
			case name == "tools":
				for _, tool := range slices.Concat(a.Tools, b.Tools) {
					if n := strings.Count(" "+strings.Join(m.Interface().([]string), " | ")+" ", " "+tool+" "); n != 1 &&
						!strings.Contains(tool, " ") && tool != "" {
						t.Fatalf("tool %q appears %d times: %q", tool, n, m)
					}
				}
			case f.Type.Kind() == reflect.Map:
				for k, v := range y.Seq2() {
					if !reflect.DeepEqual(clone(v).Interface(), m.MapIndex(k).Interface()) {
						t.Fatalf("%s.%s is not the upper layer's value", name, k)
					}
				}
				for k := range x.Seq2() {
					if !m.MapIndex(k).IsValid() && !(strings.HasSuffix(name, "env") && setsVariable(b, k.String())) {
						t.Fatalf("%s.%s of the lower layer is lost", name, k)
					}
				}
			case name == "secrets":
				if got := m.Interface().([]protocol.SecretUse); !slices.Equal(got[len(got)-len(b.Secrets):], b.Secrets) {
					t.Fatalf("the secrets %+v do not end with those of the upper layer", got)
				}
			case f.Type.Kind() == reflect.Slice && name != "command":
				if m.Len() != x.Len()+y.Len() {
					t.Fatalf("%s has %d entries, want %d and %d", name, m.Len(), x.Len(), y.Len())
				}
			case !isEmpty(y) && !reflect.DeepEqual(m.Interface(), clone(y).Interface()), isEmpty(y) &&
				!reflect.DeepEqual(m.Interface(), clone(x).Interface()):
				t.Fatalf("%s: %v over %v is %v", name, y, x, m)
			}
		}
	})
}

// setsVariable reports whether a spec sets a variable in any field.
func setsVariable(s protocol.SandboxSpec, name string) bool {
	_, plain := s.Env[name]
	_, sensitive := s.SensitiveEnv[name]
	return plain || sensitive || slices.ContainsFunc(s.Secrets, func(u protocol.SecretUse) bool { return u.Env == name })
}

func TestAVariableOfTheUpperLayerReplacesOneInAnotherField(t *testing.T) {
	forms := map[string]protocol.SandboxSpec{
		"env":           {Env: map[string]string{"A": "1"}},
		"sensitive_env": {SensitiveEnv: map[string]protocol.Sealed{"A": protocol.Sealed("x")}},
		"secrets":       {Secrets: []protocol.SecretUse{{Name: "a", Env: "A"}}},
	}
	for below, lower := range forms {
		for above, upper := range forms {
			if merged := Merge(lower, upper); !Equal(merged, upper) {
				t.Errorf("%s over %s: got %+v", above, below, merged)
			}
		}
	}
	file := protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "a"}, {Name: "b", File: "b"}}}
	merged := Merge(file, protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "c", File: "a"}}})
	if len(merged.Secrets) != 2 || merged.Secrets[0].Name != "b" || merged.Secrets[1].Name != "c" {
		t.Errorf("the secrets are %+v", merged.Secrets)
	}
	merged.Image = "i"
	if err := merged.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateFindsContradictionsAfterAMerge(t *testing.T) {
	service := map[string]protocol.Service{"db": {Image: "x"}}
	for want, layers := range map[string][2]protocol.SandboxSpec{
		"spec.mounts[1].target": {{Mounts: []protocol.Mount{{Source: "/a", Target: "/t"}}},
			{Mounts: []protocol.Mount{{Source: "/b", Target: "/t"}}}},
		"spec.tmpfs[0].target": {{Mounts: []protocol.Mount{{Source: "/a", Target: "/t"}}},
			{Tmpfs: []protocol.Tmpfs{{Target: "/t/"}}}},
		"spec.ports[1].host": {{Ports: []protocol.Port{{Container: 1, Host: 80}}},
			{Ports: []protocol.Port{{Container: 2, Host: 80, Protocol: "tcp"}}}},
		"spec.optional_services.db": {{RequiredServices: service}, {OptionalServices: service}},
	} {
		layers[0].Image = "x"
		s := Merge(layers[0], layers[1])
		if err := s.Validate(); err == nil || protocol.AsError(err).Field != want {
			t.Errorf("want %s refused, got %v", want, err)
		}
	}
}

// An empty object leaves the network unset: it must not open a network that a lower layer restricts.
func TestAnEmptyNetworkKeepsTheLowerLayers(t *testing.T) {
	for _, below := range []*protocol.Network{{Mode: protocol.NetworkNone},
		{Mode: protocol.NetworkAllow, Allow: []string{"140.82.112.0/20"}}} {
		for _, empty := range []*protocol.Network{nil, {}, {Allow: []string{}}} {
			merged := Merge(protocol.SandboxSpec{Network: below}, protocol.SandboxSpec{Network: empty})
			if !reflect.DeepEqual(merged.Network, below) {
				t.Errorf("%+v over %+v is %+v", empty, below, merged.Network)
			}
		}
	}
}
