package protocol

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// maxDepth limits the nesting of lists and maps. A reply nests 7 levels deep.
const maxDepth = 32

// Limits of the times that RFC 3339 can express, with room for any time zone. Every reader can express these times.
var (
	minTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	maxTime = time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC).Unix()
)

// timeExt is the msgpack extension type of a timestamp.
const timeExt = 0xff

// checkMsgpack checks that data is exactly one msgpack value that JSON can also express, because a value
// decoded from msgpack may be encoded as JSON. The decoder allocates memory for a declared length before it has
// read the bytes: without this check, a ten-byte message could exhaust memory or the stack. The decoder also
// reads map entries inside an extension, whose length this check does not see. Extensions are therefore allowed
// from trusted peers only.
func checkMsgpack(data []byte, extensions bool) error {
	rest, ok := msgpackChecker{extensions: extensions}.skipValue(data, maxDepth)
	if !ok {
		return Errorf(InvalidArgument, ReasonUndecodable,
			"msgpack is malformed, truncated, too deeply nested, or has a number or time out of range")
	}
	if len(rest) > 0 {
		return Errorf(InvalidArgument, ReasonUndecodable, "%d trailing bytes after the msgpack value", len(rest))
	}
	return nil
}

type msgpackChecker struct {
	extensions bool   // extensions are allowed
	most       uint64 // elements of an array; 0: any number
}

// skipValue returns the bytes after the first value of data. ok is false if the value is incomplete or nests
// deeper than depth.
func (c msgpackChecker) skipValue(data []byte, depth int) (rest []byte, ok bool) {
	if len(data) == 0 || depth == 0 {
		return nil, false
	}
	code, data := data[0], data[1:]
	switch {
	case msgpcode.IsFixedNum(code), code == msgpcode.Nil, code == msgpcode.False, code == msgpcode.True:
		return data, true
	case msgpcode.IsFixedString(code):
		return skipBytes(data, uint64(code&msgpcode.FixedStrMask))
	case msgpcode.IsFixedArray(code):
		return c.skipValues(data, uint64(code&msgpcode.FixedArrayMask), depth)
	case msgpcode.IsFixedMap(code):
		return c.skipValues(data, 2*uint64(code&msgpcode.FixedMapMask), depth)
	}
	switch code {
	case msgpcode.Uint8, msgpcode.Int8:
		return skipBytes(data, 1)
	case msgpcode.Uint16, msgpcode.Int16:
		return skipBytes(data, 2)
	case msgpcode.Uint32, msgpcode.Int32:
		return skipBytes(data, 4)
	case msgpcode.Uint64, msgpcode.Int64:
		return skipBytes(data, 8)
	case msgpcode.Float, msgpcode.Double:
		return skipFloat(code, data)
	case msgpcode.FixExt1:
		return c.skipExt(data, 1)
	case msgpcode.FixExt2:
		return c.skipExt(data, 2)
	case msgpcode.FixExt4:
		return c.skipExt(data, 4)
	case msgpcode.FixExt8:
		return c.skipExt(data, 8)
	case msgpcode.FixExt16:
		return c.skipExt(data, 16)
	}
	n, data, ok := declaredLength(code, data)
	if !ok {
		return nil, false
	}
	switch code {
	case msgpcode.Str8, msgpcode.Str16, msgpcode.Str32, msgpcode.Bin8, msgpcode.Bin16, msgpcode.Bin32:
		return skipBytes(data, n)
	case msgpcode.Ext8, msgpcode.Ext16, msgpcode.Ext32:
		return c.skipExt(data, n)
	case msgpcode.Array16, msgpcode.Array32:
		if c.most > 0 && n > c.most {
			return nil, false
		}
		return c.skipValues(data, n, depth)
	default: // Map16, Map32
		return c.skipValues(data, 2*n, depth)
	}
}

// declaredLength reads the length that follows the code of a long form. ok is false for any other code.
func declaredLength(code byte, data []byte) (n uint64, rest []byte, ok bool) {
	switch code {
	case msgpcode.Str8, msgpcode.Bin8, msgpcode.Ext8:
		if len(data) >= 1 {
			return uint64(data[0]), data[1:], true
		}
	case msgpcode.Str16, msgpcode.Bin16, msgpcode.Ext16, msgpcode.Array16, msgpcode.Map16:
		if len(data) >= 2 {
			return uint64(binary.BigEndian.Uint16(data)), data[2:], true
		}
	case msgpcode.Str32, msgpcode.Bin32, msgpcode.Ext32, msgpcode.Array32, msgpcode.Map32:
		if len(data) >= 4 {
			return uint64(binary.BigEndian.Uint32(data)), data[4:], true
		}
	}
	return 0, nil, false
}

func skipBytes(data []byte, n uint64) (rest []byte, ok bool) {
	if n > uint64(len(data)) {
		return nil, false
	}
	return data[n:], true
}

func skipFloat(code byte, data []byte) (rest []byte, ok bool) {
	var v float64
	switch {
	case code == msgpcode.Float && len(data) >= 4:
		v, data = float64(math.Float32frombits(binary.BigEndian.Uint32(data))), data[4:]
	case code == msgpcode.Double && len(data) >= 8:
		v, data = math.Float64frombits(binary.BigEndian.Uint64(data)), data[8:]
	default:
		return nil, false
	}
	return data, !math.IsNaN(v) && !math.IsInf(v, 0)
}

// skipExt skips the type and the n bytes of an extension. Only the 12-byte form of a timestamp can be out of
// range.
func (c msgpackChecker) skipExt(data []byte, n uint64) (rest []byte, ok bool) {
	if !c.extensions {
		return nil, false
	}
	rest, ok = skipBytes(data, n+1)
	if ok && data[0] == timeExt && n == 12 {
		nanoseconds, seconds := binary.BigEndian.Uint32(data[1:]), int64(binary.BigEndian.Uint64(data[5:]))
		ok = nanoseconds < 1e9 && seconds >= minTime && seconds < maxTime
	}
	return rest, ok
}

func (c msgpackChecker) skipValues(data []byte, n uint64, depth int) (rest []byte, ok bool) {
	for range n {
		if data, ok = c.skipValue(data, depth-1); !ok {
			return nil, false
		}
	}
	return data, true
}
