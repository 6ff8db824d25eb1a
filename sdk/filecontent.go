package sdk

import (
	"errors"
	"io"
	"time"

	"github.com/boxfleet/boxfleet/stream"
)

// fileContent reads the content that a caller uploads, in a goroutine of its own. So a refusal ends the upload
// immediately, even while a Read of the caller's reader is blocked, for example because a person types at a terminal.
type fileContent struct {
	pieces chan piece
	free   chan []byte
	stop   chan struct{} // closed by end
	ended  chan struct{} // closed after the last Read has returned
}

// piece is the result of one Read.
type piece struct {
	data []byte
	err  error
}

const (
	contentPieces = 2 // one is read while the other one is sent
	// lastRead is how long a failed upload waits for a Read that is still running. A Read that does not block returns
	// within this time, so the caller may then use the reader again.
	lastRead = 100 * time.Millisecond
)

// readContent begins to read. The caller must call end.
func readContent(r io.Reader) *fileContent {
	c := &fileContent{pieces: make(chan piece), free: make(chan []byte, contentPieces), stop: make(chan struct{}),
		ended: make(chan struct{})}
	for range contentPieces {
		c.free <- make([]byte, copyBuffer)
	}
	go c.read(r)
	return c
}

func (c *fileContent) read(r io.Reader) {
	defer close(c.ended)
	for {
		var buf []byte
		select {
		case buf = <-c.free:
		case <-c.stop:
			return
		}
		n, err := r.Read(buf)
		select {
		case c.pieces <- piece{buf[:n], err}:
		case <-c.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// end ends the reading. If a Read does not return, its goroutine stays.
func (c *fileContent) end() {
	close(c.stop)
	late := time.NewTimer(lastRead)
	defer late.Stop()
	select {
	case <-c.ended:
	case <-late.C:
	}
}

// sendTo sends everything through w to a stream, and then ends its side of the stream. own is the error of the caller's
// reader; err is the error with which the stream ended. sent may be nil; it is called with the number of bytes sent so
// far.
func (c *fileContent) sendTo(conn *stream.Conn, w flushing, sent func(total int64)) (own, err error) {
	for total := int64(0); ; {
		select {
		case p := <-c.pieces:
			if len(p.data) > 0 {
				if _, err := w.Write(p.data); err != nil {
					return nil, err
				}
				if total += int64(len(p.data)); sent != nil {
					sent(total)
				}
			}
			if errors.Is(p.err, io.EOF) {
				if err := w.Flush(); err != nil {
					return nil, err
				}
				return nil, conn.CloseWrite()
			}
			if p.err != nil {
				return p.err, nil
			}
			c.free <- p.data[:cap(p.data)]
		case <-conn.Done():
			if err := conn.Err(); err != nil {
				return nil, err
			}
			return nil, errNoAnswer
		}
	}
}
