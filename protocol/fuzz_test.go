package protocol

import (
	"bytes"
	"errors"
	"math"
	"testing"
)

func FuzzDecodeRequest(f *testing.F) { fuzzDecode[Request](f) }

func FuzzDecodeQuery(f *testing.F) { fuzzDecode[Query](f) }

// fuzzDecode decodes arbitrary bytes strictly, as if from a client.
func fuzzDecode[T any](f *testing.F) {
	for _, v := range goldenValues() {
		if _, ok := v.(*T); ok {
			f.Add(Encode(v))
			f.Add(EncodeAs(ContentJSON, v))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, contentType := range []string{ContentMsgpack, ContentJSON} {
			var strict, lenient T
			var strictErr error
			used := allocated(func() { strictErr = DecodeStrict(contentType, data, &strict) })
			if most := uint64(1<<20 + 1000*len(data)); used > most {
				t.Errorf("%s: %d bytes of input cost %d bytes of memory", contentType, len(data), used)
			}
			lenientErr := DecodeAs(contentType, data, &lenient)
			checkDecoded(t, contentType, &strict, strictErr)
			checkDecoded(t, contentType, &lenient, lenientErr)
			if strictErr == nil && (lenientErr != nil || !same(strict, lenient)) {
				t.Errorf("%s: strictly %s\nleniently %s, %v", contentType, show(strict), show(lenient), lenientErr)
			}
		}
	})
}

// checkDecoded checks that a decoded value can be encoded in either content type and decoded again,
// and that any error is a typed one.
func checkDecoded[T any](t *testing.T, contentType string, v *T, err error) {
	t.Helper()
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.Code != InvalidArgument || len(e.Message) > 1000 {
			t.Fatalf("%s: rejected with %T: %v", contentType, err, err)
		}
		return
	}
	EncodeAs(ContentJSON, v) // must not panic
	for range 2 {
		var again T
		if err := DecodeAs(contentType, EncodeAs(contentType, v), &again); err != nil || !same(*v, again) {
			t.Fatalf("%s: decoded %s\nafter a round trip %s, %v", contentType, show(v), show(again), err)
		}
	}
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add(Encode(goldenValues()["batch"]))
	f.Add(batchOf(Event{Sequence: 1, Kind: SandboxAccepted}).Encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := DecodeBatch(data, 7)
		if err != nil {
			if code := CodeOf(err); code != InvalidArgument && code != FailedPrecondition {
				t.Fatalf("rejected with %v", err)
			}
			return
		}
		again, err := DecodeBatch(b.Encode(), 7)
		if err != nil || !same(*b, *again) {
			t.Fatalf("decoded %s\nafter a round trip %s, %v", show(b), show(again), err)
		}
		EncodeAs(ContentJSON, b) // must not panic
		b.Headers()
		s := &State{}
		for i := range b.Events {
			s, _ = step(t, s, &b.Events[i])
		}
	})
}

// byteChoices chooses by a fuzzer's bytes, and by zeros when they run out.
type byteChoices struct{ data []byte }

func (c *byteChoices) below(n int, _ string) int {
	if len(c.data) == 0 {
		return 0
	}
	v := int(c.data[0]) % n
	c.data = c.data[1:]
	return v
}

func FuzzFold(f *testing.F) {
	for _, seed := range []string{"\x00\x01\x01\x0f", "\x00\x01\x02\x0f", "\x01\x01\x03\x0f\x00\x01\x02\x1f",
		"a long and winding history", "\x00\x00\x05\x00"} {
		f.Add(bytes.Repeat([]byte(seed), 20))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &byteChoices{data}
		s := &State{}
		var history []Event
		for len(c.data) > 0 && len(history) < 200 {
			e := anyEvent(c, s)
			after, accepted := step(t, s, e)
			if accepted {
				history = append(history, *e)
			}
			s = after
			checkTrim(t, s, len(data)%4)
		}
		checkReplay(t, &byteChoices{data}, s, history)
	})
}

func FuzzParseBytes(f *testing.F) {
	for _, text := range []string{"512m", "1.5g", "4GiB", " 10 b ", "9223372036854775807", ".5k", "-1", "1e3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := ParseBytes(text)
		if err != nil {
			if size != 0 {
				t.Errorf("rejected, but returned %d", size)
			}
			return
		}
		if size < 0 {
			t.Errorf("%q is %d", text, size)
		}
		if size > 1<<60 { // the printed size may be rounded up beyond the maximum
			return
		}
		if again, err := ParseBytes(size.String()); err != nil || math.Abs(float64(again-size)) > 0.06*float64(size) {
			t.Errorf("%q is %d, prints as %s, which is %d, %v", text, size, size, again, err)
		}
	})
}
