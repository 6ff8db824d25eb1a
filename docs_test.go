package boxfleet

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// read returns the text of a file.
func read(t *testing.T, page string) string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// section returns the text below a heading, up to the next heading of the same or a higher rank.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("the page has no heading %q", heading)
	}
	rank := strings.Index(heading, " ")
	if end := regexp.MustCompile(`(?m)^#{1,` + string(rune('0'+rank)) + `} `).FindStringIndex(text); end != nil {
		text = text[:end[0]]
	}
	return text
}

func TestTablesHaveAHeader(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "README.md", "ARCHITECTURE.md") {
		lines := strings.Split(read(t, page), "\n")
		for i, line := range lines {
			begins := strings.HasPrefix(line, "|") && (i == 0 || !strings.HasPrefix(lines[i-1], "|"))
			if begins && (i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "|--")) {
				t.Errorf("%s:%d: a table row without a header: %.60s", page, i+1, line)
			}
		}
	}
}

// ownImports maps each package of this module to the packages of this module that it imports. Shared helpers are left
// out: any package may import them.
func ownImports(t *testing.T) map[string][]string {
	t.Helper()
	shared := []string{"wake", "backoff", "eventually", "scenario"}
	imports := map[string][]string{}
	for _, line := range list(t, "{{.ImportPath}} {{join .Imports \" \"}}", "./...") {
		from, all, _ := strings.Cut(line, " ")
		from = strings.TrimPrefix(from, module+"/")
		imports[from] = nil
		for _, to := range strings.Fields(all) {
			if own, ok := strings.CutPrefix(to, module+"/"); ok && !slices.Contains(shared, own) {
				imports[from] = append(imports[from], own)
			}
		}
	}
	return imports
}

