package boxfleet

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// said is a message that a user can meet: the text of an error, a note, or of a command's help.
type said struct {
	where, by, text string
}

// speakers are the functions that make messages, and the number of the argument that is the text.
var speakers = map[string]int{
	"Errorf": -1, "Invalid": 1, "New": 0, "usage": 0, "note": 0, "say": 0, "goesOn": 1, "settings": 0, "wrong": 2, "fault": 2, "faultAt": 3, "refuse": 1,
	"StringVar": 3, "StringVarP": 4, "BoolVar": 3, "BoolVarP": 4, "DurationVar": 3, "IntVar": 3, "Int64Var": 3, "Uint64Var": 3, "Float64Var": 3, "StringArrayVar": 3, "StringArrayVarP": 4, "StringSliceVar": 3,
}

// messages collects the messages of the whole source.
func messages(t *testing.T) []said {
	t.Helper()
	var all []said
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "integration/") {
			return err
		}
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		add := func(at token.Pos, by string, e ast.Expr) {
			if text := literal(e); text != "" {
				all = append(all, said{fmt.Sprintf("%s:%d", path, files.Position(at).Line), by, text})
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				collectCall(n, add)
			case *ast.CompositeLit:
				collectFields(path, n, add)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// collectCall adds what a call says.
func collectCall(call *ast.CallExpr, add func(token.Pos, string, ast.Expr)) {
	name, on := "", ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		name = f.Sel.Name
		if x, ok := f.X.(*ast.Ident); ok {
			on = x.Name
		}
	}
	at, speaks := speakers[name]
	switch {
	case !speaks || name == "New" && on != "errors":
		return
	case name == "Errorf" && on == "fmt":
		at = 0
	case name == "Errorf":
		at = 2
	}
	if at < len(call.Args) {
		add(call.Pos(), name, call.Args[at])
	}
}

// collectFields adds what a composite literal says: an error, a command's help, a setting's meaning.
func collectFields(path string, lit *ast.CompositeLit, add func(token.Pos, string, ast.Expr)) {
	for i, e := range lit.Elts {
		pair, keyed := e.(*ast.KeyValueExpr)
		if !keyed {
			if strings.HasSuffix(path, "boxfleet/config.go") && i == 2 && len(lit.Elts) == 6 {
				add(e.Pos(), "setting", e)
			}
			continue
		}
		if key, ok := pair.Key.(*ast.Ident); ok && slices.Contains([]string{"Message", "Short", "Long"}, key.Name) {
			add(e.Pos(), key.Name, pair.Value)
		}
	}
}

// literal is the text of a literal, or of several put together; what is not literal is shown as {}.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value) // the parser took it
			return text
		}
	case *ast.BinaryExpr:
		left, right := literal(e.X), literal(e.Y)
		if left+right == "" {
			return ""
		}
		if left == "" {
			left = "{}"
		}
		if right == "" {
			right = "{}"
		}
		return left + right
	case *ast.CallExpr:
		if len(e.Args) > 0 {
			if f, ok := e.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Sprintf" {
				return literal(e.Args[0])
			}
		}
	}
	return ""
}

// unread are forms that a reader stumbles over, and why. What is between backquotes is a command or an example.
var unread = []struct {
	form *regexp.Regexp
	by   string // only messages of this kind; empty: all
	why  string
}{
	{regexp.MustCompile(`(?:^|[^.\w])(protocol|jetstream|coordinator|worker|sdk)\.[A-Z]\w+|\[\]string|\bint64\b|map\[`), "", "a type of Go is nothing to a user"},
	{regexp.MustCompile(`\.$`), "Errorf Invalid New usage note goesOn wrong fault faultAt Message", "a message ends without a full stop, as others are put around it"},
	{regexp.MustCompile(`\?$`), "Errorf Invalid New usage wrong fault faultAt Message", "an error says what is wrong, and asks nothing"},
	{regexp.MustCompile(`^(and|or|their|of) `), "setting", "a setting is read alone: its meaning does not go on from the one above"},
	{regexp.MustCompile(`\bsay which\b|\bit never was\b|document %d is valid|\band until which\b|\bis required: is\b`), "", "this has puzzled users"},
	{regexp.MustCompile(`^is of `), "", "say what it is for"},
	{regexp.MustCompile(`(?i)\b(please|sorry|oops|failed to|unable to|an error occurred)\b`), "", "say what happened"},
	{regexp.MustCompile(`boxfleet exec (list|get|cancel|logs)\b`), "", "these are commands of boxfleet execs"},
}

// TestEveryMessageReadsWell prints, with -v, each message that a user can meet, in a table, and refuses forms that
// were misunderstood before.
func TestEveryMessageReadsWell(t *testing.T) {
	all := messages(t)
	if len(all) < 500 {
		t.Fatalf("only %d messages are found", len(all))
	}
	for _, m := range all {
		t.Logf("%-40s %-14s %s", m.where, m.by, strings.ReplaceAll(m.text, "\n", "\n\t\t"))
		for _, u := range unread {
			if (u.by == "" || slices.Contains(strings.Fields(u.by), m.by)) && u.form.MatchString(m.text) {
				t.Errorf("%s: %q: %s", m.where, m.text, u.why)
			}
		}
	}
}
