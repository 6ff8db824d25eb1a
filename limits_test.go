package boxfleet

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Limits on the size of the code. Whatever exceeds one is cut along its meaning, or is listed in larger with the
// reason.
const (
	maxColumns  = 120  // characters of a line; a tab counts as one
	maxFunction = 60   // lines of a function outside tests, with its signature
	maxMethods  = 25   // methods of a type outside tests
	maxPackage  = 3500 // lines of a package of the worker without its tests
	maxTests    = 600  // lines of a file of tests
)

// larger lists what may exceed a limit, up to which size, and why: "directory: function", "directory: type" or
// "directory". A new entry needs a better reason than that the cut costs work. Make most smaller when the code shrinks.
var larger = map[string]struct {
	most int
	why  string
}{
	"sdk: Client":  {43, "the API for users: one method for each request"},
	"sdk: Sandbox": {36, "the API for users: one method for each request"},
	"sdk: Files":   {40, "the API for users: one method for each operation on files"},
	"sdk: option":  {37, "one method for each call that accepts the option"},

	"worker/files: Session":    {28, "one method for each operation on files"},
	"supervisor/files: helper": {28, "one method for each operation on files"},
	"worker/supervise: Link":   {30, "one method for each message to a supervisor"},
	"supervisor: supervisor":   {29, "one method for each message from the worker"},
	"coordinator: reader":      {34, "one method for each query"},
	"auth: Authority":          {30, "one method for each operation on the operator's keys, which are in one directory"},
	"cmd/boxfleet: config":     {27, "one method for each group of configuration keys"},
	"integration/fleet: Fleet": {47, "what tests do with a fleet"},

	"stream: Conn": {26, "the methods of net.Conn, and those of half-closes, resets and limits"},

	"coordinator: coordinator": {46,
		"decisions of the leader, in files by subject; they share the scheduler and the log"},
	"coordinator: projection": {27, "the read model and its snapshots, which change together under one lock"},
	"coordinator: hosts":      {28, "the table of hosts; its entries and indexes change together under one lock"},
	"jetstream: connection":   {32, "the life of one connection; calls, waits and health depend on the same state"},
	"worker/output: Exec":     {28, "the output of one exec; publishing, hashing and freeing share offsets"},
	"worker/sandbox: Sandbox": {36, "the steps of one sandbox, and the answers to clients' streams and queries"},
	"worker: worker":          {26, "the life of one worker, and the wiring of its parts"},
}

// goSource is a Go file of the module.
type goSource struct {
	name string
	text []byte
	file *ast.File
	at   *token.FileSet
}

func (s *goSource) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

func (s *goSource) lines() int { return bytes.Count(s.text, []byte("\n")) }

func goSources(t *testing.T) (all []goSource) {
	t.Helper()
	for _, name := range filesNamed(t, func(name string) bool { return strings.HasSuffix(name, ".go") }) {
		s := goSource{name: name, text: []byte(read(t, name)), at: token.NewFileSet()}
		var err error
		if s.file, err = parser.ParseFile(s.at, name, s.text, parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if len(all) < 500 {
		t.Fatalf("found only %d Go files", len(all))
	}
	return all
}

// longLines returns the lines of a file with more than maxColumns characters.
func longLines(s goSource) (found []string) {
	for i, l := range strings.Split(string(s.text), "\n") {
		if n := utf8.RuneCountInString(l); n > maxColumns {
			found = append(found, fmt.Sprintf("%s:%d: %d characters", s.name, i+1, n))
		}
	}
	return found
}

// functions calls report for each function of a file, with its number of lines.
func functions(s goSource, report func(f *ast.FuncDecl, lines int)) {
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			report(f, s.at.Position(f.End()).Line-s.at.Position(f.Pos()).Line+1)
		}
	}
}

// typeOf returns the name of the type of a method, or "" for a function.
func typeOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	return receiver(f.Recv.List[0].Type)
}

func TestLinesAreNotTooLong(t *testing.T) {
	for _, s := range goSources(t) {
		for _, l := range longLines(s) {
			t.Errorf("%s; the limit is %d", l, maxColumns)
		}
	}
}

func TestFilesOfTestsAreNotTooLong(t *testing.T) {
	for _, s := range goSources(t) {
		if s.isTest() && s.lines() > maxTests {
			t.Errorf("%s has %d lines; the limit is %d: divide it by subject", s.name, s.lines(), maxTests)
		}
	}
}

func TestFunctionsTypesAndPackagesAreNotTooLarge(t *testing.T) {
	methods, packages, used := map[string]int{}, map[string]int{}, map[string]bool{}
	check := func(what string, size, limit int, unit string) {
		if size <= limit {
			return
		}
		used[what] = true
		if most := max(limit, larger[what].most); size > most {
			t.Errorf("%s has %d %s; the limit is %d", what, size, unit, most)
		}
	}
	for _, s := range goSources(t) {
		if s.isTest() {
			continue
		}
		dir := filepath.Dir(s.name)
		if dir == "worker" || strings.HasPrefix(dir, "worker/") {
			packages[dir] += s.lines()
		}
		functions(s, func(f *ast.FuncDecl, lines int) {
			check(dir+": "+f.Name.Name, lines, maxFunction, "lines")
			if of := typeOf(f); of != "" {
				methods[dir+": "+of]++
			}
		})
	}
	for _, of := range slices.Sorted(maps.Keys(methods)) {
		check(of, methods[of], maxMethods, "methods")
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		check(dir, packages[dir], maxPackage, "lines without its tests")
	}
	for what := range larger {
		if !used[what] {
			t.Errorf("%s is listed as larger, but is within the limits", what)
		}
	}
}

func TestTheLimitsSeeWhatExceedsThem(t *testing.T) {
	body := strings.Repeat("\tprintln()\n", maxFunction)
	text := "package p\n\ntype T[K any] struct{}\n\nfunc (t *T[K]) long() {\n" + body + "}\n\n// " +
		strings.Repeat("ä", maxColumns) + "\n"
	s := goSource{name: "p.go", text: []byte(text), at: token.NewFileSet()}
	var err error
	if s.file, err = parser.ParseFile(s.at, s.name, s.text, 0); err != nil {
		t.Fatal(err)
	}
	if found := longLines(s); len(found) != 1 || !strings.Contains(found[0], "123 characters") {
		t.Errorf("long lines: %q, want the comment with 123 characters", found)
	}
	functions(s, func(f *ast.FuncDecl, lines int) {
		if typeOf(f) != "T" || lines != maxFunction+2 {
			t.Errorf("found the method %s of %q with %d lines, want the method of T with %d", f.Name.Name, typeOf(f),
				lines, maxFunction+2)
		}
	})
}
