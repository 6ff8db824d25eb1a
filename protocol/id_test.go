package protocol

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// badIDs are rejected wherever an id is expected: each could widen a subject or escape a directory.
var badIDs = map[string]string{
	"empty": "", "65 characters": strings.Repeat("a", 65), "very long": strings.Repeat("a", 1<<20),
	"dot": "a.b", "dots": "..", "star": "*", "star inside": "a*b", "rest wildcard": ">", "rest wildcard inside": "a>",
	"space": "a b", "leading space": " a", "tab": "a\tb", "newline": "\n", "newline suffix": "abc\n",
	"carriage return": "abc\r",
	"newline inside":  "a\nb", "slash": "a/b", "backslash": `a\b`, "NUL": "a\x00b", "NUL suffix": "a\x00",
	"unicode letter":     "ä",
	"unicode look-alike": "а", "full width": "ａ", "invalid UTF-8": "a\xff", "dollar": "$JS", "at": "a@b", "plus": "a+b",
	"comma": "a,b", "colon": "a:b", "equals": "a=b", "percent": "a%20",
}

func TestP3_OnlyPlainIDsAreValid(t *testing.T) {
	for name, id := range badIDs {
		t.Run(name, func(t *testing.T) { wantError(t, ValidateID("sandbox", id), InvalidArgument, "", "sandbox") })
	}
	for _, id := range []string{"a", "-", "_", "0", "A-b_9", strings.Repeat("a", MaxIDLength)} {
		if err := ValidateID("sandbox", id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestAValidIDIsOneSubjectToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9_-]{0,70}`)).Draw(t, "id")
		plain := id != "" && len(id) <= MaxIDLength &&
			strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == ""
		for _, c := range id {
			plain = plain && c < 0x80
		}
		if plain && strings.ContainsAny(id, " .*>/\\\x00") {
			plain = false
		}
		if got := ValidateID("x", id) == nil; got && !plain {
			t.Fatalf("%q is accepted", id)
		}
	})
}
