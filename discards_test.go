package boxfleet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// silentDiscards returns the lines of a file that discard all results of a call without a comment. The comment says why
// the error cannot matter. It stands on the line, or on the line above; one comment may stand for several such lines in
// a row.
func silentDiscards(t *testing.T, name, source string) (lines []int) {
	t.Helper()
	at := token.NewFileSet()
	file, err := parser.ParseFile(at, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	explained := map[int]bool{}
	for _, group := range file.Comments {
		for l := at.Position(group.Pos()).Line; l <= at.Position(group.End()).Line; l++ {
			explained[l] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.AssignStmt)
		if !ok || !discardsCall(s) {
			return true
		}
		first, last := at.Position(s.Pos()).Line, at.Position(s.End()).Line
		if explained[first-1] || explained[first] || explained[last] {
			explained[last] = true
		} else {
			lines = append(lines, first)
		}
		return true
	})
	return lines
}

// discardsCall reports whether a statement assigns all results of a call to the blank identifier.
func discardsCall(s *ast.AssignStmt) bool {
	for _, to := range s.Lhs {
		if name, ok := to.(*ast.Ident); !ok || name.Name != "_" {
			return false
		}
	}
	_, ok := s.Rhs[0].(*ast.CallExpr)
	return ok
}

func TestDiscardedErrorsSayWhyTheyCannotMatter(t *testing.T) {
	for _, s := range goSources(t) {
		for _, l := range silentDiscards(t, s.name, string(s.text)) {
			t.Errorf("%s:%d: handle the error, or say in a comment why it cannot matter", s.name, l)
		}
	}
}

func TestADiscardWithoutACommentIsFound(t *testing.T) {
	source := `package p

func f() {
	_ = g() // it cannot fail
	_, _ = h()

	// Nothing depends on the result.
	_ = g()

	_ = g()
	_ = unused
	go func() { _, _ = h() }()
}
`
	if got := silentDiscards(t, "p.go", source); len(got) != 2 || got[0] != 10 || got[1] != 12 {
		t.Errorf("discards without a comment: lines %v, want 10 and 12", got)
	}
}
