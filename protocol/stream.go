package protocol

import (
	"regexp"
	"time"
)

// Sizes of streams in bytes. The size of a frame is that of its data, without the frame's header. A window is how much
// one end may send that the other end's program has not read yet.
const (
	StreamFrame      = 64 << 10  // largest frame, by default
	StreamBulkFrame  = 256 << 10 // largest frame of a bulk stream
	MinStreamFrame   = 128       // no end may announce a smaller largest frame
	MaxStreamFrame   = 1 << 20   // no end may announce a larger largest frame
	StreamWindow     = 256 << 10 // window of each end, by default
	MinStreamWindow  = 4 << 10   // no end may announce a smaller window
	MaxStreamWindow  = 4 << 20   // no end may announce a larger window; the window of a bulk stream grows to this
	MaxStreamRequest = 512 << 10 // largest [StreamOpen.Request] and [StreamReply.Result]
)

// Limits of the time that a client waits for the answer to a [StreamOpen].
const (
	MinStreamTimeout = time.Millisecond
	MaxStreamTimeout = 5 * time.Minute
)

// StreamKindProbe is the kind of a [StreamOpen] that opens nothing: it asks whether the worker has the stream with the
// [StreamOpen.ID]. [StreamReply.Stream] is the answer. A client asks when a stream's worker is silent.
const StreamKindProbe = "probe"

// StreamOpen asks a worker for an operation inside a sandbox. If the operation has bytes in flight, the answer opens a
// stream. The subject of the message names the worker, the tenant, the user and the sandbox: see [StreamOpenSubject].
type StreamOpen struct {
	Version int `json:"v"`

	// ID names the stream in the subjects of its frames. The client chooses it at random, with at least 128 bits, and
	// subscribes to [StreamDownSubject] before it asks. 22 to 64 characters of A-Z a-z 0-9 _ -.
	ID   string `json:"id"`
	Kind string `json:"kind"` // kind of the operation, such as "file", "dial" or "stdin": 1 to 32 characters of a-z and -

	// Timeout is how long the client waits for the answer, from 1 ms to 5 minutes. It is required. It is a duration
	// because the clocks of machines differ. The worker also waits this long for the first frame of the stream.
	Timeout Duration `json:"timeout"`
	Request []byte   `json:"request,omitempty"` // the operation's own type in msgpack; at most [MaxStreamRequest] bytes
	Bulk    bool     `json:"bulk,omitempty"`    // many bytes: the stream uses connections for such streams

	Window int `json:"window,omitempty"` // bytes that the worker may send at first; default [StreamWindow]
	Frame  int `json:"frame,omitempty"`  // data bytes of the largest frame that the client takes; default [StreamFrame]
}

// StreamReply answers a [StreamOpen].
type StreamReply struct {
	Version int    `json:"v"`
	Error   *Error `json:"error,omitempty"`
	Result  []byte `json:"result,omitempty"` // the operation's own type in msgpack; at most [MaxStreamRequest] bytes
	Stream  bool   `json:"stream,omitempty"` // the stream is open; otherwise this reply is the whole answer

	Window int `json:"window,omitempty"` // bytes that the client may send at first; default [StreamWindow]
	Frame  int `json:"frame,omitempty"`  // data bytes of the largest frame that the worker takes; default [StreamFrame]
}

var (
	streamIDPattern   = regexp.MustCompile(`\A[A-Za-z0-9_-]{22,64}\z`)
	streamKindPattern = regexp.MustCompile(`\A[a-z-]{1,32}\z`)
)

// Validate checks the request and sets defaults. Errors: failed_precondition with reason unsupported_version;
// invalid_argument with field v, id, kind, timeout, request, window or frame.
func (o *StreamOpen) Validate() error {
	if err := CheckVersion(o.Version); err != nil {
		return err
	}
	switch {
	case !streamIDPattern.MatchString(o.ID):
		return Invalid("id", "must be 22 to 64 random characters of A-Z a-z 0-9 _ -, got %d bytes", len(o.ID))
	case !streamKindPattern.MatchString(o.Kind):
		return Invalid("kind", "must be 1 to 32 characters of a-z and -, got %.80q", o.Kind)
	case o.Timeout == 0:
		return Invalid("timeout", "must say how long the client waits for the answer")
	case o.Timeout.Std() < MinStreamTimeout || o.Timeout.Std() > MaxStreamTimeout:
		return Invalid("timeout", "must be %s to %s, got %s", MinStreamTimeout, MaxStreamTimeout, o.Timeout)
	case len(o.Request) > MaxStreamRequest:
		return Invalid("request", "has %d bytes, at most %d are allowed", len(o.Request), MaxStreamRequest)
	}
	return validateStreamSizes(&o.Window, &o.Frame)
}

// Validate checks the sizes in the reply and sets defaults. Errors: failed_precondition with reason
// unsupported_version; invalid_argument with field v, window or frame.
func (r *StreamReply) Validate() error {
	if err := CheckVersion(r.Version); err != nil {
		return err
	}
	return validateStreamSizes(&r.Window, &r.Frame)
}

func validateStreamSizes(window, frame *int) error {
	if *window == 0 {
		*window = StreamWindow
	}
	if *frame == 0 {
		*frame = StreamFrame
	}
	if *window < MinStreamWindow || *window > MaxStreamWindow {
		return Invalid("window", "must be %d to %d bytes, got %d", MinStreamWindow, MaxStreamWindow, *window)
	}
	if *frame < MinStreamFrame || *frame > MaxStreamFrame {
		return Invalid("frame", "must be %d to %d bytes, got %d", MinStreamFrame, MaxStreamFrame, *frame)
	}
	return nil
}
