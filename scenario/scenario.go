// Package scenario runs the scenario files of tests. A scenario file has steps, with the outcome below each step. Only
// tests import this package.
package scenario

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Run runs one subtest for each file that matches a pattern. The function play carries out the steps of a file, and
// returns the file's text with the actual outcomes in place of the expected ones. The subtest fails if the two texts
// differ. If update is set, the subtest writes the actual outcomes to the file instead.
func Run(t *testing.T, pattern string, update bool, play func(text []byte) ([]byte, error)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := play(want)
			if err != nil {
				t.Fatal(err)
			}
			if update && !bytes.Equal(got, want) {
				err = os.WriteFile(file, got, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			if text := difference(string(want), string(got)); text != "" && !update {
				t.Fatal(text)
			}
		})
	}
}

// difference describes the first line in which two texts differ. It returns "" if they are equal.
func difference(want, got string) string {
	wanted, lines := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(wanted), len(lines)) {
		a, b := lineAt(wanted, i), lineAt(lines, i)
		if a != b {
			return "line " + strconv.Itoa(i+1) + "\nwant " + a + "\ngot  " + b
		}
	}
	return ""
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "the end"
}
