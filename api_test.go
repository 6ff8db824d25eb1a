package boxfleet

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const apiFile = "docs/api.txt"

// TestAPIListing fails if docs/api.txt does not list the present declarations of the API. `make api` writes that file,
// so a change of the API shows in its diff.
func TestAPIListing(t *testing.T) {
	want := apiListing(t)
	if *update {
		if err := os.WriteFile(apiFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(apiFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not up to date: run `make api`, and review the change", apiFile)
	}
}

// apiListing prints the exported declarations of package sdk without comments. Below an alias it prints the type of
// package protocol that the alias names.
func apiListing(t *testing.T) []byte {
	t.Helper()
	positions := token.NewFileSet()
	sdk, protocol := packageDoc(t, positions, "sdk"), packageDoc(t, positions, "protocol")
	types := map[string]*doc.Type{}
	for _, typ := range protocol.Types {
		types[typ.Name] = typ
	}
	l := &listing{positions: positions}
	fmt.Fprintln(l, "The exported declarations of package sdk, written by `make api`.")
	fmt.Fprintln(l)
	for _, v := range append(sdk.Consts, sdk.Vars...) {
		l.declaration(v.Decl)
	}
	for _, f := range sdk.Funcs {
		l.declaration(f.Decl)
	}
	for _, typ := range sdk.Types {
		fmt.Fprintln(l)
		l.typeOf(typ)
		for _, f := range typ.Funcs {
			l.declaration(f.Decl)
		}
		spec := typ.Decl.Specs[0].(*ast.TypeSpec)
		if target, isOther := spec.Type.(*ast.SelectorExpr); isOther && spec.Assign.IsValid() {
			l.typeOf(types[target.Sel.Name])
		}
	}
	return l.Bytes()
}

// packageDoc reads the declarations of a package, without its tests.
func packageDoc(t *testing.T, positions *token.FileSet, dir string) *doc.Package {
	t.Helper()
	names, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_other.go") {
			continue
		}
		file, err := parser.ParseFile(positions, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(positions, files, module+"/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// listing is the text of an API listing.
type listing struct {
	bytes.Buffer
	positions *token.FileSet
}

// typeOf prints a type with its constants and methods.
func (l *listing) typeOf(typ *doc.Type) {
	l.declaration(typ.Decl)
	for _, v := range typ.Consts {
		l.declaration(v.Decl)
	}
	for _, f := range typ.Methods {
		l.declaration(f.Decl)
	}
}

var layout = printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}

func (l *listing) declaration(decl ast.Decl) {
	if f, isFunc := decl.(*ast.FuncDecl); isFunc {
		f.Body = nil
	}
	if err := layout.Fprint(l, l.positions, decl); err != nil {
		panic(err) // the buffer takes everything, and the parser accepted the declaration
	}
	fmt.Fprintln(l)
}
