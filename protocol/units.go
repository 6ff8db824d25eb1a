package protocol

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Duration is a time.Duration that reads and writes as text, "1m30s", on the wire, in JSON and in
// YAML. 0 is written as "0s".
type Duration time.Duration

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the Go form, such as "1m30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %.40q: want a form such as \"90s\" or \"1h30m\"", text)
	}
	*d = Duration(v)
	return nil
}

// EncodeMsgpack writes the text form.
func (d Duration) EncodeMsgpack(enc *msgpack.Encoder) error { return enc.EncodeString(d.String()) }

// DecodeMsgpack reads the text form.
func (d *Duration) DecodeMsgpack(dec *msgpack.Decoder) error {
	s, err := dec.DecodeString()
	if err != nil {
		return err
	}
	return d.UnmarshalText([]byte(s))
}

// Bytes is a size in bytes. Whoever writes msgpack, JSON or YAML may give a number, or text with a
// binary unit: "512m", "4GiB", "1.5g". It is written as a number.
type Bytes int64

var byteUnits = []struct {
	suffix string
	size   float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1 << 10}, {"mb", 1 << 20}, {"gb", 1 << 30}, {"tb", 1 << 40},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1}, {"", 1},
}

// ParseBytes reads a size such as "1024", "512m" or "4GiB"; units are binary.
func ParseBytes(s string) (Bytes, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	for _, u := range byteUnits {
		number, found := strings.CutSuffix(text, u.suffix)
		if !found {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || math.IsNaN(v) || v < 0 || v*u.size >= math.MaxInt64 {
			break
		}
		return Bytes(v * u.size), nil
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

// UnmarshalJSON reads a number or text with a unit.
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

// EncodeMsgpack writes a number.
func (b Bytes) EncodeMsgpack(enc *msgpack.Encoder) error { return enc.EncodeInt(int64(b)) }

// DecodeMsgpack reads a number or text with a unit.
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
	v, err := dec.DecodeInt64()
	*b = Bytes(v)
	return err
}

// UnmarshalText reads text with a unit, for flags and YAML.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := ParseBytes(string(text))
	*b = v
	return err
}
