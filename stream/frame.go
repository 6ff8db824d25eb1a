package stream

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"

	"github.com/boxfleet/boxfleet/protocol"
)

// Types of frames: the first byte of each. Numbers are big-endian and have 8 bytes. docs/wire.md has the layouts.
const (
	typeData   byte = 1 // offset, then at least one byte of data
	typeWindow byte = 2 // received, limit
	typeEOF    byte = 3 // offset: how many bytes were sent in all
	typeReset  byte = 4 // code, reason, field and message, with a NUL byte between them
	typePing   byte = 5 // received, limit, mark; asks for a pong with the same mark
	typePong   byte = 6 // received, limit, mark
	typeAgain  byte = 7 // received, limit; asks to send again everything from received on
)

// Sizes in bytes.
const (
	wordSize    = 8
	dataHeader  = 1 + wordSize
	windowSize  = 1 + 2*wordSize
	eofSize     = 1 + wordSize
	pingSize    = 1 + 3*wordSize
	resetMost   = 1 << 10                 // largest reset that is taken or sent
	Overhead    = dataHeader              // bytes of a frame in addition to its data
	offsetsMost = uint64(1) << 62         // largest offset; sums of offsets do not overflow
	resetLeast  = protocol.MinStreamFrame // largest reset that every other end takes
)

// state is in every frame that acknowledges. The frame's sender has received this many bytes, and the other end may
// send bytes up to limit. An eof counts as one received byte.
type state struct{ received, limit uint64 }

func word(frame []byte, n int) uint64 { return binary.BigEndian.Uint64(frame[1+n*wordSize:]) }

// putDataHeader writes the header of a data frame.
func putDataHeader(frame []byte, offset uint64) {
	frame[0] = typeData
	binary.BigEndian.PutUint64(frame[1:], offset)
}

func words(kind byte, words ...uint64) []byte {
	frame := append(make([]byte, 0, pingSize), kind)
	for _, w := range words {
		frame = binary.BigEndian.AppendUint64(frame, w)
	}
	return frame
}

// resetFrame encodes an error. It shortens the texts so that every other end takes the frame.
func resetFrame(e *protocol.Error) []byte {
	frame := []byte{typeReset}
	parts := []string{string(e.Code), e.Reason, e.Field, e.Message}
	room := resetMost - len(parts)
	for i, p := range parts {
		if i > 0 {
			frame = append(frame, 0)
		}
		p = strings.ReplaceAll(p, "\x00", "")
		if len(p) > room {
			p = cutText(p, room)
		}
		room -= len(p)
		frame = append(frame, p...)
	}
	return frame
}

// cutText returns the longest beginning of a text that has at most n bytes and ends with a whole character.
func cutText(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// parseReset returns the error in a reset. An unknown code becomes internal.
func parseReset(frame []byte) (*protocol.Error, bool) {
	parts := strings.SplitN(string(frame[1:]), "\x00", 4)
	if len(frame) > resetMost || len(parts) != 4 {
		return nil, false
	}
	for i := range parts {
		parts[i] = strings.ToValidUTF8(parts[i], "�")
	}
	e := protocol.Errorf(protocol.Code(parts[0]), parts[1], "%s", parts[3])
	e.Field = parts[2]
	if !known[e.Code] {
		e.Code = protocol.Internal
	}
	return e, true
}

// known are the codes of errors.
var known = map[protocol.Code]bool{
	protocol.InvalidArgument: true, protocol.NotFound: true, protocol.AlreadyExists: true,
	protocol.FailedPrecondition: true, protocol.ResourceExhausted: true, protocol.Unavailable: true,
	protocol.DeadlineExceeded: true, protocol.Cancelled: true, protocol.PermissionDenied: true,
	protocol.OutOfRange: true, protocol.Internal: true,
}
