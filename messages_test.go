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

// message is a text that users can see: an error, a note, or the help of a command.
type message struct {
	where, by, text string
}

// speakers maps functions that create messages to the index of the argument with the text.
var speakers = map[string]int{
	"Errorf": -1, "Invalid": 1, "New": 0, "usage": 0, "note": 0, "say": 0, "goesOn": 1, "settings": 0, "wrong": 2,
	"fault": 2, "faultAt": 3, "refuse": 1,
	"StringVar": 3, "StringVarP": 4, "BoolVar": 3, "BoolVarP": 4, "DurationVar": 3, "IntVar": 3, "Int64Var": 3,
	"Uint64Var": 3, "Float64Var": 3, "StringArrayVar": 3, "StringArrayVarP": 4, "StringSliceVar": 3,
}

// messages collects all messages in the source.
func messages(t *testing.T) []message {
	t.Helper()
	var all []message
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "integration/") {
			return err
		}
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		add := func(at token.Pos, by string, e ast.Expr) {
			if text := literal(e); text != "" {
				all = append(all, message{fmt.Sprintf("%s:%d", path, files.Position(at).Line), by, text})
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

// collectCall adds the message of a call.
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

// collectFields adds the messages of a composite literal: an error, a command's help, a setting's meaning.
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

// literal returns the text of a literal or of a concatenation, with {} for the parts that are not literal.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value) // the parser has accepted it
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

// rejected lists forms that users have misunderstood, and why. Text between backquotes is a command or an example.
var rejected = []struct {
	form *regexp.Regexp
	by   string // only messages of this kind; empty: all
	why  string
}{
	{regexp.MustCompile(`(?:^|[^.\w])(protocol|jetstream|coordinator|worker|sdk)\.[A-Z]\w+|\[\]string|\bint64\b|map\[`),
		"", "users do not know Go types"},
	{regexp.MustCompile(`\.$`), "Errorf Invalid New usage note goesOn wrong fault faultAt Message",
		"no full stop: messages are embedded in others"},
	{regexp.MustCompile(`\?$`), "Errorf Invalid New usage wrong fault faultAt Message",
		"an error states what is wrong; it does not ask"},
	{regexp.MustCompile(`^(and|or|their|of) `), "setting", "each setting is read alone: it cannot continue the one above"},
	{regexp.MustCompile(`\bsay which\b|\bit never was\b|document %d is valid|\band until which\b|\bis required: is\b`),
		"", "this has puzzled users"},
	{regexp.MustCompile(`^is of `), "", "say what it is for"},
	{regexp.MustCompile(`(?i)\b(please|sorry|oops|failed to|unable to|an error occurred)\b`), "", "say what happened"},
	{regexp.MustCompile(`boxfleet exec (list|get|cancel|logs)\b`), "", "these are commands of boxfleet execs"},
}

// TestMessagesAvoidMisunderstoodForms also prints, with -v, a table of all messages that users can see.
func TestMessagesAvoidMisunderstoodForms(t *testing.T) {
	all := messages(t)
	if len(all) < 500 {
		t.Fatalf("found only %d messages", len(all))
	}
	for _, m := range all {
		t.Logf("%-40s %-14s %s", m.where, m.by, strings.ReplaceAll(m.text, "\n", "\n\t\t"))
		for _, u := range rejected {
			if (u.by == "" || slices.Contains(strings.Fields(u.by), m.by)) && u.form.MatchString(m.text) {
				t.Errorf("%s: %q: %s", m.where, m.text, u.why)
			}
		}
	}
}
