package control

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/boxfleet/boxfleet/protocol"
)

// Bounds of one frame, header not counted. A reader refuses a larger one before it reads it.
const (
	MaxNotice  = 1 << 20 // towards the worker
	MaxCommand = 2 << 20 // towards the supervisor
)

const headerSize = 4

// Append encodes v as one frame at the end of buf.
func Append(buf []byte, v any) []byte {
	body := protocol.Encode(v)
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(body)))
	return append(buf, body...)
}

// Read reads one frame of at most limit bytes into v. scratch is reused when it is large enough;
// the grown buffer is returned. io.EOF means that the peer closed between two frames.
func Read(r io.Reader, limit int, scratch []byte, v any) ([]byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return scratch, err
	}
	size := int(binary.BigEndian.Uint32(header[:]))
	if size > limit {
		return scratch, fmt.Errorf("control: a frame of %d bytes, at most %d are allowed", size, limit)
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
