package boxfleet

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// line is one line of prose: of a comment, a document, a script or the Makefile.
type line struct {
	file string
	at   int
	text string
}

func (l line) String() string { return fmt.Sprintf("%s:%d", l.file, l.at) }

// sourceFile is a parsed Go file.
type sourceFile struct {
	name     string
	syntax   *ast.File
	comments []line
}

// goFiles parses every Go file of the module.
func goFiles(t *testing.T) []sourceFile {
	t.Helper()
	var all []sourceFile
	for _, name := range filesNamed(t, func(name string) bool { return strings.HasSuffix(name, ".go") }) {
		positions := token.NewFileSet()
		syntax, err := parser.ParseFile(positions, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		file := sourceFile{name: name, syntax: syntax}
		for _, group := range syntax.Comments {
			for _, comment := range group.List {
				first := positions.Position(comment.Pos()).Line
				for i, text := range strings.Split(comment.Text, "\n") {
					file.comments = append(file.comments, line{name, first + i, strings.TrimPrefix(text, "//")})
				}
			}
		}
		all = append(all, file)
	}
	if len(all) < 100 {
		t.Fatalf("found only %d Go files", len(all))
	}
	return all
}

// documents returns every line of the Markdown files, the scripts and the Makefile.
func documents(t *testing.T) (all []line) {
	t.Helper()
	for _, name := range filesNamed(t, func(name string) bool {
		return strings.HasSuffix(name, ".md") || strings.HasPrefix(name, "scripts/") || name == "Makefile"
	}) {
		for i, text := range strings.Split(read(t, name), "\n") {
			all = append(all, line{name, i + 1, text})
		}
	}
	return all
}

// filesNamed lists the files below the root, without generated ones and test data.
func filesNamed(t *testing.T, wanted func(name string) bool) (names []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if !d.IsDir() && wanted(name) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// declarations maps a directory to the names it declares: "Name", "Type.Method" and "Type.Field". A type also has the
// methods and fields of the types that it embeds, if their package is the same.
func declarations(files []sourceFile) map[string]map[string]bool {
	declared := map[string]map[string]bool{}
	for _, file := range files {
		directory := path.Dir(file.name)
		if declared[directory] == nil {
			declared[directory] = map[string]bool{}
		}
		for _, declaration := range file.syntax.Decls {
			for _, name := range namesDeclared(declaration) {
				declared[directory][name] = true
			}
		}
	}
	for grown := true; grown; { // an embedded type may embed another
		grown = false
		for _, file := range files {
			names := declared[path.Dir(file.name)]
			for outer, parts := range embedded(file.syntax) {
				for name := range maps.Clone(names) {
					owner, member, ok := strings.Cut(name, ".")
					if ok && slices.Contains(parts, owner) && !names[outer+"."+member] {
						names[outer+"."+member], grown = true, true
					}
				}
			}
		}
	}
	return declared
}

// embedded maps the structs of a file to the types of the same package that they embed.
func embedded(file *ast.File) map[string][]string {
	parts := map[string][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				if part := receiver(field.Type); len(field.Names) == 0 && part != "" {
					parts[spec.Name.Name] = append(parts[spec.Name.Name], part)
				}
			}
		}
		return true
	})
	return parts
}

func namesDeclared(declaration ast.Decl) (names []string) {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []string{d.Name.Name}
		}
		return []string{receiver(d.Recv.List[0].Type) + "." + d.Name.Name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					names = append(names, name.Name)
				}
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
				for _, member := range members(s.Type) {
					names = append(names, s.Name.Name+"."+member)
				}
			}
		}
	}
	return names
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// members lists the fields of a struct, or the methods of an interface.
func members(e ast.Expr) (names []string) {
	var list *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		list = e.Fields
	case *ast.InterfaceType:
		list = e.Methods
	default:
		return nil
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}

// docLink matches a link in a doc comment to an exported name of this package or of an imported package. The link is in
// brackets, and is neither an index nor a Markdown link. In lines that are indented further, which are code, brackets
// mean something else.
var docLink = regexp.MustCompile(`(?:^|[\s("'])\[\*?((?:([a-z][\w/]*)\.)?([A-Z]\w*(?:\.[A-Z]\w*)?))\]` +
	`(?:[\s.,;:)'"?!]|$)`)

func TestDocLinksLeadToNamesThatExist(t *testing.T) {
	files := goFiles(t)
	declared := declarations(files)
	for _, file := range files {
		for _, comment := range file.comments {
			if strings.HasPrefix(comment.text, "\t") || strings.HasPrefix(comment.text, "  ") {
				continue
			}
			for _, link := range docLink.FindAllStringSubmatch(comment.text, -1) {
				directory := path.Dir(file.name)
				if link[2] != "" {
					var own bool
					if directory, own = importedAs(file, link[2]); !own {
						continue
					}
				}
				if directory == "" {
					t.Errorf("%s: [%s]: no import of this file is called %s", comment, link[1], link[2])
				} else if !declared[directory][link[3]] {
					t.Errorf("%s: [%s]: %s does not declare it", comment, link[1], directory)
				}
			}
		}
	}
}

// importedAs returns the directory of the package that the file imports under a name, or "" if there is no such import.
// own is false for a package of another module.
func importedAs(file sourceFile, name string) (directory string, own bool) {
	if _, err := os.Stat(name); err == nil && strings.Contains(name, "/") {
		return name, true
	}
	if file.syntax.Name.Name == name {
		return path.Dir(file.name), true
	}
	for _, i := range file.syntax.Imports {
		imported := strings.Trim(i.Path.Value, `"`)
		called := path.Base(imported)
		if i.Name != nil {
			called = i.Name.Name
		}
		if called == name || imported == name {
			directory, own = strings.CutPrefix(imported, module+"/")
			return directory, own
		}
	}
	return "", true
}

