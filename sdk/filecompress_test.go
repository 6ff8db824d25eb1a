package sdk

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// olderRequest is a request as a worker knows it that cannot compress.
type olderRequest struct {
	Pack *protocol.FilePack `json:"pack,omitempty"`
}

// A worker that cannot compress refuses the request before it does anything, so the client may ask again.
func TestAnOlderWorkerIsAskedWithoutCompression(t *testing.T) {
	ask := func(when protocol.FileCompression) error {
		r := protocol.FileRequest{Pack: &protocol.FilePack{Path: "/"}, Compress: when}
		return protocol.DecodeFileMessage(protocol.Encode(&r), &olderRequest{}, true)
	}
	if e := protocol.AsError(ask(protocol.CompressAuto)); e.Reason != protocol.ReasonUnknownField {
		t.Errorf("an older worker answers %v", e)
	}
	again, err := forOlder(protocol.CompressAuto)
	if err != nil || ask(again) != nil {
		t.Errorf("the second request says %q, %v, and gets %v", again, err, ask(again))
	}
	if _, err := forOlder(protocol.CompressAlways); protocol.AsError(err).Reason != protocol.ReasonUnsupported {
		t.Errorf("compression that was asked for: %v", err)
	}
}
