package boxfleet

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/doctor"
)

const doctorPage = "docs/doctor.md"

// TestTheDoctorPageListsEveryFinding compares the table of the page with the catalog of package doctor.
func TestTheDoctorPageListsEveryFinding(t *testing.T) {
	var table strings.Builder
	table.WriteString("| code | severity | what is wrong | what to do |\n|---|---|---|---|\n")
	for _, k := range doctor.Kinds() {
		do := strings.ReplaceAll(k.Do, "{subject}", "NAME")
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", k.Code, k.Severity, k.Means, do)
	}
	page := read(t, doctorPage)
	updated := between(t, page, "findings", table.String())
	switch {
	case updated == page:
	case *update:
		if err := os.WriteFile(doctorPage, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not list the present findings: run go test . -run TestTheDoctorPage -update", doctorPage)
	}
}
