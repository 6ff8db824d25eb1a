package spec

import "testing"

func BenchmarkParseTheExample(b *testing.B) {
	text := Example()
	for b.Loop() {
		d, err := Parse(text, Options{})
		if err == nil {
			err = d.Validate()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
