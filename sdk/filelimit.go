package sdk

import (
	"io"

	"github.com/boxfleet/boxfleet/protocol"
)

// A sandbox may send without end, so a caller can limit how much it takes with [WithMaxBytes].

// checkMaxBytes refuses a negative limit.
func (s *settings) checkMaxBytes() error {
	if s.files.maxBytes < 0 {
		return protocol.Invalid("max_bytes", "must not be negative, got %d", int64(s.files.maxBytes))
	}
	return nil
}

func tooLarge(path string, most Bytes) error {
	return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge,
		"%s has more than the %d bytes that this call allows: allow more, or read a part", path, int64(most))
}

// boundedReader fails when its reader has more bytes than allowed.
type boundedReader struct {
	r          io.Reader
	path       string
	most, read Bytes
}

func (b *boundedReader) Read(p []byte) (int, error) {
	left := b.most - b.read
	if Bytes(len(p)) > left { // one more byte shows that there are too many
		p = p[:left+1]
	}
	n, err := b.r.Read(p)
	if b.read += Bytes(n); b.read > b.most {
		b.read = b.most
		return int(left), tooLarge(b.path, b.most)
	}
	return n, err
}

// boundedWriter fails when more bytes are written than allowed.
type boundedWriter struct {
	w             io.Writer
	path          string
	most, written Bytes
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if b.written += Bytes(len(p)); b.written > b.most {
		return 0, tooLarge(b.path, b.most)
	}
	return b.w.Write(p)
}
