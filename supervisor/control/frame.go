package control

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/boxfleet/boxfleet/protocol"
)

// Size limits of one frame, without its header. A reader refuses a larger frame before reading it.
const (
	MaxNotice  = 1 << 20 // frames to the worker
	MaxCommand = 2 << 20 // frames to the supervisor

	// MaxSecretsCommand is the limit of a frame to a supervisor with [Hello.TakesSecrets]. A command may have
	// protocol.MaxSecretUses values of protocol.MaxSecretValue bytes.
	MaxSecretsCommand = MaxCommand + protocol.MaxSecretUses*protocol.MaxSecretValue
)

const headerSize = 4

// Append appends v to buf as one frame.
func Append(buf []byte, v any) []byte {
	body := protocol.Encode(v)
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(body)))
	return append(buf, body...)
}

// Read reads one frame of at most limit bytes into v. It uses scratch as its buffer if scratch is large enough, and
// returns the buffer that it used. io.EOF means that the peer closed the connection between two frames.
func Read(r io.Reader, limit int, scratch []byte, v any) ([]byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return scratch, err
	}
	size := int(binary.BigEndian.Uint32(header[:]))
	if size > limit {
		return scratch, fmt.Errorf("control: the peer sent a frame of %d bytes, at most %d are allowed", size, limit)
	}
	if cap(scratch) < size {
		scratch = make([]byte, size)
	}
	body := scratch[:size]
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return scratch, err
	}
	return scratch, protocol.Decode(body, v)
}
