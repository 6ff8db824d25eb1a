package zrecord

import (
	"io"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// SlowLink is the rate of a link, in bytes per second, below which a [Writer] compresses. A faster link carries the
	// bytes in less time than their compression takes.
	SlowLink = 40 << 20

	// Block is how many bytes of a tar stream one record has at most.
	Block = 256 << 10

	measured  = 4 << 20 // a rate is known after this many bytes; half of the earlier measurement is then forgotten
	tooLittle = 16      // a block is sent plain if compression saves less than 1/tooLittle of it
	rest      = 16      // after such a block, this many blocks are sent without trying to compress them
)

// Writer sends a tar stream as records. One goroutine uses it. The caller must call Flush at the end.
type Writer struct {
	to     io.Writer
	always bool
	block  []byte // bytes that are not sent
	record []byte
	zstd   *zstd.Encoder // nil: nothing was compressed yet
	link   rate
	pause  int              // number of further blocks to send without trying to compress them
	now    func() time.Time // the time by which the link is measured
}

// NewWriter returns a writer that sends records to a stream. mode is not [protocol.CompressNever].
func NewWriter(to io.Writer, mode protocol.FileCompression) *Writer {
	return &Writer{to: to, always: mode == protocol.CompressAlways, block: make([]byte, 0, Block), now: time.Now}
}

// Write implements [io.Writer]. Errors are those of the stream.
func (w *Writer) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n := min(len(p), Block-len(w.block))
		w.block = append(w.block, p[:n]...)
		p = p[n:]
		if len(w.block) == Block {
			if err := w.Flush(); err != nil {
				return written, err
			}
		}
		written += n
	}
	return written, nil
}

// Flush sends the bytes that were not sent yet.
func (w *Writer) Flush() error {
	if len(w.block) == 0 {
		return nil
	}
	kind, body := byte(protocol.FileRecordData), w.block
	if w.compresses() {
		if small, ok := w.compressed(); ok {
			kind, body = protocol.FileRecordZstd, small
		}
	}
	w.record = protocol.AppendFileRecord(w.record[:0], kind, body)
	w.block = w.block[:0]
	began := w.now()
	_, err := w.to.Write(w.record)
	w.link.add(len(w.record), w.now().Sub(began))
	return err
}

// compresses reports whether the next block is compressed.
func (w *Writer) compresses() bool {
	if w.pause > 0 {
		w.pause--
		return false
	}
	return w.always || w.link.isSlow()
}

// compressed returns the compressed block. ok is false if compression hardly makes the block smaller.
func (w *Writer) compressed() (small []byte, ok bool) {
	if w.zstd == nil {
		// NewWriter fails only for options out of their range.
		w.zstd, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(Block), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	}
	small = w.zstd.EncodeAll(w.block, nil)
	if len(small) > len(w.block)-len(w.block)/tooLittle {
		w.pause = rest
		return nil, false
	}
	return small, true
}

// rate measures how fast a link takes bytes.
type rate struct {
	bytes int64
	took  time.Duration
	slow  bool
	known int64 // bytes since the rate was last computed
}

func (r *rate) add(n int, took time.Duration) {
	r.bytes += int64(n)
	r.took += took
	if r.known += int64(n); r.known < measured {
		return
	}
	r.known = 0
	r.slow = float64(r.bytes) < SlowLink*r.took.Seconds()
	r.bytes, r.took = r.bytes/2, r.took/2
}

func (r *rate) isSlow() bool { return r.slow }
