package files

import (
	"context"
	"io"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// Pack writes a directory or a file to w as a tar stream. Its names are relative to the directory, which is the entry
// "./"; a single file has its own name. If Pack returns an error, the stream is not complete. The stream comes from the
// container, so its reader must not trust it.
func (s *Session) Pack(ctx context.Context, r protocol.FilePack, w io.Writer) (*protocol.FileCount, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	h, err := s.begin(ctx, false, control.FileCall{Pack: &r})
	if err != nil {
		return nil, err
	}
	parts := packet.Collector{Limit: control.MaxReply}
	for {
		kind, body, file, err := h.link.Receive()
		switch {
		case err != nil:
		case file >= 0:
			packet.Discard(file)
			err = errUnexpected
		case kind == packet.Data:
			if _, err := w.Write(body); err != nil {
				h.done(false)
				return nil, err
			}
			continue
		case kind == packet.Message, kind == packet.Part:
			reply := &control.FileReply{}
			var complete bool
			if complete, err = parts.Add(kind, body, reply); err == nil && !complete {
				continue
			}
			reply, err = h.finish(ctx, reply, err)
			return countOf(ctx, s, reply, err)
		default:
			err = errUnexpected
		}
		_, err = h.finish(ctx, nil, err)
		return nil, err
	}
}
