package files

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// Reader reads the bytes of a [protocol.FileRead]. One goroutine at a time may call Read.
type Reader struct {
	// Info describes the file as it was when it was opened. If the file changes while it is read, Read returns the new
	// bytes.
	Info protocol.FileInfo

	from io.Reader
	once sync.Once
	end  func()
}

// Read implements [io.Reader]. Errors are of the type [protocol.Error].
func (r *Reader) Read(p []byte) (int, error) { return r.from.Read(p) }

// Close ends the reading. It may be called during a Read, and several times.
func (r *Reader) Close() error {
	r.once.Do(r.end)
	return nil
}

// Read opens a part of a regular file. The caller must close the reader. The bytes of most files come from a
// descriptor, which needs no helper any more. The bytes of others, such as those in /proc, come from the helper, which
// belongs to the reader until it is closed, or ctx ends.
func (s *Session) Read(ctx context.Context, r protocol.FileRead) (*Reader, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	h, err := s.begin(ctx, false, control.FileCall{Read: &r})
	if err != nil {
		return nil, err
	}
	reply, file, err := h.reply()
	if err == nil {
		err = checkRead(reply, file)
	}
	if err != nil || reply.Error != nil {
		packet.Discard(file)
		_, err = h.finish(ctx, reply, err)
		return nil, err
	}
	if reply.Stream {
		f := &fed{ctx: ctx, h: h, left: limitOf(r.Length)}
		return &Reader{Info: *reply.File, from: f, end: f.close}, nil
	}
	h.done(true)
	content := os.NewFile(uintptr(file), "file of a sandbox")
	section := io.NewSectionReader(content, r.Offset, limitOf(r.Length))
	return &Reader{Info: *reply.File, from: &own{ctx: ctx, r: section}, end: func() { content.Close() }}, nil
}

func limitOf(length int64) int64 {
	if length == 0 {
		return 1<<63 - 1
	}
	return length
}

// checkRead checks the reply to a Read, and its descriptor.
func checkRead(reply *control.FileReply, file int) error {
	wants := reply.Error == nil && !reply.Stream
	switch {
	case wants != (file >= 0), reply.Error == nil && reply.File == nil:
		return errUnexpected
	case !wants:
		return nil
	}
	var stat unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Fstat(file, &stat), unix.Fstatfs(file, &system)); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || !control.ReadableThere(int64(system.Type)) {
		return errors.New("the descriptor is not a regular file that this process may read")
	}
	return nil
}

// own reads a descriptor that the helper opened.
type own struct {
	ctx context.Context
	r   io.Reader
}

func (o *own) Read(p []byte) (int, error) {
	if o.ctx.Err() != nil {
		return 0, ended(o.ctx)
	}
	n, err := o.r.Read(p)
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return n, err
	case errors.Is(err, os.ErrClosed):
		return n, errClosed
	}
	return n, protocol.Errorf(protocol.Unavailable, protocol.ReasonInterrupted, "read a file of the sandbox: %v",
		errors.Unwrap(err))
}

// fed reads the packets of data that a helper sends.
type fed struct {
	ctx  context.Context
	h    *helper
	left int64 // bytes that are still accepted

	mu  sync.Mutex // held by Read
	buf []byte
	err error // set when the helper was given back
}

// Read implements [io.Reader].
func (f *fed) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.buf) == 0 && f.err == nil && len(p) > 0 {
		if reusable, err := f.fill(); err != nil {
			f.h.done(reusable)
			f.err = err
		}
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	if n == 0 {
		return 0, f.err
	}
	return n, nil
}

// fill receives the next packet. Its body stays valid, because nothing else receives. The error is io.EOF at the end.
// reusable says that the helper waits for its next operation.
func (f *fed) fill() (reusable bool, err error) {
	kind, body, file, err := f.h.link.Receive()
	if err != nil {
		return false, f.h.s.broken(f.ctx, err)
	}
	packet.Discard(file)
	var reply control.FileReply
	parts := packet.Collector{Limit: packet.MaxBody}
	switch {
	case file < 0 && kind == packet.Data && int64(len(body)) <= f.left:
		f.left -= int64(len(body))
		f.buf = body
		return true, nil
	case file >= 0 || kind != packet.Message:
		return false, f.h.s.broken(f.ctx, errUnexpected)
	}
	if _, err := parts.Add(kind, body, &reply); err != nil {
		return false, f.h.s.broken(f.ctx, err)
	}
	if reply.Error != nil {
		return true, clean(reply.Error)
	}
	return true, io.EOF
}

// close ends the reading, also while a Read waits for the helper.
func (f *fed) close() {
	if !f.mu.TryLock() {
		f.h.link.Close()
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	if f.err == nil {
		f.h.done(false)
		f.err, f.buf = errClosed, nil
	}
}
