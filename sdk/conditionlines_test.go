package sdk

import (
	"iter"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// chunksOf cuts a stream at random points.
func chunksOf(random *rand.Rand, stream, text string) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		for at := 0; at < len(text); {
			n := min(1+random.IntN(1+random.IntN(2*MaxLine)), len(text)-at)
			if !yield(Chunk{Stream: stream, Offset: int64(at), Data: []byte(text[at : at+n])}, nil) {
				return
			}
			at += n
		}
	}
}

func TestALineIsFoundHoweverTheOutputIsCut(t *testing.T) {
	long := strings.Repeat("x", MaxLine-3)
	text := "one\n\ntwo\r\n" + long + "ab\n" + long + "abcdef\nlast"
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		for what, want := range map[*Condition]int64{
			new(OutputMatches(regexp.MustCompile("^$"))):      4,
			new(OutputMatches(regexp.MustCompile("^two$"))):   5,
			new(OutputMatches(regexp.MustCompile("^x+ab$"))):  10,
			new(OutputMatches(regexp.MustCompile("^x+abc$"))): int64(10 + MaxLine), // the first piece of the line
			new(OutputMatches(regexp.MustCompile("^def$"))):   int64(10 + 2*MaxLine),
			new(OutputMatches(regexp.MustCompile("^last$"))):  int64(strings.Index(text, "last")),
			new(OutputContains("wo")):                         5,
			new(OutputContains("ast")):                        int64(strings.Index(text, "last")),
		} {
			m, err := what.find(chunksOf(random, Stderr, text))
			if err != nil || m == nil || m.Offset != want || m.Stream != Stderr {
				t.Fatalf("seed %d: %s: %+v, %v; want offset %d", seed, what.what, m, err, want)
			}
		}
		if m, err := OutputMatches(regexp.MustCompile("abcdef|one\ntwo")).find(chunksOf(random, Stdout, text)); m != nil ||
			err != nil {
			t.Fatalf("seed %d: a match across lines or pieces: %+v, %v", seed, m, err)
		}
	}
}

// TestALineIsNotJoinedAcrossLostOutput reads output of which the host had no room to keep a part.
func TestALineIsNotJoinedAcrossLostOutput(t *testing.T) {
	chunks := func(yield func(Chunk, error) bool) {
		_ = yield(Chunk{Stream: Stdout, Offset: 7, Data: []byte("rea")}, nil) &&
			yield(Chunk{Stream: Stdout, Offset: 20, Data: []byte("dy\nfine\n")}, nil)
	}
	if m, err := OutputContains("ready").find(chunks); m != nil || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := OutputContains("fine").find(chunks); err != nil || m == nil || m.Offset != 23 {
		t.Errorf("%+v, %v", m, err)
	}
}
