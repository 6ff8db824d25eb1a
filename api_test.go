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

// apiPackages are the packages whose exported names are the API.
var apiPackages = []string{"sdk", "sdk/environment"}

// apiListing prints the exported declarations of the API without comments. Below an alias it prints the type of package
// protocol that the alias names.
func apiListing(t *testing.T) []byte {
	t.Helper()
	l := &listing{positions: token.NewFileSet(), protocol: map[string]*doc.Type{}}
	for _, typ := range packageDoc(t, l.positions, "protocol", 0).Types {
		l.protocol[typ.Name] = typ
	}
	fmt.Fprintln(l, "The exported declarations of the API, written by `make api`.")
	for _, dir := range apiPackages {
		fmt.Fprintf(l, "\npackage %s\n\n", dir)
		l.packageOf(packageDoc(t, l.positions, dir, 0))
	}
	return l.Bytes()
}

// TestTheAPIIsDocumented checks that each exported name of the API has a comment. A field needs none: the comment
// of its type may describe it.
func TestTheAPIIsDocumented(t *testing.T) {
	for _, dir := range apiPackages {
		for _, name := range undocumented(packageDoc(t, token.NewFileSet(), dir, parser.ParseComments)) {
			t.Errorf("%s.%s has no comment", dir, name)
		}
	}
	const text = "package p\n\nfunc F() {}\n\ntype T int\n\nfunc (T) M() {}\n\n" +
		"// C is.\nconst C = 1\n\n// All.\nvar (\n\tA = 1\n)\n"
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, "p.go", text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	p, err := doc.NewFromFiles(positions, []*ast.File{file}, "p")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(undocumented(p)); got != "[F T T.M]" {
		t.Errorf("without a comment in the example: %s, want [F T T.M]", got)
	}
}

// undocumented returns the exported names of a package that have no comment.
func undocumented(p *doc.Package) (names []string) {
	values := func(all []*doc.Value) {
		for _, v := range all {
			for _, s := range v.Decl.Specs {
				if s := s.(*ast.ValueSpec); v.Doc == "" && s.Doc == nil && s.Comment == nil {
					names = append(names, s.Names[0].Name)
				}
			}
		}
	}
	funcs := func(prefix string, all []*doc.Func) {
		for _, f := range all {
			if f.Doc == "" {
				names = append(names, prefix+f.Name)
			}
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, typ := range p.Types {
		if typ.Doc == "" {
			names = append(names, typ.Name)
		}
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
	}
	return names
}

// packageDoc reads the declarations of a package, without its tests.
func packageDoc(t *testing.T, positions *token.FileSet, dir string, mode parser.Mode) *doc.Package {
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
		file, err := parser.ParseFile(positions, name, nil, mode|parser.SkipObjectResolution)
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
	protocol  map[string]*doc.Type // the types of package protocol
}

// packageOf prints the declarations of a package.
func (l *listing) packageOf(p *doc.Package) {
	for _, v := range append(p.Consts, p.Vars...) {
		l.declaration(v.Decl)
	}
	for _, f := range p.Funcs {
		l.declaration(f.Decl)
	}
	for _, typ := range p.Types {
		fmt.Fprintln(l)
		l.typeOf(typ)
		for _, f := range typ.Funcs {
			l.declaration(f.Decl)
		}
		spec := typ.Decl.Specs[0].(*ast.TypeSpec)
		if target, isOther := spec.Type.(*ast.SelectorExpr); isOther && spec.Assign.IsValid() {
			l.typeOf(l.protocol[target.Sel.Name])
		}
	}
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
