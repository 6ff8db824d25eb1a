package streams

import (
	"context"
	"errors"
	"io"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
	"github.com/boxfleet/boxfleet/worker/files"
)

// file carries out one operation on the files of a container. An operation whose answer is short is answered at once.
// Any other operation gets a stream.
func file(ctx context.Context, c *Call) (*jetstream.StreamAnswer, error) {
	r, err := decodeFile(c.Open.Request)
	if err != nil {
		return nil, err
	}
	if r.Long > 0 {
		return &jetstream.StreamAnswer{Serve: func(ctx context.Context, conn *stream.Conn) error {
			return serveLong(ctx, c, r.Long, conn)
		}}, nil
	}
	f := &fileCall{Call: c, r: r}
	switch {
	case r.Takes(), r.Pack != nil, r.Watch != nil:
		// A client may wait for its turn for longer than an opening may take. So find the container now, and wait for the
		// turn when the stream is open.
		if _, err := c.Container(ctx, r.Service); err != nil {
			return nil, err
		}
		c.aim(r)
		return &jetstream.StreamAnswer{Serve: f.carry}, nil
	case r.Read != nil:
		return f.read(ctx)
	}
	answer, err := f.simple(ctx)
	if err != nil {
		return nil, err
	}
	encoded := protocol.Encode(answer)
	if len(encoded) <= protocol.MaxFileInline {
		return &jetstream.StreamAnswer{Result: encoded}, nil
	}
	return &jetstream.StreamAnswer{Serve: func(_ context.Context, conn *stream.Conn) error {
		return sendRecord(conn, protocol.FileRecordAnswer, encoded)
	}}, nil
}

func decodeFile(data []byte) (*protocol.FileRequest, error) {
	r := &protocol.FileRequest{}
	if err := protocol.DecodeFileMessage(data, r, true); err != nil {
		return nil, err
	}
	return r, r.Validate()
}

// serveLong carries out an operation whose request arrives at the beginning of the stream.
func serveLong(ctx context.Context, c *Call, size int, conn *stream.Conn) error {
	data := make([]byte, size)
	if _, err := io.ReadFull(conn, data); err != nil {
		return streamError(err)
	}
	r, err := decodeFile(data)
	if err != nil {
		return err
	}
	if r.Long > 0 || r.Read != nil {
		return protocol.Invalid("operation", "a long request must not be a read, and must not be long again")
	}
	f := &fileCall{Call: c, r: r}
	if r.Takes() || r.Pack != nil || r.Watch != nil {
		return f.carry(ctx, conn)
	}
	answer, err := f.simple(ctx)
	if err != nil {
		return err
	}
	return sendAnswer(conn, answer)
}

// streamError is the error of a stream that ended too early.
func streamError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return protocol.Invalid("long", "the stream ended before the request was complete")
	}
	return err
}

// fileCall is one operation on the files of a container.
type fileCall struct {
	*Call
	r *protocol.FileRequest
}

// simple carries out an operation that needs no stream. It shares a few helpers with others of the same user.
func (f *fileCall) simple(ctx context.Context) (*protocol.FileAnswer, error) {
	session, err := f.Files(ctx, f.r.Service, f.r.User, "")
	if err != nil {
		return nil, err
	}
	a := &protocol.FileAnswer{}
	return a, f.change(f.r, func() error {
		f.Sent(len(f.r.Content))
		if f.r.Edit != nil {
			f.Sent(len(f.r.Edit.New))
		}
		return f.withRoom(ctx, f.container, func() error { return f.answer(ctx, session, a) })
	})
}

// answer carries out the operation and puts its result into the answer.
func (f *fileCall) answer(ctx context.Context, session *files.Session, a *protocol.FileAnswer) (err error) {
	switch r := f.r; {
	case r.Write != nil:
		a.File, err = session.Write(ctx, *r.Write, &whole{left: r.Content})
	case r.Stat != nil:
		a.Stats, err = session.Stat(ctx, *r.Stat)
	case r.List != nil:
		a.Page, err = session.List(ctx, *r.List)
	case r.Mkdir != nil:
		a.File, err = session.Mkdir(ctx, *r.Mkdir)
	case r.Move != nil:
		a.File, err = session.Move(ctx, *r.Move)
	case r.Copy != nil:
		a.Count, err = session.Copy(ctx, *r.Copy)
	case r.Remove != nil:
		a.Count, err = session.Remove(ctx, *r.Remove)
	case r.Glob != nil:
		a.Page, err = session.Glob(ctx, *r.Glob)
	case r.Grep != nil:
		a.Matches, err = session.Grep(ctx, *r.Grep)
	case r.Edit != nil:
		a.Edited, err = session.Edit(ctx, *r.Edit)
	case r.Changes != nil:
		a.Page, err = session.Changes(ctx, *r.Changes)
	}
	return err
}

// whole reads the content of a short write.
type whole struct{ left []byte }

func (w *whole) Read(p []byte) (int, error) {
	if len(w.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, w.left)
	w.left = w.left[n:]
	return n, nil
}

// read opens a file. The bytes are in the answer if they are few and the client asked for that.
func (f *fileCall) read(ctx context.Context) (*jetstream.StreamAnswer, error) {
	session, err := f.Files(ctx, f.r.Service, f.r.User, "")
	if err != nil {
		return nil, err
	}
	// The reader lives longer than the opening.
	reading, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.AtEnd(cancel)
	opened := context.AfterFunc(ctx, cancel)
	var reader *files.Reader
	err = f.withRoom(ctx, f.container, func() (err error) {
		reader, err = session.Read(reading, *f.r.Read)
		return err
	})
	if err != nil {
		opened()
		return nil, err
	}
	f.AtEnd(func() { reader.Close() })
	a := &protocol.FileAnswer{File: &reader.Info}
	if f.r.Inline > 0 { // a process in the container may feed the reader, or never do so
		a.Content, err = io.ReadAll(io.LimitReader(reader, int64(f.r.Inline)+1))
	}
	if !opened() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if f.r.Inline > 0 && len(a.Content) <= f.r.Inline {
		a.Whole = true
		return &jetstream.StreamAnswer{Result: protocol.Encode(a)}, nil
	}
	head := a.Content
	a.Content = nil
	return &jetstream.StreamAnswer{Result: protocol.Encode(a), Serve: func(ctx context.Context, conn *stream.Conn) error {
		stop := context.AfterFunc(ctx, func() { cancel() })
		defer stop()
		if _, err := conn.Write(head); err != nil {
			return err
		}
		return copyTo(conn, reader)
	}}, nil
}

// copyTo copies a reader to the stream. It returns the first error of the reader or of the stream.
func copyTo(conn *stream.Conn, from *files.Reader) error {
	_, err := io.CopyBuffer(onlyWriter{conn}, onlyReader{from}, make([]byte, fileBuffer))
	return err
}

// fileBuffer is how many bytes of a file are read at once.
const fileBuffer = 256 << 10

// onlyWriter and onlyReader hide the other methods of a stream, so that io.CopyBuffer uses the given buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

func sendAnswer(conn *stream.Conn, a *protocol.FileAnswer) error {
	return sendRecord(conn, protocol.FileRecordAnswer, protocol.Encode(a))
}

// sendRecord sends one record.
func sendRecord(conn *stream.Conn, kind byte, body []byte) error {
	if len(body) > protocol.MaxFileRecord {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge,
			"the answer has %d bytes, at most %d are allowed: ask for less", len(body), protocol.MaxFileRecord)
	}
	_, err := conn.Write(protocol.AppendFileRecord(make([]byte, 0, len(body)+protocol.FileRecordHeader), kind, body))
	return err
}
