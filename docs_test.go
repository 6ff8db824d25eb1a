package boxfleet

import (
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

// read is a page of the documents.
func read(t *testing.T, page string) string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// section is what stands below a heading, up to the next one of its rank or above.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("there is no %q", heading)
	}
	rank := strings.Index(heading, " ")
	if end := regexp.MustCompile(`(?m)^#{1,` + string(rune('0'+rank)) + `} `).FindStringIndex(text); end != nil {
		text = text[:end[0]]
	}
	return text
}

func TestEveryTableOfTheDocumentsBeginsWithItsHead(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "README.md", "ARCHITECTURE.md") {
		lines := strings.Split(read(t, page), "\n")
		for i, line := range lines {
			begins := strings.HasPrefix(line, "|") && (i == 0 || !strings.HasPrefix(lines[i-1], "|"))
			if begins && (i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "|--")) {
				t.Errorf("%s:%d: a row without a table: %.60s", page, i+1, line)
			}
		}
	}
}

// ownImports is what the packages of this module import of one another.
func ownImports(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	for _, line := range list(t, "{{.ImportPath}} {{join .Imports \" \"}}", "./...") {
		from, all, _ := strings.Cut(line, " ")
		for _, to := range strings.Fields(all) {
			if own, ok := strings.CutPrefix(to, module+"/"); ok {
				from := strings.TrimPrefix(from, module+"/")
				imports[from] = append(imports[from], own)
			}
		}
	}
	return imports
}

// TestWhatADocSaysOfItsImportsIsWhole looks at those that say something of them.
func TestWhatADocSaysOfItsImportsIsWhole(t *testing.T) {
	sentence, said := regexp.MustCompile(`(?s)(The package|It)( may)? imports? .*?\.\s`), 0
	for from, imports := range ownImports(t) {
		doc, err := os.ReadFile(filepath.Join(from, "doc.go"))
		says := sentence.FindString(strings.ReplaceAll(string(doc), "\n//", ""))
		if err != nil || says == "" {
			continue
		}
		said++
		for _, to := range imports {
			if own := strings.HasPrefix(to, from+"/") && strings.Contains(says, "its own sub-packages"); !own && !strings.Contains(says, to) {
				t.Errorf("%s imports %s, and its doc.go says: %s", from, to, says)
			}
		}
	}
	if said < 8 {
		t.Errorf("%d packages say what they import", said)
	}
}

// TestTheImportTableIsWhatPackagesImport compares the table of ARCHITECTURE.md with what the compiler
// sees. Rows that say it in words are for people.
func TestTheImportTableIsWhatPackagesImport(t *testing.T) {
	imports := ownImports(t)
	names := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for _, line := range strings.Split(section(t, read(t, "ARCHITECTURE.md"), "## Packages, and what they may know"), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") || strings.Contains(cells[3], "everything") {
			continue
		}
		rows++
		want := map[string]bool{}
		for _, m := range names.FindAllStringSubmatch(cells[1], -1) {
			for _, to := range imports[m[1]] {
				inRow := strings.Contains(cells[1], "`"+to+"`")
				if sub := strings.HasPrefix(to, m[1]+"/"); !inRow && (!sub || !strings.Contains(cells[3], "its own sub-packages")) {
					want["`"+to+"`"] = true
				}
			}
		}
		if got := names.FindAllString(cells[3], -1); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(maps.Keys(want))) {
			t.Errorf("%s imports %v, and ARCHITECTURE.md says %s", cells[1], slices.Sorted(maps.Keys(want)), cells[3])
		}
	}
	if rows < 10 {
		t.Errorf("the table has %d rows", rows)
	}
}

// TestTheWirePageNamesEveryField looks for the fields of specs each in its own row, and for those of
// events anywhere in their section.
func TestTheWirePageNamesEveryField(t *testing.T) {
	page := read(t, "docs/wire.md")
	for heading, spec := range map[string]any{"### Sandbox spec": protocol.SandboxSpec{}, "### Service": protocol.Service{}, "### Exec spec": protocol.ExecSpec{}} {
		for _, f := range fields(spec) {
			row := rowOf(section(t, page, heading), f.name)
			if row == "" {
				t.Errorf("docs/wire.md, %s: no row is of %s", heading, f.name)
				continue
			}
			wantNamed(t, row, f.below)
		}
	}
	events := section(t, page, "## Events")
	byReader := []string{"record", "replay"}
	for _, part := range []any{protocol.Batch{}, protocol.Event{}, protocol.SandboxDetails{}, protocol.ExecDetails{}, protocol.ServiceDetails{}, protocol.PullProgress{}} {
		for _, f := range fields(part) {
			if !slices.Contains(byReader, f.name) {
				wantNamed(t, events, []string{f.name})
			}
		}
	}
}

// TestTheWirePageHasTheShapesOfObjects looks for each field in the first column of its object's table.
func TestTheWirePageHasTheShapesOfObjects(t *testing.T) {
	page := read(t, "docs/wire.md")
	for heading, object := range map[string]any{
		"### Sandbox": protocol.Sandbox{}, "### Exec": protocol.Exec{}, "### Host": protocol.Host{}, "### Explanation": protocol.Explanation{},
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
	wantNamed(t, section(t, page, "## Reads"), slices.DeleteFunc(names(protocol.Query{}), func(name string) bool { return name == "v" }))
}

func names(of any) (all []string) {
	for _, f := range fields(of) {
		all = append(all, f.name)
	}
	return all
}

// TestTheWirePageListsEveryCodeAndReason compares both tables with the constants.
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
				t.Errorf("%s: %s is there twice", head, row[1])
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
				t.Errorf("%s: there is no %s", head, name)
			}
		}
		if len(known) < 11 {
			t.Errorf("%s: %d constants", head, len(known))
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

// rowOf is the row of a table whose first cell names a field.
func rowOf(section, field string) string {
	for _, line := range strings.Split(section, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.Contains(cells[1], "`"+field+"`") {
			return line
		}
	}
	return ""
}

// field is a field on the wire, and the names of those below it, where it or what it lists has some.
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
