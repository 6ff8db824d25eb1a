package boxfleet

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/rights"
)

const rightsPage = "docs/rights.md"

// TestTheRightsPageShowsTheTable compares the tables of the page with those of package rights.
func TestTheRightsPageShowsTheTable(t *testing.T) {
	page := read(t, rightsPage)
	updated := page
	for _, role := range rights.Roles() {
		updated = between(t, updated, string(role), rightsOf(role))
	}
	updated = between(t, updated, "shared", sharedSubjects())
	switch {
	case updated == page:
	case *update:
		if err := os.WriteFile(rightsPage, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not show the present rights: run go test . -run TestTheRightsPage -update", rightsPage)
	}
}

// between replaces the text between the marks of a table in the page.
func between(t *testing.T, page, table, content string) string {
	t.Helper()
	begin := "<!-- " + table + ": generated -->\n"
	marked := regexp.MustCompile("(?s)" + regexp.QuoteMeta(begin) + ".*?<!-- end -->")
	if !marked.MatchString(page) {
		t.Fatalf("%s has no marks for the table %q", rightsPage, table)
	}
	return marked.ReplaceAllLiteralString(page, begin+content+"<!-- end -->")
}

func rightsOf(role rights.Role) string {
	var b strings.Builder
	b.WriteString("| right | subjects | why |\n|---|---|---|\n")
	for _, row := range rights.Table() {
		if row.Role == role {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", row.Verb, quoted(row.Subjects), row.Why)
		}
	}
	return b.String()
}

func sharedSubjects() string {
	ways := map[rights.Way]string{
		rights.Asked: "publishes; one answer", rights.AskedFor: "publishes; many answers", rights.Heard: "subscribes",
		rights.Told: "publishes to all accounts", rights.Shown: "publishes to the other account without streams",
		rights.Answers: "answers all accounts; one answer",
	}
	var b strings.Builder
	b.WriteString("| account | what it does | subjects |\n|---|---|---|\n")
	for _, account := range rights.Accounts() {
		for _, way := range []rights.Way{rights.Asked, rights.AskedFor, rights.Told, rights.Shown, rights.Answers,
			rights.Heard} {
			var subjects []string
			for _, share := range account.Shared() {
				if share.Way == way {
					subjects = append(subjects, share.Subject)
				}
			}
			if len(subjects) > 0 {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", account, ways[way], quoted(subjects))
			}
		}
	}
	return b.String()
}

func quoted(subjects []string) string { return "`" + strings.Join(subjects, "`, `") + "`" }
