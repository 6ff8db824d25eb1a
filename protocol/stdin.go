package protocol

// StreamKindStdin is the kind of a stream that writes to the stdin of an exec with [ExecSpec.OpenStdin].
const StreamKindStdin = "stdin"

// StreamStdin is the [StreamOpen.Request] of kind [StreamKindStdin]. The [StreamReply.Result] is a [StdinState].
//
// The client then sends the input, beginning at byte StdinState.Taken. Only a half-close ends the stdin; the stream may
// be lost and opened again. When the number of taken bytes changes, the worker sends the new number as 8 bytes,
// big-endian. The worker's own half-close confirms that it has passed the end on. A client keeps the bytes that are not
// taken: if the stream is lost, the client opens another stream and continues at that stream's Taken.
type StreamStdin struct {
	Exec   string `json:"exec"`
	Offset int64  `json:"offset,omitempty"` // the first byte that the client still has; the exec has taken all before it
}

// StdinState says how much of its stdin an exec has taken.
type StdinState struct {
	Taken  int64 `json:"taken,omitempty"`  // number of bytes written to the exec's pipe
	Closed bool  `json:"closed,omitempty"` // the worker has passed the end on
}

// StdinTakenSize is the size in bytes of a number that the worker sends.
const StdinTakenSize = 8

// Validate checks the request. Errors: invalid_argument with field exec or offset.
func (r *StreamStdin) Validate() error {
	if r.Offset < 0 {
		return Invalid("offset", "must be 0 or more, got %d", r.Offset)
	}
	return ValidateID("exec", r.Exec)
}
