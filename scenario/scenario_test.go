package scenario

import "testing"

func TestTheFirstDifferentLineIsDescribed(t *testing.T) {
	for _, c := range []struct{ want, got, text string }{
		{"a\nb\n", "a\nb\n", ""},
		{"a\nb\n", "a\nc\n", "line 2\nwant b\ngot  c"},
		{"a\nb", "a", "line 2\nwant b\ngot  the end"},
		{"a", "a\nb", "line 2\nwant the end\ngot  b"},
	} {
		if text := difference(c.want, c.got); text != c.text {
			t.Errorf("%q and %q: %q, want %q", c.want, c.got, text, c.text)
		}
	}
}
