package boxfleet

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false,
	"write the generated parts of docs/guarantees.md, docs/imports.md and docs/api.txt")

const guaranteesPage = "docs/guarantees.md"

// TestTheMakefileNamesTests fails if a list of tests in the Makefile has a name with which no test begins.
func TestTheMakefileNamesTests(t *testing.T) {
	tests, makefile := testNames(goFiles(t)), strings.ReplaceAll(read(t, "Makefile"), "$\\\n", "")
	for _, list := range []string{"CLUSTER", "ENGINE26", "RACE_SKIP"} {
		found := regexp.MustCompile(`(?m)^` + list + ` = (\S+)$`).FindStringSubmatch(makefile)
		if found == nil {
			t.Fatalf("the Makefile has no list %s", list)
		}
		for _, name := range strings.Split(found[1], "|") {
			if !slices.ContainsFunc(tests, func(test string) bool { return strings.HasPrefix(test, name) }) {
				t.Errorf("%s in the Makefile names %s, which no test begins with", list, name)
			}
		}
	}
}

// guaranteeRow matches a row of docs/guarantees.md: a code, the guarantee in one sentence, and its tests.
var guaranteeRow = regexp.MustCompile(`(?m)^\| ([A-Z]+[0-9]+) \| (.+) \| (.*)\|$`)

// TestGuaranteesNameTheirTests fails if docs/guarantees.md has no row for a code in a test's name, if a row does not
// list all tests with its code in their names, or if a row lists a test that does not exist.
func TestGuaranteesNameTheirTests(t *testing.T) {
	tests := testNames(goFiles(t))
	rows := map[string]bool{}
	page := read(t, guaranteesPage)
	updated := guaranteeRow.ReplaceAllStringFunc(page, func(row string) string {
		cells := guaranteeRow.FindStringSubmatch(row)
		if rows[cells[1]] {
			t.Errorf("%s has two rows for %s", guaranteesPage, cells[1])
		}
		rows[cells[1]] = true
		var listed []string
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[3], -1) {
			if slices.Contains(tests, name[1]) && !strings.HasPrefix(name[1], "Test"+cells[1]+"_") {
				listed = append(listed, "`"+name[1]+"`")
			}
		}
		for _, name := range tests {
			if strings.HasPrefix(name, "Test"+cells[1]+"_") {
				listed = append(listed, "`"+name+"`")
			}
		}
		if len(listed) == 0 {
			t.Errorf("%s: no test is listed for %s", guaranteesPage, cells[1])
		}
		return "| " + cells[1] + " | " + cells[2] + " | " + strings.Join(listed, ", ") + " |"
	})
	for _, name := range tests {
		if code := regexp.MustCompile(`^Test([A-Z]+[0-9]+)_`).FindStringSubmatch(name); code != nil && !rows[code[1]] {
			t.Errorf("%s has no row for the code %s of the test %s", guaranteesPage, code[1], name)
		}
	}
	switch {
	case updated == page:
	case *update:
		if err := os.WriteFile(guaranteesPage, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not list the current tests: run go test . -run TestGuarantees -update", guaranteesPage)
	}
}
