package files

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

var errUnexpected = errors.New("the reply does not belong to the operation")

// mayChange returns an error if the worker must not change the sandbox now.
func (s *Session) mayChange() error {
	if s.config.Lease == nil {
		return nil
	}
	return s.config.Lease()
}

// simple carries out an operation whose result is in the reply alone.
func (s *Session) simple(ctx context.Context, changes bool, c control.FileCall) (*control.FileReply, error) {
	g, err := givingOf(s, &c, nil)
	if err != nil {
		return nil, err
	}
	h, err := s.begin(ctx, changes, c)
	if err != nil {
		return nil, err
	}
	reply, file, err := h.replyGiving(g)
	if err == nil && file >= 0 {
		packet.Discard(file)
		err = errUnexpected
	}
	return h.finish(ctx, reply, err)
}

// begin sends a call.
func (s *Session) begin(ctx context.Context, changes bool, c control.FileCall) (*helper, error) {
	h, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	if changes {
		if err := s.mayChange(); err != nil {
			h.done(true)
			return nil, err
		}
	}
	c.Gives = s.config.Container != nil
	if err := h.link.SendMessage(&c, -1); err != nil {
		h.done(false)
		return nil, s.broken(ctx, err)
	}
	return h, nil
}

// finish gives the helper back after the operation's last reply. err is the error of the connection.
func (h *helper) finish(ctx context.Context, reply *control.FileReply, err error) (*control.FileReply, error) {
	if err != nil {
		h.done(false)
		if refused := (*refusal)(nil); errors.As(err, &refused) {
			return nil, refused.error
		}
		return nil, h.s.broken(ctx, err)
	}
	h.done(true)
	if reply.Error != nil {
		return nil, clean(reply.Error)
	}
	return reply, nil
}

// reply receives a reply. file is -1, or a descriptor.
func (h *helper) reply() (reply *control.FileReply, file int, err error) {
	parts := packet.Collector{Limit: control.MaxReply}
	for {
		kind, body, file, err := h.link.Receive()
		if err != nil {
			return nil, -1, err
		}
		if kind != packet.Message && (kind != packet.Part || file >= 0) {
			packet.Discard(file)
			return nil, -1, errUnexpected
		}
		reply := &control.FileReply{}
		complete, err := parts.Add(kind, body, reply)
		if err != nil {
			packet.Discard(file)
			return nil, -1, err
		}
		if complete {
			return reply, file, nil
		}
	}
}

// send sends the bytes of r as packets of data, and then the packet that ends them. The result from is an error of r or
// of the call; conn is an error of the connection. sent counts the bytes.
func (h *helper) send(ctx context.Context, r io.Reader, sent *atomic.Int64) (from, conn error) {
	buf := packet.NewData()
	for {
		n, err := io.ReadFull(r, buf[packet.DataAt:])
		if n > 0 {
			sent.Add(int64(n)) // before the helper can do anything with them
			if err := h.link.SendData(buf, n); err != nil {
				return nil, err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
			if err := h.s.mayChange(); err != nil {
				return err, nil
			}
			return nil, h.link.SendEnd()
		case err != nil:
			return err, nil
		case ctx.Err() != nil:
			return ended(ctx), nil
		}
	}
}

// upload carries out an operation that takes a stream. The helper may reply with an error before the stream has ended;
// it then drops the rest. If r can be interrupted, the reply does not wait for a Read of r.
func (s *Session) upload(ctx context.Context, c control.FileCall, r io.Reader) (*control.FileReply, error) {
	sent := &atomic.Int64{}
	g, err := givingOf(s, &c, sent)
	if err != nil {
		return nil, err
	}
	h, err := s.begin(ctx, true, c)
	if err != nil {
		return nil, err
	}
	type answer struct {
		reply *control.FileReply
		err   error
	}
	answered := make(chan answer, 1)
	early := make(chan struct{})
	go func() {
		reply, file, err := h.replyGiving(g)
		if err == nil && file >= 0 {
			packet.Discard(file)
			err = errUnexpected
		}
		answered <- answer{reply, err}
		close(early)
		if waiting, ok := r.(interruptible); ok {
			_ = waiting.SetReadDeadline(time.Unix(1, 0)) // without it, the answer would wait for the reader's next bytes
		}
	}()
	from, sendErr := h.send(ctx, &stopping{r: r, stop: early}, sent)
	if from != nil || sendErr != nil {
		h.link.Close() // the helper drops the incomplete upload, and the receiver returns
	}
	a := <-answered
	switch {
	case a.err == nil && a.reply.Error != nil && from == nil:
		return h.finish(ctx, a.reply, sendErr)
	case from != nil:
		h.done(false)
		if ctx.Err() != nil {
			return nil, ended(ctx)
		}
		return nil, from
	case sendErr != nil:
		return h.finish(ctx, nil, sendErr)
	}
	return h.finish(ctx, a.reply, a.err)
}

// interruptible is a reader whose Read can be ended from outside.
type interruptible interface {
	SetReadDeadline(at time.Time) error
}

// stopping is a reader that ends once the helper has answered.
type stopping struct {
	r    io.Reader
	stop <-chan struct{}
}

func (s *stopping) Read(p []byte) (int, error) {
	if s.stopped() {
		return 0, io.EOF
	}
	n, err := s.r.Read(p)
	if err != nil && s.stopped() {
		return n, io.EOF
	}
	return n, err
}

func (s *stopping) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

const (
	maxMessage = 8 << 10 // bytes of an error's text from a helper
	maxReason  = 64
)

// clean bounds an error from a helper, whose fields go into logs and answers.
func clean(e *protocol.Error) *protocol.Error {
	out := *e
	out.Message = protocol.Redacted(cut(e.Message, maxMessage))
	out.Reason, out.Field = cut(e.Reason, maxReason), cut(e.Field, maxReason)
	switch e.Code {
	case protocol.InvalidArgument, protocol.NotFound, protocol.AlreadyExists, protocol.FailedPrecondition,
		protocol.ResourceExhausted, protocol.PermissionDenied, protocol.Unavailable, protocol.OutOfRange:
	default:
		out.Code = protocol.Internal
	}
	return &out
}

func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	if !utf8.ValidString(s) {
		s = string([]rune(s))
	}
	return s
}
