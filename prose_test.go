package boxfleet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// avoided lists phrases that made readers stop, and the words to use instead. A space in a phrase matches any white
// space, including a line break.
var avoided = []struct{ phrase, instead string }{
	{`\banew\b`, "again"},
	{`\b(?:whoever|whomever|whosoever) (?:is|was|has|had|reads|asks|holds|wants|waits|can|may)\b`,
		"name the subject: a client that, a worker that"},
	{`\bso long[.,;:]|\bso long as\b`, "while, until, or the duration"},
	{`\bin vain\b`, "without success"},
	{`[^e] of it[.;:]|\bthereof\b|\btherein\b|\bwherein\b|\bwhereof\b|\bhenceforth\b|\bhitherto\b`,
		"name the thing again"},
	{`\b(?:is|was|are|were) over[.,;:]`, "has ended"},
	{`\bbut for\b`, "except for"},
	{`\b(?:go|goes|went|going) on (?:with|as|until|while)\b|\b(?:goes|went|go) on[.,;:]`, "continue"},
	{`\bbe it\b`, "whether"},
	{`\bat hand\b`, "available, or name the place"},
	{`\bwhat (?:was|is|were|are) (?:heard|told|said|of old)\b`, "name the message or the answer"},
	{`\bas it were\b|\bso to speak\b|\bin the midst\b|\bever ?more\b|\bfor want of\b`, "plain words"},
}

// relativeSubject matches the beginning of a comment whose subject is a relative clause.
var relativeSubject = regexp.MustCompile(
	`\A\s*(?:Who|What) (?:is|was|has|had|does|comes?|cannot|can|may|goes|asks|wants) `)

const relativeInstead = "begin with a noun: a client that, the files that"

// passage is a comment, a string or a paragraph.
type passage struct {
	file    string
	at      int // line of its beginning
	text    string
	comment bool
}

// finding is an avoided phrase in a passage.
type finding struct {
	at              line
	phrase, instead string
}

// avoidedIn returns the avoided phrases of a passage.
func avoidedIn(p passage) (found []finding) {
	add := func(place []int, instead string) {
		at := p.at + strings.Count(p.text[:place[0]], "\n")
		phrase := strings.Join(strings.Fields(p.text[place[0]:place[1]]), " ")
		found = append(found, finding{line{file: p.file, at: at}, phrase, instead})
	}
	for i, pattern := range avoidedPatterns {
		for _, place := range pattern.FindAllStringIndex(p.text, -1) {
			add(place, avoided[i].instead)
		}
	}
	if place := relativeSubject.FindStringIndex(p.text); p.comment && place != nil {
		add(place, relativeInstead)
	}
	return found
}

var avoidedPatterns = func() (all []*regexp.Regexp) {
	for _, a := range avoided {
		all = append(all, regexp.MustCompile(`(?i)`+strings.ReplaceAll(a.phrase, " ", `\s+`)))
	}
	return all
}()

// passages returns the comments and the strings of the Go files, and the paragraphs of the documents, scripts and the
// Makefile. Code in documents is blanked.
func passages(t *testing.T) (all []passage) {
	t.Helper()
	for _, name := range filesNamed(t, func(name string) bool { return strings.HasSuffix(name, ".go") }) {
		if name != "prose_test.go" { // this file lists the phrases
			all = append(all, passagesOf(t, name, read(t, name))...)
		}
	}
	fenced := false
	previous := line{}
	for _, l := range documents(t) {
		if l.file != previous.file {
			fenced = false
		}
		fence := strings.HasPrefix(strings.TrimSpace(l.text), "```")
		if fence {
			fenced = !fenced
		}
		text := withoutCode(l.text)
		if fenced || fence {
			text = ""
		}
		if l.file == previous.file && text != "" && previous.text != "" {
			all[len(all)-1].text += "\n" + text
		} else if text != "" {
			all = append(all, passage{file: l.file, at: l.at, text: text})
		}
		previous = line{file: l.file, text: text}
	}
	return all
}

// passagesOf returns the comments and the strings of a Go file. Strings of one word are names, not prose.
func passagesOf(t *testing.T, name, source string) (all []passage) {
	t.Helper()
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Comments {
		var lines []string
		for _, comment := range group.List {
			lines = append(lines, strings.TrimPrefix(comment.Text, "//"))
		}
		all = append(all, passage{name, positions.Position(group.Pos()).Line, strings.Join(lines, "\n"), true})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
			text, _ := strconv.Unquote(s.Value) // the parser has accepted it
			if s.Value[0] == '"' {
				text = strings.ReplaceAll(text, "\n", " ") // such a literal has one line
			}
			if len(strings.Fields(text)) > 1 {
				all = append(all, passage{file: name, at: positions.Position(s.Pos()).Line, text: text})
			}
		}
		return true
	})
	return all
}

func TestProseAvoidsPhrasesThatMadeReadersStop(t *testing.T) {
	all := passages(t)
	if len(all) < 5000 {
		t.Fatalf("found only %d passages", len(all))
	}
	for _, p := range all {
		for _, f := range avoidedIn(p) {
			t.Errorf("%s: %q: use instead: %s", f.at, f.phrase, f.instead)
		}
	}
}

func TestTheProseCheckFindsEachPhrase(t *testing.T) {
	for text, want := range map[string]string{
		"it starts anew":                         "anew",
		"whoever holds the lock\ndecides":        "whoever holds",
		"it waits for so\nlong, and then ends":   "so long,",
		"the lock is held so long as it renews":  "so long as",
		"it tried in vain":                       "in vain",
		"a file, and the end of it.":             "d of it.",
		"once the exec is over, it answers":      "is over,",
		"nothing but for one file":               "but for",
		"it goes on until the end":               "goes on until",
		"be it a file or a link":                 "be it",
		"the answer at hand":                     "at hand",
		"what was told before":                   "what was told",
		" What is not stored is published again": "What is",
	} {
		found := avoidedIn(passage{text: text, comment: true})
		if len(found) != 1 || strings.TrimSpace(found[0].phrase) != want {
			t.Errorf("%q: found %v, want %q", text, found, want)
		}
	}
	for _, text := range []string{
		"as long ago as that", "refused because of it.", "paused for so long that", "part of its name",
		"half of it is used", "whatever the spec says", "it is over 100 bytes",
		"what is left of the time", "go on", "a short wait", "What a sandbox can do is listed below.",
	} {
		if found := avoidedIn(passage{text: text, comment: true}); len(found) > 0 {
			t.Errorf("%q: found %v", text, found)
		}
	}
	source := "package p\n\n// f works\n// in vain\nvar f = \"try\\nanew\"\n"
	var lines []int
	for _, p := range passagesOf(t, "p.go", source) {
		for _, f := range avoidedIn(p) {
			lines = append(lines, f.at.at)
		}
	}
	if len(lines) != 2 || lines[0] != 4 || lines[1] != 5 {
		t.Errorf("found at lines %v", lines)
	}
}
