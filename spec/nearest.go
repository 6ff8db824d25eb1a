package spec

import "strings"

// Nearest returns the known name that takes the fewest edits to become the mistyped name. It returns "" if this takes
// more edits than a third of the letters of name.
func Nearest(name string, known []string) string {
	if len(name) < 3 || len(name) > 64 { // too short to tell, or not a name
		return ""
	}
	nearest, most := "", max(1, len(name)/3)
	for _, k := range known {
		d := changes(plainName(name), plainName(k))
		// Among equals, prefer a name with the same first letter, which is rarely mistyped.
		if d < most || d == most && (nearest == "" || nearest[0] != name[0] && k != "" && k[0] == name[0]) {
			nearest, most = k, d
		}
	}
	return nearest
}

// plainName removes differences that people overlook: letter case and how words are joined.
func plainName(name string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
}

// changes returns the edit distance of two texts. Insertions, deletions, replacements and swaps of neighbours
// count 1.
func changes(from, to string) int {
	a, b := []rune(from), []rune(to)
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