// TestPackageCommentsNameTheirImports checks the package comments that list imports.
func TestPackageCommentsNameTheirImports(t *testing.T) {
	sentence, found := regexp.MustCompile(`(?s)(The package|It)( may)? imports? .*?\.\s`), 0
	for from, imports := range ownImports(t) {
		doc, err := os.ReadFile(filepath.Join(from, "doc.go"))
		says := sentence.FindString(strings.ReplaceAll(string(doc), "\n//", ""))
		if err != nil || says == "" {
			continue
		}
		found++
		for _, to := range imports {
			own := strings.HasPrefix(to, from+"/") && strings.Contains(says, "its own sub-packages")
			isNear := slices.Contains([]string{from, filepath.Dir(from)}, filepath.Dir(to))
			named := strings.Contains(says, to) || isNear && slices.Contains(words(says), filepath.Base(to))
			if !own && !named {
				t.Errorf("%s imports %s, and its doc.go says: %s", from, to, says)
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d packages list their imports", found)
	}
}

func words(text string) []string { return regexp.MustCompile(`\w+`).FindAllString(text, -1) }

const importsPage = "docs/imports.md"

// TestTheImportTable compares docs/imports.md with the imports that the compiler sees.
func TestTheImportTable(t *testing.T) {
	var page strings.Builder
	page.WriteString("# Imports\n\nWhich packages of this module each package imports. " +
		"`go test . -run TestTheImportTable -update` writes this page.\n" +
		"`wake`, `backoff`, `eventually` and `scenario` are left out: any package or test may import them. " +
		"What is forbidden, and\nwhy, is in `architecture_test.go`.\n\n| package | imports |\n|---|---|\n")
	imports := ownImports(t)
	for _, name := range slices.Sorted(maps.Keys(imports)) {
		if name == module {
			continue
		}
		var names []string
		for _, to := range slices.Sorted(slices.Values(imports[name])) {
			names = append(names, "`"+to+"`")
		}
		fmt.Fprintf(&page, "| `%s` | %s |\n", name, cmp.Or(strings.Join(names, ", "), "none"))
	}
	switch {
	case *update:
		if err := os.WriteFile(importsPage, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	case page.String() != read(t, importsPage):
		t.Errorf("%s does not list the current imports: run go test . -run TestTheImportTable -update", importsPage)
	}
}

// tabledPackages returns the packages that a page names in the first column of a table.
func tabledPackages(t *testing.T, text string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(text, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			found[name[1]] = true
		}
	}
	if len(found) == 0 {
		t.Error("the page names no packages")
	}
	return found
}

// TestThePackageTables compares the tables of packages with the packages of the module. docs/packages.md lists all.
func TestThePackageTables(t *testing.T) {
	imports := ownImports(t)
	all := tabledPackages(t, read(t, "docs/packages.md"))
	for page, listed := range map[string]map[string]bool{
		"docs/packages.md": all,
		"ARCHITECTURE.md":  tabledPackages(t, section(t, read(t, "ARCHITECTURE.md"), "## Packages")),
	} {
		for name := range listed {
			if _, exists := imports[name]; !exists {
				t.Errorf("%s has a row for %s, which does not exist", page, name)
			}
		}
	}
	for name := range imports {
		if !all[name] && name != module && !strings.HasPrefix(name, "integration/") && !strings.HasSuffix(name, "test") {
			t.Errorf("docs/packages.md has no row for %s", name)
		}
	}
}

// mostArchitectureWords keeps the map short enough to be read in ten minutes.
const mostArchitectureWords = 2000

func TestTheMapIsShort(t *testing.T) {
	if n := len(strings.Fields(read(t, "ARCHITECTURE.md"))); n > mostArchitectureWords {
		t.Errorf("ARCHITECTURE.md has %d words, at most %d are allowed: move details to docs", n, mostArchitectureWords)
	}
}

// TestTheFilesToChangeExist checks the files and packages that tables of files to change name.
func TestTheFilesToChangeExist(t *testing.T) {
	named := regexp.MustCompile("`([a-z]+(?:/[a-z0-9_]+)*(?:\\.go)?)`")
	for page, text := range map[string]string{
		"docs/where.md":   read(t, "docs/where.md"),
		"ARCHITECTURE.md": section(t, read(t, "ARCHITECTURE.md"), "## To change X, open Y"),
	} {
		files := 0
		for _, row := range regexp.MustCompile(`(?m)^\| .* \| .*$`).FindAllString(text, -1) {
			cells := strings.Split(row, " | ")
			for _, name := range named.FindAllStringSubmatch(cells[len(cells)-1], -1) {
				files++
				if _, err := os.Stat(name[1]); err != nil {
					t.Errorf("%s names %s: %v", page, name[1], err)
				}
			}
		}
		if files < 10 {
			t.Errorf("%s names %d files", page, files)
		}
	}
}

// TestTheWirePageNamesEveryField expects a row for each field of a spec, and a mention of each field of an event in the
// section on events.
func TestTheWirePageNamesEveryField(t *testing.T) {
	page := read(t, "docs/wire.md")
	for heading, spec := range map[string]any{
		"### Sandbox spec": protocol.SandboxSpec{}, "### Service": protocol.Service{}, "### Exec spec": protocol.ExecSpec{},
	} {
		for _, f := range fields(spec) {
			row := rowOf(section(t, page, heading), f.name)
			if row == "" {
				t.Errorf("docs/wire.md, %s: there is no row for %s", heading, f.name)
				continue
			}
			wantNamed(t, row, f.below)
		}
	}
	events := section(t, page, "## Events")
	addedByReaders := []string{"record", "replay"}
	for _, part := range []any{
		protocol.Batch{}, protocol.Event{}, protocol.SandboxDetails{}, protocol.ExecDetails{}, protocol.ServiceDetails{},
		protocol.PullProgress{},
	} {
		for _, f := range fields(part) {
			if !slices.Contains(addedByReaders, f.name) {
				wantNamed(t, events, []string{f.name})
			}
		}
	}
}

// TestTheWirePageDescribesEveryObject expects each field of an object in the object's section.
func TestTheWirePageDescribesEveryObject(t *testing.T) {
	page := read(t, "docs/wire.md")
	for heading, object := range map[string]any{
		"### Sandbox": protocol.Sandbox{}, "### Exec": protocol.Exec{}, "### Host": protocol.Host{},
		"### Explanation": protocol.Explanation{},
	} {
		text := section(t, page, heading)
		for _, f := range fields(object) {
			if rowOf(text, f.name) == "" && !strings.Contains(text, "`"+f.name+"`") {
				t.Errorf("docs/wire.md, %s: %s is not named", heading, f.name)
			}
		}
	}
	wantNamed(t, section(t, page, "### Sandbox"), names(protocol.ServiceStatus{}))
	wantNamed(t, section(t, page, "### Sandbox"), names(protocol.Refusal{}))
	wantNamed(t, section(t, page, "### The sandbox's own command"), names(protocol.PrimaryStatus{}))
	wantNamed(t, section(t, page, "## Reads"), append(names(protocol.EventPage{}), names(protocol.OutputPage{})...))
	isVersion := func(name string) bool { return name == "v" }
	wantNamed(t, section(t, page, "## Reads"), slices.DeleteFunc(names(protocol.Query{}), isVersion))
}

func names(of any) (all []string) {
	for _, f := range fields(of) {
		all = append(all, f.name)
	}
	return all
}

// TestTheWirePageDescribesOperationsOnFiles expects a row for each operation and for each answer, with all its fields.
func TestTheWirePageDescribesOperationsOnFiles(t *testing.T) {
	page := read(t, "docs/wire.md")
	operations, answers := section(t, page, "### Operations on files"), section(t, page, "### Answers about files")
	for text, message := range map[string]any{operations: protocol.FileRequest{}, answers: protocol.FileAnswer{}} {
		for _, f := range fields(message) {
			if f.below == nil {
				wantNamed(t, section(t, page, "## Files in sandboxes"), []string{f.name})
				continue
			}
			row := rowOf(text, f.name)
			if row == "" {
				t.Errorf("docs/wire.md has no row for %s", f.name)
				continue
			}
			if f.name != "file" {
				wantNamed(t, row, f.below)
			}
		}
	}
	for _, f := range fields(protocol.FileInfo{}) {
		if rowOf(answers[strings.Index(answers, "field of a file"):], f.name) == "" {
			t.Errorf("docs/wire.md has no row for the field %s of a file", f.name)
		}
	}
	for _, part := range []any{protocol.FileResult{}, protocol.FileSkip{}, protocol.FileMatch{}, protocol.FileEvent{}} {
		wantNamed(t, answers, names(part))
	}
}

// TestTheWirePageListsEveryCodeAndReason compares the page's tables of codes and of reasons with the constants.
func TestTheWirePageListsEveryCodeAndReason(t *testing.T) {
	text := section(t, read(t, "docs/wire.md"), "## Errors")
	source := read(t, "protocol/errors.go")
	for head, constants := range map[string]*regexp.Regexp{
		"| code | meaning |":   regexp.MustCompile(`(?m)^\t\w+ +Code = "(\w+)"`),
		"| reason | meaning |": regexp.MustCompile(`(?m)^\tReason\w+ += "(\w+)"`),
	} {
		_, table, _ := strings.Cut(text, head)
		table, _, _ = strings.Cut(table, "\n\n")
		listed := map[string]bool{}
		for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| .").FindAllStringSubmatch(table, -1) {
			if listed[row[1]] {
				t.Errorf("%s: %s is listed twice", head, row[1])
			}
			listed[row[1]] = true
		}
		known := map[string]bool{}
		for _, c := range constants.FindAllStringSubmatch(source, -1) {
			if known[c[1]] = true; !listed[c[1]] {
				t.Errorf("%s: %s is not listed", head, c[1])
			}
		}
		for name := range listed {
			if !known[name] {
				t.Errorf("%s: %s is listed but not declared", head, name)
			}
		}
		if len(known) < 11 {
			t.Errorf("%s: found only %d constants", head, len(known))
		}
	}
}

func wantNamed(t *testing.T, text string, names []string) {
	t.Helper()
	for _, name := range names {
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, `"`+name+`":`) {
			t.Errorf("docs/wire.md does not name %s in: %.80s…", name, strings.TrimSpace(text))
		}
	}
}

