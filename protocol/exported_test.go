package protocol

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// Every exported name is documented: by its own comment, or, in a group of constants, variables or
// functions, by the group's comment.
func TestEveryExportedNameHasAComment(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(fset, file.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		missing := func(name *ast.Ident) {
			if name.IsExported() {
				t.Errorf("%s: %s has no comment", fset.Position(name.Pos()), name.Name)
			}
		}
		for _, decl := range parsed.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				// Methods of standard interfaces need no comment.
				if d.Doc == nil && d.Name.Name != "String" {
					missing(d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if d.Doc == nil && spec.Doc == nil {
							missing(spec.Name)
						}
					case *ast.ValueSpec:
						if d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
							missing(spec.Names[0])
						}
					}
				}
			}
		}
	}
}