// fileName matches the name of a Go file or a document in prose. packageName matches a path below one of the module's
// directories.
var (
	fileName    = regexp.MustCompile(`(?:^|[^\w./*%$<>{}-])((?:\.\./)*[A-Za-z0-9_][\w/.-]*\.(?:go|md))\b`)
	packageName = regexp.MustCompile(`(?:^|[^\w./*%$<>{}-])((?:` + strings.Join([]string{"cmd", "coordinator", "docs",
		"imageref", "imagetar",
		"integration", "jetstream", "protocol", "scripts", "sdk", "seldom", "spec", "supervisor", "worker"}, "|") +
		`)/[a-z][\w/-]*)(?:[^\w./<*-]|[.](?:\W|$)|$)`)
)

func TestFilesNamedInProseExist(t *testing.T) {
	prose := documents(t)
	for _, file := range goFiles(t) {
		prose = append(prose, file.comments...)
	}
	for _, p := range prose {
		for _, named := range fileName.FindAllStringSubmatch(p.text, -1) {
			isProject := named[1] == "nats.go" // the name of the NATS client
			if !isProject && !exists(p.file, named[1]) {
				t.Errorf("%s: there is no %s", p, named[1])
			}
		}
		for _, named := range packageName.FindAllStringSubmatch(p.text, -1) {
			if !exists(p.file, named[1]) {
				t.Errorf("%s: there is no %s", p, named[1])
			}
		}
	}
}

// exists reports whether a name is a file or directory, seen from the root or from the file that names it.
func exists(from, name string) bool {
	for _, candidate := range []string{name, path.Join(path.Dir(from), name)} {
		if _, err := os.Stat(candidate); err == nil {
			return true
		}
	}
	return false
}

// goName is a name of Go code in a document: `pkg.Name` or `Type.Member`.
var goName = regexp.MustCompile("`([A-Za-z]\\w*)\\.([A-Z]\\w*)`")

func TestGoNamesInDocumentsExist(t *testing.T) {
	declared := declarations(goFiles(t))
	for _, p := range documents(t) {
		for _, name := range goName.FindAllStringSubmatch(p.text, -1) {
			found := false
			for directory, names := range declared {
				isMember := names[name[1]+"."+name[2]]
				found = found || isMember || path.Base(directory) == name[1] && names[name[2]]
			}
			if !found {
				t.Errorf("%s: no package declares %s.%s", p, name[1], name[2])
			}
		}
	}
}

// functionInFile matches a function or method that a document names after its file and a colon.
var functionInFile = regexp.MustCompile("`([\\w/-]+\\.go):(\\w+)`")

func TestFunctionsNamedWithTheirFileExist(t *testing.T) {
	declared, found := map[string]bool{}, 0
	for _, file := range goFiles(t) {
		for _, declaration := range file.syntax.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok {
				declared[file.name+":"+f.Name.Name] = true
			}
		}
	}
	for _, p := range documents(t) {
		for _, named := range functionInFile.FindAllStringSubmatch(p.text, -1) {
			found++
			if !declared[named[1]+":"+named[2]] {
				t.Errorf("%s: %s has no function %s", p, named[1], named[2])
			}
		}
	}
	if found < 10 {
		t.Errorf("found only %d functions", found)
	}
}

// markdownLink is a link to a page of the repository, to a heading, or to both.
var markdownLink = regexp.MustCompile(`\]\(([^)\s:]*?)(?:#([^)\s]+))?\)`)

func TestLinksBetweenDocumentsLeadSomewhere(t *testing.T) {
	found := 0
	for _, p := range documents(t) {
		if !strings.HasSuffix(p.file, ".md") {
			continue
		}
		for _, link := range markdownLink.FindAllStringSubmatch(withoutCode(p.text), -1) {
			target := p.file
			if link[1] != "" {
				target = path.Join(path.Dir(p.file), link[1])
			}
			found++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link leads to %s, which does not exist", p, target)
			} else if link[2] != "" && !slices.Contains(anchors(read(t, target)), link[2]) {
				t.Errorf("%s: %s has no heading #%s", p, target, link[2])
			}
		}
	}
	if found < 20 {
		t.Errorf("found only %d links", found)
	}
}

// withoutCode blanks the text between backquotes.
func withoutCode(text string) string {
	return regexp.MustCompile("`[^`]*`").ReplaceAllString(text, "")
}

// anchors are the names by which the headings of a page are linked.
func anchors(page string) (all []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		name := strings.ToLower(regexp.MustCompile(`[^\w\s-]`).ReplaceAllString(heading[1], ""))
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

func TestTestsNamedInDocumentsExist(t *testing.T) {
	tests := testNames(goFiles(t))
	for _, p := range documents(t) {
		for _, name := range regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(p.text, -1) {
			beginsSo := func(test string) bool { return strings.HasPrefix(test, name) }
			isPrefix := strings.HasSuffix(name, "_") || strings.Contains(p.text, "-run "+name)
			if isPrefix && slices.ContainsFunc(tests, beginsSo) {
				continue
			}
			if !slices.Contains(tests, name) {
				t.Errorf("%s: there is no test %s", p, name)
			}
		}
	}
}

// testNames lists the tests and fuzz targets of the module, sorted.
func testNames(files []sourceFile) (names []string) {
	for _, file := range files {
		for _, declaration := range file.syntax.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			isTest := ok && f.Recv == nil && strings.HasSuffix(file.name, "_test.go") &&
				(strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz"))
			if isTest && !slices.Contains(names, f.Name.Name) {
				names = append(names, f.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}
