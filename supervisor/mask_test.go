package supervisor

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// textsOf returns the texts to mask.
func textsOf(values ...[]byte) (texts [][]byte) {
	for _, value := range values {
		whole := bytes.TrimRight(value, "\r\n")
		texts = append(texts, whole)
		for line := range bytes.SplitSeq(whole, []byte("\n")) {
			if line = bytes.TrimRight(line, "\r"); len(line) >= 8 && len(line) < len(whole) {
				texts = append(texts, line)
			}
		}
	}
	return texts
}

// maskAll is the simple form of masking: it has the whole output at once.
func maskAll(output []byte, values ...[]byte) []byte {
	masked := bytes.Clone(output)
	for _, text := range textsOf(values...) {
		for i := 0; len(text) > 0 && i+len(text) <= len(output); i++ {
			if bytes.Equal(output[i:i+len(text)], text) {
				copy(masked[i:], strings.Repeat("*", len(text)))
			}
		}
	}
	return masked
}

// maskCut masks output that arrives in pieces of the given lengths, over and over.
func maskCut(t testing.TB, output []byte, cuts []byte, values ...[]byte) []byte {
	t.Helper()
	m, texts := patternsOf(values...).masker(), textsOf(values...)
	var got []byte
	for i, rest := 0, output; len(rest) > 0; i++ {
		n := len(rest)
		if len(cuts) > 0 {
			n = min(n, 1+int(cuts[i%len(cuts)]))
		}
		got = append(got, m.next(rest[:n], false)...)
		rest = rest[n:]
		if held := output[len(got) : len(output)-len(rest)]; m != nil && len(held) > 0 && !begins(held, texts) {
			t.Fatalf("%q is held back, but no text begins with it", held)
		}
	}
	return append(got, m.next(nil, true)...)
}

func begins(held []byte, texts [][]byte) bool {
	for _, text := range texts {
		if len(held) < len(text) && bytes.HasPrefix(text, held) {
			return true
		}
	}
	return false
}

func TestMask_ReplacesValuesAndKeepsTheLength(t *testing.T) {
	t.Parallel()
	key := "-----BEGIN-----\nabcdefgh\nshort\nijklmnop\r\n-----END-----\n"
	for _, c := range []struct{ name, output, want string }{
		{"a value", "x hunter2 y\n", "x ******* y\n"},
		{"twice without a gap", "hunter2hunter2", "**************"},
		{"a prefix only", "hunterx hunter", "hunterx hunter"},
		{"overlapping occurrences", "ababababx", "********x"},
		{"a value without its newline", "[newline]", "[*******]"},
		{"a whole key", key, strings.Repeat("*", len(key)-1) + "\n"},
		{"single lines of a key", "> ijklmnop <, > short <", "> ******** <, > short <"},
	} {
		values := [][]byte{[]byte("hunter2"), []byte("abab"), []byte("newline\r\n"), []byte(key)}
		for size := range len(c.output) {
			if got := maskCut(t, []byte(c.output), []byte{byte(size)}, values...); string(got) != c.want {
				t.Errorf("%s in pieces of %d bytes: %q, want %q", c.name, size+1, got, c.want)
			}
		}
	}
}

func FuzzMask(f *testing.F) {
	f.Add([]byte("aabaabaaab"), []byte("aab"), []byte("baa\naaaaaaaab\n"), []byte{0, 1, 2})
	f.Add([]byte("secret\nsecond line\nsec"), []byte("secret\nsecond line\n"), []byte("line"), []byte{3})
	f.Fuzz(func(t *testing.T, output, one, two, cuts []byte) {
		want, got := maskAll(output, one, two), maskCut(t, output, cuts, one, two)
		if !bytes.Equal(got, want) {
			t.Fatalf("%q with the values %q and %q, in pieces of %v: %q, want %q", output, one, two, cuts, got, want)
		}
	})
}

// With few different letters, values overlap in many ways.
func TestMask_AgreesWithTheSimpleForm(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	letters := func(n int) []byte {
		p := make([]byte, random.IntN(n+1))
		for i := range p {
			p[i] = "ab\n"[random.IntN(20)/9]
		}
		return p
	}
	for range 20_000 {
		output, one, two, cuts := letters(60), letters(6), letters(30), letters(3)
		for i := range cuts {
			cuts[i] = byte(random.IntN(5))
		}
		if got, want := maskCut(t, output, cuts, one, two), maskAll(output, one, two); !bytes.Equal(got, want) {
			t.Fatalf("%q with the values %q and %q, in pieces of %v: %q, want %q", output, one, two, cuts, got, want)
		}
	}
}

// A search for each text at each byte takes minutes for the same output.
func TestMask_ManyLongValuesDoNotStallTheOutput(t *testing.T) {
	t.Parallel()
	yes, lines := bytes.Repeat([]byte("y\n"), 32<<10), bytes.Repeat([]byte("y"), 64<<10)
	var tails, starts [][]byte
	for i := range 16 {
		tails = append(tails, fmt.Appendf(bytes.Clone(yes[:len(yes)-2]), "%02d", i))
		var value []byte
		for j := 0; len(value) < 64<<10-12; j++ {
			value = fmt.Appendf(value, "yyyy%04x%02x\n", j, i)
		}
		starts = append(starts, value)
	}
	for what, c := range map[string]struct {
		values [][]byte
		output []byte
	}{"values with the same beginning": {tails, yes}, "lines with the same beginning": {starts, lines}} {
		m, began, got := patternsOf(c.values...).masker(), time.Now(), 0
		for range 8 {
			got += len(m.next(bytes.Clone(c.output), false))
		}
		if got += len(m.next(nil, true)); got != 8*len(c.output) {
			t.Errorf("%s: %d bytes of %d", what, got, 8*len(c.output))
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: %d bytes took %v", what, got, took)
		}
	}
}

func BenchmarkMask(b *testing.B) {
	text := bytes.Repeat([]byte("2026-11-23 the quick brown fox jumps over the lazy dog 0123456789\n"), 1000)[:chunk]
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d values", n), func(b *testing.B) {
			var values [][]byte
			for i := range n {
				values = append(values, fmt.Appendf(nil, "t%05d-the-value-of-a-token", i))
			}
			m := patternsOf(values...).masker()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				m.next(text, false)
			}
		})
	}
}

// TestMemoryOfMasksIsBounded measures the most that masks may use: the largest values, with only short lines, which are
// masked one by one, too. It must run alone.
func TestMemoryOfMasksIsBounded(t *testing.T) {
	const perByte = 60 // as docs/secrets.md says
	r := rand.New(rand.NewPCG(1, 2))
	var values [][]byte
	for total := 0; total < protocol.MaxMaskedBytes; total += protocol.MaxSecretValue {
		value := make([]byte, protocol.MaxSecretValue)
		for i := range value {
			value[i] = byte('!' + r.IntN(90))
			if i%(leastLine+1) == leastLine {
				value[i] = '\n'
			}
		}
		values = append(values, value)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m := patternsOf(values...)
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc)
	if most := uint64(perByte * protocol.MaxMaskedBytes); used > most {
		t.Errorf("masks of %d bytes use %d bytes, at most %d are documented", protocol.MaxMaskedBytes, used, most)
	}
	t.Logf("masks of %d bytes use %d bytes in %d nodes", protocol.MaxMaskedBytes, used, len(m.nodes))
}
