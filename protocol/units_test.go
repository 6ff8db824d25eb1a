package protocol

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSizesParseWithTheirUnit(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "1": 1, "1024": 1024, "512m": 512 << 20, "512M": 512 << 20, "512mb": 512 << 20, "512MiB": 512 << 20,
		" 1 g ": 1 << 30,
		"1.5g":  3 << 29, "0.5k": 512, "4GiB": 4 << 30, "2t": 2 << 40, "2TB": 2 << 40, "10b": 10, "10B": 10, "0b": 0,
		".5k":              512,
		"9007199254740993": 9007199254740993, "9223372036854775807": math.MaxInt64, "8388607t": 8388607 << 40,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: want %d, got %d, %v", text, want, got, err)
		}
	}
}

func TestP9_InvalidSizesAreRejected(t *testing.T) {
	for _, text := range []string{
		"", " ", "m", "b", "-1", "-1g", "+1", "1x", "1mm", "1 2", "1m2", "g1", "1,5g", "1..5", ".", ".g", "1.5", "1.5b",
		"0x10", "0x1p4", "1e3",
		"1e3m", "1_000", "inf", "infm", "nan", "NaNg", "9223372036854775808", "8388608t", "99999999999999999999t", "1g\x00",
		"1г", "١", "--1", "1gg",
		"1 kb b", strings.Repeat("9", 4000),
	} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%.40q parsed as %d", text, got)
		} else if !strings.Contains(err.Error(), "size") || len(err.Error()) > 300 {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestSizesDecodeFromEveryEncoding(t *testing.T) {
	for form, data := range map[string][]byte{
		ContentJSON + " number":    []byte(`{"memory":536870912}`),
		ContentJSON + " text":      []byte(`{"memory":"512m"}`),
		ContentMsgpack + " number": Encode(map[string]any{"memory": 512 << 20}),
		ContentMsgpack + " text":   Encode(map[string]any{"memory": "512m"}),
	} {
		contentType, _, _ := strings.Cut(form, " ")
		var spec SandboxSpec
		if err := DecodeStrict(contentType, data, &spec); err != nil || spec.Memory != 512<<20 {
			t.Errorf("%s: %v, %v", form, spec.Memory, err)
		}
	}
	for form, data := range map[string][]byte{
		ContentJSON + " unit":        []byte(`{"memory":"512q"}`),
		ContentJSON + " fraction":    []byte(`{"memory":1.5}`),
		ContentJSON + " list":        []byte(`{"memory":[1]}`),
		ContentJSON + " too big":     []byte(`{"memory":9223372036854775808}`),
		ContentMsgpack + " unit":     Encode(map[string]any{"memory": "512q"}),
		ContentMsgpack + " fraction": Encode(map[string]any{"memory": 1.5}),
		ContentMsgpack + " list":     Encode(map[string]any{"memory": []int{1}}),
		ContentMsgpack + " too big":  Encode(map[string]any{"memory": uint64(1) << 63}),
	} {
		contentType, _, _ := strings.Cut(form, " ")
		var spec SandboxSpec
		if err := DecodeStrict(contentType, data, &spec); CodeOf(err) != InvalidArgument {
			t.Errorf("%s: decoded as %v, %v", form, spec.Memory, err)
		}
	}
}

func TestSizesPrintAsTheyParse(t *testing.T) {
	for size, want := range map[Bytes]string{0: "0B", 1: "1B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB",
		512 << 20: "512MiB",
		3 << 29:   "1.5GiB", 5 << 40: "5TiB", -5: "-5B"} {
		if got := size.String(); got != want {
			t.Errorf("%d: want %s, got %s", int64(size), want, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]Bytes{1, 1 << 10, 1 << 20, 1 << 30, 1 << 40}).Draw(t, "unit")
		size := Bytes(rapid.Int64Range(0, 1023).Draw(t, "n")) * unit
		if got, err := ParseBytes(size.String()); err != nil || got != size {
			t.Fatalf("%d prints as %s, which parses as %d, %v", int64(size), size, got, err)
		}
	})
}

func TestWholeSizesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Min(0).Draw(t, "n")
		if got, err := ParseBytes(fmt.Sprint(n)); err != nil || got != Bytes(n) {
			t.Fatalf("%d parsed as %d, %v", n, got, err)
		}
	})
}

func TestDurationsAreText(t *testing.T) {
	for _, d := range []Duration{0, 1, Duration(time.Millisecond), Duration(90 * time.Minute), math.MaxInt64,
		math.MinInt64, -5} {
		text, err := d.MarshalText()
		var got Duration
		if err2 := got.UnmarshalText(text); err != nil || err2 != nil || got != d {
			t.Errorf("%d encoded as %s, decoded as %d: %v %v", int64(d), text, int64(got), err, err2)
		}
	}
	for form, data := range map[string][]byte{
		ContentJSON + " number":    []byte(`{"timeout":30}`),
		ContentJSON + " bare":      []byte(`{"timeout":"30"}`),
		ContentJSON + " empty":     []byte(`{"timeout":""}`),
		ContentJSON + " days":      []byte(`{"timeout":"1d"}`),
		ContentJSON + " newline":   []byte(`{"timeout":"1s\n"}`),
		ContentMsgpack + " number": Encode(map[string]any{"timeout": 30}),
		ContentMsgpack + " bare":   Encode(map[string]any{"timeout": "30"}),
		ContentMsgpack + " empty":  Encode(map[string]any{"timeout": ""}),
	} {
		contentType, _, _ := strings.Cut(form, " ")
		var spec ExecSpec
		if err := DecodeStrict(contentType, data, &spec); CodeOf(err) != InvalidArgument {
			t.Errorf("%s: decoded as %v, %v", form, spec.Timeout, err)
		}
	}
}
