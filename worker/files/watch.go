package files

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// Watch calls report with the changes below a directory, until ctx ends or report returns an error, which Watch then
// returns. The first event is [protocol.FileWatching]. While report runs, no further events are received; if many wait,
// the kernel drops some, and an event of the kind [protocol.FileRescan] says so. A watch has a helper of its own.
func (s *Session) Watch(ctx context.Context, r protocol.FileWatch, report func([]protocol.FileEvent) error) error {
	if err := r.Validate(); err != nil {
		return err
	}
	h, err := s.begin(ctx, false, control.FileCall{Watch: &r})
	if err != nil {
		return err
	}
	for {
		reply, file, err := h.reply()
		if err == nil && (file >= 0 || reply.Error == nil && reply.Events == nil) {
			packet.Discard(file)
			err = errUnexpected
		}
		if err != nil || reply.Error != nil {
			_, err = h.finish(ctx, reply, err)
			return err
		}
		if err := report(reply.Events.Events); err != nil {
			h.done(false)
			return err
		}
	}
}