// rowOf returns the table row whose first cell names a field, or "".
func rowOf(section, field string) string {
	for _, line := range strings.Split(section, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.Contains(cells[1], "`"+field+"`") {
			return line
		}
	}
	return ""
}

// field is a field on the wire, with the names of the fields of its type or of its elements.
type field struct {
	name  string
	below []string
}

func fields(of any) (all []field) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		below := f.Type
		for below.Kind() == reflect.Slice || below.Kind() == reflect.Pointer {
			below = below.Elem()
		}
		found := field{name: name}
		if below.Kind() == reflect.Struct {
			for _, b := range fields(reflect.Zero(below).Interface()) {
				found.below = append(found.below, b.name)
			}
		}
		all = append(all, found)
	}
	return all
}

// mostGlossaryWords is how many words a newcomer is expected to learn from one page.
const mostGlossaryWords = 30

func TestTheGlossaryIsShort(t *testing.T) {
	glossary := section(t, read(t, "ARCHITECTURE.md"), "## Glossary")
	if words := strings.Count(glossary, "\n| ") - 1; words < 1 || words > mostGlossaryWords {
		t.Errorf("the glossary of ARCHITECTURE.md has %d words, want 1 to %d", words, mostGlossaryWords)
	}
}

// TestDecisionsHaveNumbersOfTheirOwn checks that no two decisions have the same number, and that the heading of each
// has the number of its file.
func TestDecisionsHaveNumbersOfTheirOwn(t *testing.T) {
	pages, err := filepath.Glob("docs/decisions/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("found no decisions: %v", err)
	}
	of, numbered := map[string]string{}, regexp.MustCompile(`\A(\d{4})-[a-z0-9-]+\.md\z`)
	for _, page := range pages {
		name := filepath.Base(page)
		found := numbered.FindStringSubmatch(name)
		if found == nil {
			t.Errorf("%s: the name must be NNNN-title.md, with lower case letters, digits and dashes", page)
			continue
		}
		if other := of[found[1]]; other != "" {
			t.Errorf("%s has the number of %s: give it the next free one", page, other)
		}
		of[found[1]] = name
		if !regexp.MustCompile(`\A# ` + found[1] + `\.? `).MatchString(read(t, page)) {
			t.Errorf("%s: the heading must begin with # %s", page, found[1])
		}
	}
}
