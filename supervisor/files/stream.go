package files

import (
	"errors"
	"io"

	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// input is the stream of an upload: the packets of data until the packet that ends them.
type input struct {
	link   *packet.Conn
	buf    []byte
	ended  bool
	broken error // the connection ended before the stream did
}

var errNotComplete = errors.New("the worker ended the stream before it was complete")

// Read implements [io.Reader]. It returns io.EOF only after the end of the stream, and never for a broken connection.
func (in *input) Read(p []byte) (int, error) {
	for len(in.buf) == 0 {
		switch {
		case in.broken != nil:
			return 0, in.broken
		case in.ended:
			return 0, io.EOF
		}
		in.fill()
	}
	n := copy(p, in.buf)
	in.buf = in.buf[n:]
	return n, nil
}

// fill receives the next packet. Its body stays valid until the next call.
func (in *input) fill() {
	kind, body, file, err := in.link.Receive()
	packet.Discard(file)
	switch {
	case err != nil:
		in.broken = errNotComplete
	case kind == packet.Data:
		in.buf = body
	case kind == packet.End:
		in.ended = true
	default:
		in.broken = errors.New("a call came in the middle of a stream")
	}
}

// drain drops the rest of the stream.
func (in *input) drain() error {
	for !in.ended && in.broken == nil {
		in.fill()
	}
	return in.broken
}

// output sends bytes as packets of data.
type output struct {
	link *packet.Conn
	buf  []byte
	n    int
}

func newOutput(link *packet.Conn) *output { return &output{link: link, buf: packet.NewData()} }

// Write implements [io.Writer].
func (o *output) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n := copy(o.buf[packet.DataAt+o.n:], p)
		o.n += n
		written += n
		p = p[n:]
		if o.n == packet.MaxBody {
			if err := o.flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

func (o *output) flush() error {
	if o.n == 0 {
		return nil
	}
	err := o.link.SendData(o.buf, o.n)
	o.n = 0
	return err
}
