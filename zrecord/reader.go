package zrecord

import (
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/boxfleet/boxfleet/protocol"
)

// Decoder expands the bodies of compressed records. One goroutine uses it.
type Decoder struct {
	zstd *zstd.Decoder // nil: nothing was expanded yet
	out  []byte
}

// Decode returns the bytes of a record, which are valid until the next call. Error: unavailable with reason undecodable
// if the body is no valid zstd frame, or expands to more than one block.
func (d *Decoder) Decode(body []byte) ([]byte, error) {
	if d.zstd == nil {
		// NewReader fails only for options out of their range.
		d.zstd, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(Block),
			zstd.WithDecoderMaxWindow(Block), zstd.WithDecoderLowmem(true))
		d.out = make([]byte, 0, Block)
	}
	out, err := d.zstd.DecodeAll(body, d.out[:0])
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonUndecodable,
			"a compressed record is not valid: %v", err)
	}
	return out, nil
}

// Close frees the memory of the decoder.
func (d *Decoder) Close() {
	if d.zstd != nil {
		d.zstd.Close()
		d.zstd = nil
	}
}

// Reader reads the tar stream in the records of a stream. One goroutine uses it.
type Reader struct {
	records *protocol.FileRecords
	decoder Decoder
	left    []byte
}

// NewReader returns a reader. The caller must close it.
func NewReader(from io.Reader) *Reader { return &Reader{records: protocol.NewFileRecords(from)} }

// Read implements [io.Reader]. io.EOF means that the stream ended after a complete record. Errors, in addition to those
// of the stream: unavailable with reason undecodable.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		kind, body, err := r.records.Next()
		if err != nil {
			return 0, err
		}
		switch kind {
		case protocol.FileRecordData:
			r.left = body
		case protocol.FileRecordZstd:
			if r.left, err = r.decoder.Decode(body); err != nil {
				return 0, err
			}
		default:
			return 0, protocol.Errorf(protocol.Unavailable, protocol.ReasonUndecodable,
				"a record of kind %q is in the middle of a tar stream", kind)
		}
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// Close frees the memory of the reader.
func (r *Reader) Close() { r.decoder.Close() }
