package protocol

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// shapeOf describes the stored form of State: each of its fields, and each field of the types that it contains,
// with tag and type.
func shapeOf(root reflect.Type) string {
	var out strings.Builder
	seen := map[reflect.Type]bool{}
	var visit func(t reflect.Type)
	visit = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			visit(t.Elem())
			return
		case reflect.Map:
			visit(t.Key())
			visit(t.Elem())
			return
		}
		if t.Kind() != reflect.Struct || t.PkgPath() != root.PkgPath() || seen[t] {
			return
		}
		seen[t] = true
		fmt.Fprintf(&out, "%s\n", t.Name())
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprintf(&out, "\t%s %s `%s`\n", f.Name, f.Type, f.Tag)
		}
		for i := range t.NumField() {
			visit(t.Field(i).Type)
		}
	}
	visit(root)
	return out.String()
}

// A coordinator trusts a stored State with its own FoldVersion. If the type State has changed, a State stored
// before lacks the new information. Raise FoldVersion, once per release, and run this test with -update.
func TestAChangedStateNeedsANewFoldVersion(t *testing.T) {
	file := filepath.Join("testdata", "state_shape.txt")
	now := fmt.Sprintf("FoldVersion %d\n%s", FoldVersion, shapeOf(reflect.TypeFor[State]()))
	data, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	stored := string(data)
	if stored == now {
		return
	}
	before, _, _ := strings.Cut(stored, "\n")
	if before == fmt.Sprintf("FoldVersion %d", FoldVersion) {
		t.Fatalf("the shape of State differs from that of %s: raise protocol.FoldVersion, then run this test with "+
			"-update\nnow:\n%s", before, now)
	}
	if !*update {
		t.Fatalf("%s is from %s: run this test with -update", file, before)
	}
	if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}
