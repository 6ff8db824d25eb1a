package protocol

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Duration is a time.Duration that is encoded as text such as "1m30s" on the wire, in JSON and in YAML. 0 is
// encoded as "0s".
type Duration time.Duration

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText returns the form of [time.Duration.String], such as "1m30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses what [time.ParseDuration] accepts.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %.40q: want a form such as \"90s\" or \"1h30m\"", text)
	}
	*d = Duration(v)
	return nil
}

// EncodeMsgpack encodes the text form.
func (d Duration) EncodeMsgpack(enc *msgpack.Encoder) error { return enc.EncodeString(d.String()) }

// DecodeMsgpack decodes the text form.
func (d *Duration) DecodeMsgpack(dec *msgpack.Decoder) error {
	s, err := dec.DecodeString()
	if err != nil {
		return err
	}
	return d.UnmarshalText([]byte(s))
}

// Bytes is a size in bytes. It decodes from a number, or from text with a binary unit such as "512m", "4GiB" or
// "1.5g", in msgpack, JSON and YAML. It encodes as a number.
type Bytes int64

var (
	sizePattern = regexp.MustCompile(`\A([0-9]*(?:\.[0-9]+)?) *(?:([kKmMgGtT])(?:[iI]?[bB])?|[bB])?\z`)
	sizeUnits   = map[string]int64{"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
)

// ParseBytes parses a size such as "1024", "512m", "1.5g" or "4GiB", from 0 to 2^63-1 bytes. Units are binary: "k" and
// "K" both mean 1024 bytes. Whole numbers are exact. A fraction must have a unit larger than the byte, and is rounded
// down to whole bytes.
func ParseBytes(s string) (Bytes, error) {
	if m := sizePattern.FindStringSubmatch(strings.TrimSpace(s)); m != nil {
		number, unit := m[1], sizeUnits[strings.ToLower(m[2])]
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n <= math.MaxInt64/unit {
			return Bytes(n * unit), nil
		}
		v, err := strconv.ParseFloat(number, 64)
		if size := v * float64(unit); err == nil && unit > 1 && size < math.MaxInt64 {
			return Bytes(size), nil
		}
	}
	return 0, fmt.Errorf("size %.40q: want a form such as \"512m\" or \"4GiB\"", s)
}

func (b Bytes) String() string {
	for _, u := range []struct {
		suffix string
		size   Bytes
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b >= u.size && b%u.size == 0 {
			return fmt.Sprintf("%d%s", b/u.size, u.suffix)
		}
		if b >= u.size {
			return fmt.Sprintf("%.1f%s", float64(b)/float64(u.size), u.suffix)
		}
	}
	return fmt.Sprintf("%dB", int64(b))
}

// UnmarshalJSON decodes a number, or text as [ParseBytes] does.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		v, err := ParseBytes(s)
		*b = v
		return err
	}
	var v int64
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	*b = Bytes(v)
	return nil
}

// EncodeMsgpack encodes a number.
func (b Bytes) EncodeMsgpack(enc *msgpack.Encoder) error { return enc.EncodeInt(int64(b)) }

// DecodeMsgpack decodes a number, or text as [ParseBytes] does.
func (b *Bytes) DecodeMsgpack(dec *msgpack.Decoder) error {
	code, err := dec.PeekCode()
	if err != nil {
		return err
	}
	if msgpcode.IsString(code) {
		s, err := dec.DecodeString()
		if err != nil {
			return err
		}
		return b.UnmarshalText([]byte(s))
	}
	if code == msgpcode.Uint64 { // DecodeInt64 would return a negative number
		v, err := dec.DecodeUint64()
		if err == nil && v > math.MaxInt64 {
			err = fmt.Errorf("size %d is too large", v)
		}
		*b = Bytes(v)
		return err
	}
	v, err := dec.DecodeInt64()
	*b = Bytes(v)
	return err
}

// UnmarshalText parses text as [ParseBytes] does, for flags and YAML.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := ParseBytes(string(text))
	*b = v
	return err
}
